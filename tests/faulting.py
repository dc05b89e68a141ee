"""What the tests of faults share: scenarios, processes that run their cases, and the verdict.

A scenario is one way to start something isolated.  Which system calls its launch
consists of is not listed anywhere: it is traced, and what it did is what is then
made to fail, to lie or to be refused, one call at a time.
"""

from __future__ import annotations

import collections
import concurrent.futures
import json
import os
import queue
import re
import subprocess
import sys
from pathlib import Path

from netless import _native
from support import launcher, need

FAULTS = Path(__file__).resolve().parent / "programs" / "faults.py"
IS_ROOT = os.geteuid() == 0
WORKERS = 4
MOST_CALLS = 8  # of one name in one process; of more, the first two and the last
PIPE = subprocess.PIPE

# What the caller has done before the faults come: nothing, or the same launch.
COLD, WARM, BOTH = (False,), (True,), (False, True)

LAUNCHES: dict[str, dict] = {
    "shared": {"options": {"cwd": "/", "start_new_session": True, "stdin": PIPE}},
    "private": {"isolation": {"private": True}},
    "loopback": {"isolation": {"loopback": True}},
    "map-root": {"isolation": {"map_root": True, "unix_sockets": False}, "warmth": COLD},
    "inherit": {"options": {"close_fds": False, "umask": 0o22}, "warmth": WARM},
    "preexec": {"options": {"preexec": True}},
    # a namespace for each child; a warm one settles anew
    "setns refused": {"always": ["setns:error=EPERM"], "warmth": COLD},
}
# Other ways in. A worker that is forked, and what isolates itself, settle anew each time.
ENTRIES: dict[str, dict] = {
    "netless-exec": {"entry": "exec", "warmth": COLD},
    "netless-exec --loopback": {"entry": "exec", "isolation": {"loopback": True}, "warmth": COLD},
    "isolate()": {"entry": "isolate", "warmth": COLD},
    "fork worker": {"entry": "fork", "warmth": COLD},
    "spawn worker": {"entry": "spawn", "warmth": WARM},
    "executor": {"entry": "executor", "warmth": COLD},
}
if IS_ROOT:
    LAUNCHES["user"] = {"options": {"user": 7, "group": 7, "extra_groups": [7]}}
if _native.landlock_abi() >= 4:
    # With the powers of root no filter is sound: root's cases become somebody else.
    by_filter = {"isolation": {"mechanism": "filter"}, "somebody": IS_ROOT}
    LAUNCHES["filter"] = by_filter
    ENTRIES |= {
        "netless-exec by filter": {"entry": "exec", **by_filter, "warmth": COLD},
        "isolate() by filter": {"entry": "isolate", **by_filter, "warmth": COLD},
        "fork worker by filter": {"entry": "fork", **by_filter, "warmth": COLD},
    }

# With something that leads out, which the child must not have.
CONTRABAND: dict[str, dict] = {
    "socket as stdin": {"contraband": "stdin", "warmth": WARM},
    "namespace passed": {"contraband": "namespace", "warmth": WARM},
    "AF_UNIX socket as stdin": {
        "contraband": "unix",
        "isolation": {"unix_sockets": False},
        "warmth": WARM,
    },
    "socket left open": {"contraband": "open", "warmth": WARM},
    "socket inherited": {"contraband": "open", "options": {"close_fds": False}, "warmth": WARM},
    "socket inherited by netless-exec": {"contraband": "open", "entry": "exec", "warmth": COLD},
    "socket at isolate()": {"contraband": "open", "entry": "isolate", "warmth": COLD},
    "socket at a fork": {"contraband": "open", "entry": "fork", "warmth": COLD},
}
# These start their child, which does not get it.
RUN_WITHOUT = {"socket left open", "socket at a fork"}
SCENARIOS = {**LAUNCHES, **ENTRIES, **CONTRABAND}
# Where namespaces are refused, and the filter is there to take their place.
IN_SANDBOXES: dict[str, dict] = {}
if "filter" in LAUNCHES:
    IN_SANDBOXES["fallback"] = {
        "isolation": {"fallback": "filter"},
        "somebody": IS_ROOT,
        "warmth": COLD,
    }

NOT_INJECTED = {
    # cannot fail
    *("exit_group", "exit", "geteuid", "getegid", "getuid", "getgid", "getpid", "gettid"),
    *("getppid", "sched_yield", "rt_sigreturn", "restart_syscall", "set_tid_address"),
    *("set_robust_list", "rseq", "arch_prctl"),
    # frees the descriptor even when it fails, which an injection cannot imitate
    "close",
    # only libc's fopen in the parent, which does not mind; and what witness.c looks with
    "newfstatat",
    # memory and locks of the interpreter, and what faults.py itself waits with
    *("brk", "mmap", "munmap", "mremap", "madvise", "mprotect", "futex"),
    *("rt_sigtimedwait", "kill", "clock_nanosleep"),
}
# A worker that is spawned is traced all along, an executor's threads and queues are traced too:
# there, what only launches do.
OF_LAUNCHES_ALONE = {
    *("unshare", "setns", "socketpair", "sendto", "recvfrom", "prctl", "capget", "capset"),
    *("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self", "seccomp"),
    *("pidfd_open", "close_range", "fstatfs", "statx", "readlink"),
}


class Workers:
    """A pool of faults.py processes, each running one case at a time."""

    def __init__(self, programs, folder: Path) -> None:
        need("strace")
        launcher()
        files = []
        for flags in (("-static",), ("-shared", "-fPIC")):
            target = folder / f"witness{flags[0]}"
            target.write_bytes(Path(programs("witness.c", *flags)).read_bytes())
            target.chmod(0o755)
            files.append(str(target))
        self.idle: queue.SimpleQueue[subprocess.Popen] = queue.SimpleQueue()
        self.all = [
            subprocess.Popen(
                [sys.executable, str(FAULTS), *files, str(folder)],
                stdin=PIPE,
                stdout=PIPE,
                text=True,
            )
            for _ in range(WORKERS)
        ]
        for worker in self.all:
            self.outside = json.loads(worker.stdout.readline())
            self.idle.put(worker)

    def run(self, case: dict) -> dict:
        worker = self.idle.get()
        try:
            worker.stdin.write(json.dumps(case) + "\n")
            worker.stdin.flush()
            return json.loads(worker.stdout.readline())
        finally:
            self.idle.put(worker)

    def run_all(self, cases: list[dict]) -> list[dict]:
        with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
            return list(pool.map(self.run, cases))

    def close(self) -> None:
        for worker in self.all:
            worker.stdin.close()
            worker.wait(60)
            worker.stdout.close()


# ---- what a launch consists of ----

EXECUTED = re.compile(r"execve.*= 0$")
WITNESSING = re.compile(r' *newfstatat\(AT_FDCWD, "/proc/self/ns/net"')


class Calls:
    """The system calls of a traced launch, in each of its processes until what it is for."""

    def __init__(self, log: Path, case: dict) -> None:
        processes: dict[str, collections.Counter] = {}  # the caller comes first
        programs: collections.Counter = collections.Counter()
        for line in log.read_text().splitlines():
            process, _, rest = line.partition(" ")
            if not processes:
                programs[process] = -int(case["entry"] == "exec")  # it has to become it first
            counter = processes.setdefault(process, collections.Counter())
            call = re.match(r" *(\w+)\(", rest)
            if WITNESSING.match(rest):
                programs[process] += 1
            if call and programs[process] <= 0:
                counter[call[1]] += 1
            if EXECUTED.search(rest):
                programs[process] += 1
        most: collections.Counter = collections.Counter()
        for counter in processes.values():
            most |= counter
        for name in {*NOT_INJECTED, *(rule.partition(":")[0] for rule in case.get("always", ()))}:
            del most[name]
        if case["entry"] in ("spawn", "executor"):
            for name in set(most) - OF_LAUNCHES_ALONE:
                del most[name]
        # How often each call was made, in the process that made it most.
        self.counts = dict(sorted(most.items()))
        self.only_in_children = set(most) - set(next(iter(processes.values())))

    def places(self, name: str) -> tuple[int, ...] | range:
        """Which of these calls are worth a fault of their own."""
        count = self.counts[name]
        return range(1, count + 1) if count <= MOST_CALLS else (1, 2, count)


def cases_of(name: str) -> list[dict]:
    """The scenario, for each state of the caller that it is tried in."""
    scenario = {"entry": "popen", "always": [], **{**SCENARIOS, **IN_SANDBOXES}[name]}
    warmth = scenario.pop("warmth", BOTH)
    return [{**scenario, "warm": warm} for warm in warmth]


def with_faults(case: dict, *rules: str, **more: object) -> dict:
    return {**case, "inject": [*rules, *case["always"]], **more}


# ---- the verdict ----

# netless-exec goes on without these where they cannot be had, and promises nothing by them.
LAYERS_OF_LAUNCHER = {"vm-sockets", "key-upcalls", "tty-injection"}


class Verdict:
    """What is wrong with an outcome, by what the same launch does without a fault."""

    def __init__(self, case: dict, outside: dict, usual: dict) -> None:
        self.case = case
        self.outside = outside
        self.usual = usual

    def breach(self, result: dict) -> str | None:
        """What must not be, whatever happened on the way."""
        for how in ("hang", "dead"):
            if how in result:
                return self.out({"mechanism": None, **result}) or f"{how}: {result[how]}"
        for ran in filter(None, (result, result.get("again"))):
            if ran["kind"] and not ran["typed"]:
                return "raised something that is no error of a launch"
            wrong = self.out(ran) or self.unproved(ran, result)
            if wrong:
                return wrong
        return None

    def out(self, ran: dict) -> str | None:
        """Did it run with a network? None where it did not."""
        if ran["net"] is None:
            return None
        if self.by_filter(ran):
            return "ran with Internet sockets" if ran["inet"] != "0" else None
        if ran["net"] in (self.outside["net"], "0"):
            return "ran in the parent's network"
        if ran["user"] in (self.outside["user"], "0"):
            return "ran in the parent's user namespace"
        return None

    def by_filter(self, ran: dict) -> bool:
        return "filter" in (ran["mechanism"], self.case.get("isolation", {}).get("mechanism"))

    def unproved(self, ran: dict, result: dict) -> str | None:
        """What is promised and does not hold; None where it does."""
        if ran["net"] is None:
            return None
        promised = set(ran.get("promised", result["guarantees"]))
        if self.case["entry"] == "exec" and not self.by_filter({"mechanism": None}):
            promised -= LAYERS_OF_LAUNCHER
        if "vm-sockets" in promised and int(ran["filtered"]) < 2:
            return "ran without the filter that is promised"
        if "unix-abstract" in promised and ran["abstract"] != "0":
            return "reached an abstract socket outside"
        if result.get("held") in ran["open"]:
            return "had what leads out"
        if self.usual["net"] is not None and ran["uid"] != self.usual["uid"]:
            return "ran as somebody else"
        return None

    def contradiction(self, result: dict) -> str | None:
        """It ran or it raised: not both, not neither."""
        ran, raised = result["net"] is not None, result["kind"] is not None
        if ran and raised:
            return "ran and raised"
        failed = result["status"] not in (0, None) and self.case["entry"] != "popen"
        return None if ran or raised or failed else "neither ran nor raised"


def left_behind(result: dict, *tolerated: str) -> str | None:
    changed = {**result["changed"]}
    if "stdin" in tolerated and only_stdin(*changed.get("descriptors", ([], []))):
        changed.pop("descriptors", None)
    rest = sorted(set(changed) - set(tolerated))
    return f"left something behind: {rest}" if rest else None


def only_stdin(before: list[str], after: list[str]) -> bool:
    """Is what has come and gone nothing but the caller's standard input, /dev/null?"""
    return all(name.endswith(" /dev/null") for name in set(before) ^ set(after))
