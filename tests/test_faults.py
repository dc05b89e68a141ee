"""Every system call of the launch sequence made to fail, to lie and to be refused.

*Fail*: strace lets the call return an errno, one occurrence and all of them, and ends the
child there.  *Lie*: strace lets the call return 0 and does not make it.  *Refused*: a
seccomp filter around the caller and all its children answers the call, as a sandbox does.
"""

from __future__ import annotations

import collections
import concurrent.futures
import errno
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import faulting
from faulting import Calls, Verdict, Workers, cases_of, left_behind, with_faults
from support import need

pytestmark = pytest.mark.isolated

ERRORS = ("EPERM", "EACCES", "EINVAL", "ENOSPC", "EUSERS", "ENOMEM", "ENOSYS", "EINTR")
KINDS_OF_ERROR = ("EPERM", "ENOMEM", "EINTR")  # refused, exhausted, a bad moment
# Where the kept namespace is looked at, and where its successor is.
STALE_TWICE = "statx:error=EIO:when=4+6"


class Open(NamedTuple):
    """What is known not to hold yet. A row that nothing shows any more is named in the output."""

    test: str
    scenarios: set[str]
    faults: str
    wrong: str


LEADS_OUT = "had what leads out"
UNTYPED = "raised something that is no error of a launch"
UNTRUE = "says what is not true"
IDS = "ran as somebody else"
FORKED = {"fork worker", "socket at a fork"}
FILTERED = {"filter", "isolate() by filter", "fork worker by filter"}
BY_EXEC = {"netless-exec", "netless-exec --loopback"}
LISTED = {"socket inherited", "socket inherited by netless-exec", "socket at a fork"}
MADE_COLD = {"shared", "private", "loopback", "map-root", "preexec", "setns refused", "user"}
STANDARD = {"socket as stdin", "AF_UNIX socket as stdin", "socket inherited"}
OPEN = [
    # The process that isolates itself is the one that is asked afterwards: it is lied to then, too.
    Open("lie", {"isolate() by filter"}, "socket:retval=0", "ran with Internet sockets"),
    # A report that is refused, and a wait, are called a kill.
    Open(
        "sandbox", {*MADE_COLD, "isolate()", *FORKED, "fork worker by filter"}, "write=.*", UNTRUE
    ),
    Open("sandbox", {*MADE_COLD, *FILTERED, "isolate()", *FORKED, "fallback"}, "wait4=.*", UNTRUE),
    # Who cannot be asked for its powers is said to have those of root.
    Open("sandbox", {*FILTERED, "netless-exec by filter"}, "(capget|getresuid)=.*", UNTRUE),
]


@pytest.fixture(scope="module")
def folder():
    """A place where a child that is somebody else can execute and write, too."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


@pytest.fixture(scope="module")
def workers(programs, folder: Path):
    pool = Workers(programs, folder)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def baselines(workers, folder: Path):
    """Without a fault, once for each: what the launch does, which is as it has to be."""
    known: dict[str, list[tuple[dict, dict, Calls]]] = {}

    def of(name: str) -> list[tuple[dict, dict, Calls]]:
        if name not in known:
            known[name] = [traced(name, case) for case in cases_of(name)]
        return known[name]

    def traced(name: str, case: dict) -> tuple[dict, dict, Calls]:
        log = folder / f"{name}-{case['warm']}".replace("/", "")
        result = workers.run(with_faults(case, log=str(log)))
        verdict = Verdict(case, workers.outside, result)
        wrong = verdict.breach(result) or verdict.contradiction(result) or left_behind(result)
        assert wrong is None, (wrong, result)
        is_to_run = name not in faulting.CONTRABAND or name in faulting.RUN_WITHOUT
        assert result["kind"] == (None if is_to_run else "InheritedSocketError"), result
        return case, result, Calls(log, case)

    return of


class Tally:
    """The outcomes of one test, and the bad ones among them."""

    def __init__(self, test: str, scenario: str, capsys) -> None:
        self.scenario, self.capsys = scenario, capsys
        self.outcomes: collections.Counter = collections.Counter()
        self.bad: list[str] = []
        self.open = {
            row[2:]: False for row in OPEN if row.test in test and scenario in row.scenarios
        }

    def count(self, fault: str, result: dict, wrong: str | None) -> None:
        ran = "ran isolated" if result.get("net") else "did not run"
        self.outcomes[result.get("kind") or ran] += 1
        known = [row for row in self.open if re.fullmatch(row[0], fault) and wrong == row[1]]
        if known:
            self.open[known[0]] = True
        elif wrong:
            self.bad.append(f"{fault}: {wrong}: {result}")

    def finish(self) -> None:
        outcomes = dict(self.outcomes.most_common())
        with self.capsys.disabled():
            print(f"\n  {self.scenario}: {sum(outcomes.values())} faults: {outcomes}")
            for faults, wrong in (row for row, is_open in self.open.items() if not is_open):
                print(f"  no longer open: {faults}: {wrong}")
        assert not self.bad, "\n".join([f"{len(self.bad)} bad outcomes", *self.bad[:60]])


@pytest.fixture
def tally(request, capsys):
    node = request.node
    return Tally(node.originalname, node.callspec.params["scenario"], capsys)


@pytest.mark.parametrize("entry", ["popen", "exec", "isolate", "fork", "spawn", "executor"])
def test_a_child_that_is_outside_is_seen(entry: str, workers) -> None:
    """The control: the same case, started by subprocess or multiprocessing, or not isolated."""
    case = {"entry": entry, "plain": True, "warm": True}
    result = workers.run({**case, "inject": []})
    assert Verdict(case, workers.outside, result).breach(result) == "ran in the parent's network"
    assert (result["filtered"], result["inet"], result["abstract"]) == ("0", "1", "1")


@pytest.mark.parametrize("contraband", ["stdin", "namespace", "unix", "open"])
def test_what_leads_out_is_seen(contraband: str, workers) -> None:
    """Their control: subprocess passes it on."""
    case = {"entry": "popen", "plain": True, "warm": True, "contraband": contraband}
    result = workers.run({**case, "options": {"close_fds": contraband != "open"}, "inject": []})
    assert result["held"] in result["open"], result


# ---- calls that fail ----

# Nobody could reap after these; and a call that is interrupted forever is called forever.
ONLY_INTERRUPTED = {"wait4"}
RETRIED = {"wait4", "recvfrom", "read", "write", "poll", "ppoll", "getrandom"}
TOLERATED = {
    "rt_sigprocmask": {"mask"},
    # A kept descriptor that cannot be looked at is not closed: it may be somebody else's.
    "statx": {"descriptors"},
}
MAP_CALLS = {"capget", "openat", "read", "write"}
# A probe that meets these goes on without the layer, and the guarantees say so.
LAYERS = {"landlock_create_ruleset", "landlock_restrict_self", "seccomp", "prctl", "ioctl"}
LAYERS |= {"socket", "bind", "connect", "getsockname", "getsockopt"}  # by which they are proved


def failures(calls: Calls, errors: tuple[str, ...]) -> list[str]:
    """Each call of its name, and all of them, with each errno; and the child's end there."""
    rules = []
    for name, count in calls.counts.items():
        for error in errors if name not in ONLY_INTERRUPTED else ("EINTR",):
            if not (error == "EINTR" and name in RETRIED):
                rules.append(f"{name}:error={error}")
            if count > 1 or (error == "EINTR" and name in RETRIED):
                rules += [
                    f"{name}:error={error}:when={number}"
                    for number in calls.places(name)
                    if number in (1, count) or error in KINDS_OF_ERROR
                ]
        if name in calls.only_in_children:
            rules += [f"{name}:signal=KILL:when={number}" for number in calls.places(name)]
    return rules


def is_deaf(call: str, result: dict) -> bool:
    """A parent that cannot receive the report kills the isolated child, which may be faster."""
    return call in ("recvfrom", "read") and result["step"] == "channel"


def wrong_after_failure(verdict: Verdict, rule: str, result: dict) -> str | None:
    call = rule.partition(":")[0]
    wrong = verdict.breach(result) or left_behind(result, *TOLERATED.get(call, ()))
    if wrong:
        return wrong
    killed = "signal=KILL" in rule and result["status"] == -9
    contradiction = verdict.contradiction(result)
    if contradiction and not killed and not is_deaf(call, result):
        return contradiction
    usual = set(verdict.usual["guarantees"])
    if verdict.case["always"]:
        usual.discard("siblings")  # without that fault, they share a namespace
    is_layer = call in LAYERS and "signal" not in rule
    is_kept = verdict.case["entry"] == "popen"  # others settle anew
    if is_kept and not is_layer and not usual <= set(result["guarantees"]):
        return "weakened what comes after it"
    # A capget or read that fails looks like a caller without the capabilities.
    refused = call in ("capget", "read") or "EPERM" in rule
    again = result.get("again", {"kind": verdict.usual["kind"]})
    if again["kind"] == "PermissionError" and call in MAP_CALLS and refused:
        return None  # root's map is its own id alone then, which `user=` cannot do with
    return "cannot launch any more" if again["kind"] != verdict.usual["kind"] else None


@pytest.mark.parametrize("scenario", faulting.SCENARIOS)
def test_no_failure_lets_a_child_out(scenario: str, workers, baselines, tally) -> None:
    is_launch = scenario in faulting.LAUNCHES
    for case, usual, calls in baselines(scenario):
        if is_launch:
            assert {"execve", "seccomp"} <= set(calls.counts), calls.counts
            assert {"clone", "clone3"} & set(calls.counts), calls.counts
        verdict = Verdict(case, workers.outside, usual)
        rules = [*failures(calls, ERRORS if is_launch else ERRORS[:1]), STALE_TWICE]
        results = workers.run_all([with_faults(case, rule) for rule in rules])
        for rule, result in zip(rules, results, strict=True):
            tally.count(rule, result, wrong_after_failure(verdict, rule, result))
    tally.finish()


# ---- calls that lie ----

# Who is told that it is the child goes on as the child: there is no caller left to ask.
SPLITTING = {"clone", "clone3", "fork", "vfork"}
# Nobody could reap after the first; the interpreter asks for ever for randomness.
NOT_LIED = {"wait4", "getrandom", *SPLITTING}
LIES_TOLERATED = {
    "rt_sigprocmask": ("mask",),
    # 0 may be a descriptor: what they "gave" is closed as one's own.
    **dict.fromkeys(
        ("openat", "open", "pidfd_open", "landlock_create_ruleset", "ioctl", "fcntl", "socket"),
        ("stdin",),
    ),
    # Nobody has filled in which: subprocess's own, and multiprocessing's.
    "pipe2": ("stdin", "descriptors", "children"),
}
# Who it runs as is subprocess's matter then, too: the id is not taken, or nowhere written.
IDS_TOLERATED = {"setresuid", "openat", "open"}


def lies(calls: Calls) -> list[str]:
    """Each call of its name says that it was made, and all of them do."""
    rules = []
    for name, count in calls.counts.items():
        if name in NOT_LIED:
            continue
        rules.append(f"{name}:retval=0")
        if count > 1:
            rules += [f"{name}:retval=0:when={number}" for number in calls.places(name)]
    return rules


def wrong_after_lie(verdict: Verdict, rule: str, result: dict) -> str | None:
    call = rule.partition(":")[0]
    wrong = verdict.breach(result)
    if call in IDS_TOLERATED and wrong == IDS:
        wrong = None
    if wrong is None and verdict.contradiction(result) == "neither ran nor raised":
        return "neither ran nor raised"
    return wrong or left_behind(result, *LIES_TOLERATED.get(call, ()))


@pytest.mark.parametrize("scenario", faulting.SCENARIOS)
def test_no_lie_lets_a_child_out(scenario: str, workers, baselines, tally) -> None:
    for case, usual, calls in baselines(scenario):
        verdict = Verdict(case, workers.outside, usual)
        rules = lies(calls)
        results = workers.run_all([with_faults(case, rule) for rule in rules])
        for rule, result in zip(rules, results, strict=True):
            tally.count(rule, result, wrong_after_lie(verdict, rule, result))
    tally.finish()


# ---- calls that a filter around the caller refuses ----

# Where waiting is refused nobody can reap.
REFUSALS_TOLERATED = {"wait4": ("children",)}
# What a refusal may be called. Never what would be another reason.
TRUE_CAUSES = {
    *(None, "refused", "blocked-by-seccomp", "seccomp-missing", "landlock-missing"),
    "kernel-unsupported",
}
NEVER_BLAMED = ("killed", "out-of-memory")


@pytest.fixture(scope="module")
def number_of() -> Callable[[str], int]:
    """The numbers of the system calls, as this machine's headers have them."""
    source = "#include <sys/syscall.h>"
    command = [need("gcc"), "-E", "-dM", "-x", "c", "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=True)
    lines = (line.split() for line in done.stdout.splitlines())
    numbers = {
        line[1].removeprefix("__NR_"): int(line[2])
        for line in lines
        if len(line) == 3 and line[1].startswith("__NR_") and line[2].isdigit()
    }
    return numbers.__getitem__


def wrong_after_refusal(verdict: Verdict, call: str, error: str, result: dict) -> str | None:
    wrong = verdict.breach(result) or left_behind(result, *REFUSALS_TOLERATED.get(call, ()))
    if wrong:
        return wrong
    contradiction = verdict.contradiction(result)
    if contradiction and call != "wait4" and not is_deaf(call, result):
        return contradiction
    for raised in (result, result.get("again", {"kind": None})):
        if raised["kind"] and not is_true(raised, error):
            return UNTRUE
    return None


def is_true(raised: dict, error: str) -> bool:
    """Does the text name this refusal, and nothing else as the reason?"""
    if raised["kind"] != "NetworkIsolationUnavailable":
        return True
    is_named = raised["errno"] in (None, getattr(errno, error))
    is_blamed = any(word in raised["text"] for word in NEVER_BLAMED)
    return is_named and not is_blamed and raised["cause"] in TRUE_CAUSES


@pytest.mark.parametrize("scenario", {**faulting.SCENARIOS, **faulting.IN_SANDBOXES})
def test_no_sandbox_around_the_caller_lets_a_child_out(
    scenario: str, workers, baselines, number_of, tally
) -> None:
    for case, usual, calls in baselines(scenario):
        verdict = Verdict(case, workers.outside, usual)
        refused = [(call, error) for call in calls.counts for error in ("EPERM", "ENOSYS")]
        results = workers.run_all(
            [
                {**case, "refused": {"numbers": [number_of(call)], "error": getattr(errno, error)}}
                for call, error in refused
            ]
        )
        for (call, error), result in zip(refused, results, strict=True):
            wrong = wrong_after_refusal(verdict, call, error, result)
            tally.count(f"{call}={error}", result, wrong)
    tally.finish()


# ---- the command line ----

# Those that the interpreter's own start does not need, too.
COMMAND_CALLS = (
    *("clone", "unshare", "setns", "socketpair", "sendto", "recvfrom", "statx", "prctl"),
    *("landlock_create_ruleset", "landlock_restrict_self", "seccomp"),
)


def run_command(option: str, rule: str, folder: Path) -> str:
    """`netless run` isolates the calling process itself: there, too, nothing runs outside."""
    marker = folder / f"command {option} {rule}"
    options = [option] if option else []
    child = [str(folder / "witness-static"), str(marker), "nowhere"]
    command = [sys.executable, "-m", "netless", "run", *options, "--", *child]
    strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"inject={rule}"]
    done = subprocess.run([*strace, *command], capture_output=True, text=True, timeout=60)
    if not marker.is_symlink():
        return f"status {done.returncode}"
    words = os.readlink(marker).split()
    for kind in ("net", "user"):
        if {f"{kind}=0", f"{kind}={os.stat(f'/proc/self/ns/{kind}').st_ino}"} & set(words):
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
    lying = {"unshare"} if option == "--loopback" else {*COMMAND_CALLS} - SPLITTING
    rules += [f"{call}:retval=0" for call in sorted(lying)]
    with concurrent.futures.ThreadPoolExecutor(faulting.WORKERS) as pool:
        found = list(pool.map(lambda rule: run_command(option, rule, folder), rules))
    outcomes = collections.Counter(found)
    with capsys.disabled():
        print(f"\n  netless run {option}: {len(rules)} faults: {dict(outcomes.most_common())}")
    fine = {"ran isolated, status 0", "status 125"}
    bad = [pair for pair in zip(rules, found, strict=True) if pair[1] not in fine]
    assert not bad
    assert set(outcomes) == fine
