"""Every system call of the launch sequence made to fail, with every plausible errno.

The calls are not listed here: a launch is traced first, and what it did is what
is then made to fail, one call at a time.
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
import tempfile
from pathlib import Path

import pytest

from netless import _native
from support import need

pytestmark = pytest.mark.isolated

FAULTS = Path(__file__).resolve().parent / "programs" / "faults.py"
IS_ROOT = os.geteuid() == 0
ERRORS = ("EPERM", "EACCES", "EINVAL", "ENOSPC", "EUSERS", "ENOMEM", "ENOSYS", "EINTR")
KINDS_OF_ERROR = ("EPERM", "ENOMEM", "EINTR")  # refused, exhausted, a bad moment
# Where the kept namespace is looked at, and where its successor is.
STALE_TWICE = "statx:error=EIO:when=4+6"
WORKERS = 4
MOST_CALLS = 8  # of one name in one process; of more, the first two and the last

SCENARIOS = {
    "shared": {"options": {"cwd": "/", "start_new_session": True, "stdin": subprocess.PIPE}},
    "private": {"isolation": {"private": True}},
    "loopback": {"isolation": {"loopback": True}},
    "map-root": {"isolation": {"map_root": True, "unix_sockets": False}, "warmth": (False,)},
    "inherit": {"options": {"close_fds": False, "umask": 0o22}, "warmth": (True,)},
    "preexec": {"options": {"preexec": True}},
    # a namespace for each child; a warm one settles anew
    "setns refused": {"always": ["setns:error=EPERM"], "warmth": (False,)},
}
if IS_ROOT:
    SCENARIOS["user"] = {"options": {"user": 7, "group": 7, "extra_groups": [7]}}
elif _native.landlock_abi() >= 4:
    SCENARIOS["filter"] = {"isolation": {"mechanism": "filter"}}

NOT_INJECTED = {
    # cannot fail
    *("exit_group", "geteuid", "getegid", "getuid", "getgid", "getpid", "gettid", "getppid"),
    *("sched_yield", "rt_sigreturn", "restart_syscall"),
    # frees the descriptor even when it fails, which an injection cannot imitate
    "close",
    # only libc's fopen in the parent, which does not mind; and what witness.c looks with
    "newfstatat",
    # memory and locks of the interpreter, and what faults.py itself waits with
    *("brk", "mmap", "munmap", "mremap", "madvise", "mprotect", "futex"),
    *("rt_sigtimedwait", "kill"),
}
# Nobody could reap after these; and a call that is interrupted forever is called forever.
ONLY_INTERRUPTED = {"wait4"}
RETRIED = {"wait4", "recvfrom"}
TOLERATED = {
    "rt_sigprocmask": {"mask"},
    # A kept descriptor that cannot be looked at is not closed: it may be somebody else's.
    "statx": {"descriptors"},
}
MAP_CALLS = {"capget", "openat", "read", "write"}
# A probe that meets these goes on without the layer, and the guarantees say so.
LAYERS = {"landlock_create_ruleset", "landlock_restrict_self", "seccomp", "prctl"}


class Workers:
    """A pool of faults.py processes, each running one case at a time."""

    def __init__(self, witness: str, folder: str) -> None:
        need("strace")
        self.idle: queue.SimpleQueue[subprocess.Popen] = queue.SimpleQueue()
        self.all = [
            subprocess.Popen(
                [sys.executable, str(FAULTS), witness, folder],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(WORKERS)
        ]
        for worker in self.all:
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


@pytest.fixture(scope="module")
def folder():
    """A place where a child that is somebody else can execute and write, too."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


@pytest.fixture(scope="module")
def workers(programs, folder: Path):
    witness = folder / "witness"
    witness.write_bytes(Path(programs("witness.c", "-static")).read_bytes())
    witness.chmod(0o755)
    pool = Workers(str(witness), str(folder))
    yield pool
    pool.close()


def calls_of_launch(log: Path) -> tuple[dict[str, int], set[str]]:
    """How often each system call was made until execve, in the process that made it most.

    And the names of those that the caller itself did not make.
    """
    counts: dict[str, collections.Counter] = {}  # the caller comes first
    executed = set()
    for line in log.read_text().splitlines():
        process, _, rest = line.partition(" ")
        call = re.match(r" *(\w+)\(", rest)
        if call and process not in executed:
            counts.setdefault(process, collections.Counter())[call[1]] += 1
        if re.search(r"execve.*= 0$", rest):
            executed.add(process)
    most: collections.Counter = collections.Counter()
    for counter in counts.values():
        most |= counter
    for name in NOT_INJECTED:
        del most[name]
    return dict(sorted(most.items())), set(most) - set(next(iter(counts.values())))


def injections(calls: dict[str, int], childs: set[str]) -> list[str]:
    """Each call of its name, and all of them, with each errno; and the child's end there."""
    rules = []
    for name, count in calls.items():
        which = range(1, count + 1) if count <= MOST_CALLS else (1, 2, count)
        errors = ERRORS if name not in ONLY_INTERRUPTED else ("EINTR",)
        for error in errors:
            if not (error == "EINTR" and name in RETRIED):
                rules.append(f"{name}:error={error}")
            if count > 1 or (error == "EINTR" and name in RETRIED):
                rules += [
                    f"{name}:error={error}:when={number}"
                    for number in which
                    if number in (1, count) or error in KINDS_OF_ERROR
                ]
        if name in childs:
            rules += [f"{name}:signal=KILL:when={number}" for number in which]
    return rules


def is_out(ran: dict, *, by_filter: bool) -> bool:
    """Did this child have a network? With the filter alone the namespace is the parent's."""
    if by_filter:
        return ran["namespace"] is not None and ran["socket"] != "0"
    return ran["namespace"] in ("outside", "0")


def complaint(
    rule: str, result: dict, promised: list[str], *, by_filter: bool = False
) -> str | None:
    """What is wrong with the outcome; None when it is as it has to be."""
    call = rule.partition(":")[0]
    if "hang" in result:
        return f"hangs: {result['hang']}"
    again = result["again"]
    if is_out(result, by_filter=by_filter) or is_out(again, by_filter=by_filter):
        return "ran in the parent's network"
    killed = "signal=KILL" in rule and result["status"] == -9
    # A parent that cannot receive the report kills the isolated child, which may be faster.
    deaf = call == "recvfrom" and result["step"] == "channel"
    if (result["namespace"] is None) == (result["kind"] is None) and not killed and not deaf:
        return "ran and raised" if result["kind"] else "neither ran nor raised"
    if result["kind"] and not result["typed"]:
        return "raised something that is no error of a launch"
    if set(result["changed"]) - TOLERATED.get(call, set()):
        return "left something behind"
    if (call not in LAYERS or "signal" in rule) and not set(promised) <= set(result["guarantees"]):
        return "weakened what comes after it"
    # A capget or read that fails looks like a caller without the capabilities.
    refused = call in ("capget", "read") or "EPERM" in rule
    if again["kind"] == "PermissionError" and call in MAP_CALLS and refused:
        return None  # root's map is its own id alone then, which `user=` cannot do with
    if again["kind"] is not None:
        return "cannot launch any more"
    if "vm-sockets" in result["guarantees"] and again["seccomp"] != "2":
        return "promises a layer that is not there"
    return None


def test_a_child_that_is_outside_is_seen(workers) -> None:
    """The control: the same case, started by subprocess."""
    result = workers.run({"plain": True, "warm": True, "inject": []})
    assert complaint("", result, []) == "ran in the parent's network"


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_fault_lets_a_child_out(scenario: str, workers, folder: Path, capsys) -> None:
    cases = []
    by_filter = scenario == "filter"
    for warm in SCENARIOS[scenario].get("warmth", (False, True)):
        case = {**SCENARIOS[scenario], "warm": warm}
        log = folder / f"{scenario}-{warm}"
        always = case.pop("always", [])
        baseline = workers.run({**case, "inject": always, "log": str(log)})
        promised = baseline["guarantees"]
        assert complaint("", baseline, promised, by_filter=by_filter) is None, baseline
        assert baseline["kind"] is None, baseline
        calls, childs = calls_of_launch(log)
        assert {"execve", "seccomp"} <= set(calls), calls
        assert {"clone", "clone3"} & set(calls), calls
        for always_failing in always:
            del calls[always_failing.partition(":")[0]]
        rules = [*injections(calls, childs), STALE_TWICE]
        cases += [{**case, "inject": [rule, *always]} for rule in rules]
    results = workers.run_all(cases)
    outcomes = collections.Counter(result.get("kind") or "ran isolated" for result in results)
    with capsys.disabled():
        print(f"\n  {scenario}: {len(cases)} faults: {dict(outcomes.most_common())}")
    bad = [
        (wrong, case["inject"], case["warm"], result)
        for case, result in zip(cases, results, strict=True)
        if (wrong := complaint(case["inject"][0], result, promised, by_filter=by_filter))
    ]
    assert not bad, "\n".join([f"{len(bad)} bad outcomes", *map(str, bad[:20])])


# Those that the interpreter's own start does not need, too.
COMMAND_CALLS = (
    *("clone", "unshare", "setns", "socketpair", "sendto", "recvfrom", "statx", "prctl"),
    *("landlock_create_ruleset", "landlock_restrict_self", "seccomp"),
)


def run_command(option: str, rule: str, folder: Path) -> str:
    """`netless run` isolates the calling process itself: there, too, nothing runs outside."""
    marker = folder / f"command {option} {rule}"
    options = [option] if option else []
    child = [str(folder / "witness"), str(marker)]
    command = [sys.executable, "-m", "netless", "run", *options, "--", *child]
    strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"inject={rule}"]
    done = subprocess.run([*strace, *command], capture_output=True, text=True, timeout=60)
    if not marker.is_symlink():
        return f"status {done.returncode}"
    namespace = os.readlink(marker).split()[0]
    if namespace in ("0", str(os.stat("/proc/self/ns/net").st_ino)):
        return "ran outside"
    return f"ran isolated, status {done.returncode}"


@pytest.mark.parametrize("option", ["", "--private", "--loopback"])
def test_no_fault_lets_the_command_line_out(option: str, workers, folder: Path, capsys) -> None:
    rules = [
        f"{call}:error={error}{when}"
        for call in (("ioctl", "unshare") if option == "--loopback" else COMMAND_CALLS)
        for error in KINDS_OF_ERROR
        for when in ("", ":when=1", ":when=2")
        if not (error == "EINTR" and call in RETRIED and not when)
    ]
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        found = list(pool.map(lambda rule: run_command(option, rule, folder), rules))
    outcomes = collections.Counter(found)
    with capsys.disabled():
        print(f"\n  netless run {option}: {len(rules)} faults: {dict(outcomes.most_common())}")
    fine = {"ran isolated, status 0", "status 125"}
    bad = [pair for pair in zip(rules, found, strict=True) if pair[1] not in fine]
    assert not bad
    assert set(outcomes) == fine
