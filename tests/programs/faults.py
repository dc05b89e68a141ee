"""faults.py WITNESS FOLDER: launches with faults, one JSON line in and one out for each.

A case is forked from this process, so that it is as good as a fresh interpreter
and costs a hundredth of one.  strace is attached to it right before the launch and
gone right after; this side and the case talk by signals in between, because
any other system call of the case may be the one that is made to fail.
"""

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time

import netless

PATIENCE = 30  # seconds after which a case counts as hanging
GO, DONE = signal.SIGUSR1, signal.SIGUSR2
ALL_CHILDREN = 0x40000000  # __WALL: also those that send no SIGCHLD


def nothing() -> None:
    pass


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def children_left() -> int:
    """Zombies and living ones, without reaping them."""
    try:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT | ALL_CHILDREN
        return 1 + int(os.waitid(os.P_ALL, 0, flags) is not None)
    except ChildProcessError:
        return 0


def state() -> dict:
    return {
        "descriptors": descriptors(),
        "children": children_left(),
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [GO])),
        "cwd": os.getcwd(),
        "session": os.getsid(0),
        "limit": resource.getrlimit(resource.RLIMIT_NOFILE),
    }


def launch(witness: str, marker: str, options: dict, start: type) -> dict:
    result = {"kind": None, "step": None, "errno": None, "cause": None, "status": None}
    try:
        with start([witness, marker], **options) as child:
            result["status"] = child.wait()
    except Exception as error:
        result["kind"] = type(error).__name__
        result["typed"] = isinstance(
            error,
            (
                *(netless.NetworkIsolationUnavailable, netless.InheritedSocketError),
                *(OSError, MemoryError, subprocess.SubprocessError),
            ),
        )
        result["text"] = str(error)
        for name in ("step", "errno", "cause"):
            result[name] = getattr(error, name, None)
    return result


def take(marker: str, own: str) -> dict:
    """What the child left word of: its network namespace, and what witness.c says more."""
    try:
        namespace, mode, has_socket = os.readlink(marker).split()
    except FileNotFoundError:
        return {"namespace": None}
    os.unlink(marker)
    if namespace == own:
        namespace = "outside"
    return {"namespace": namespace, "seccomp": mode, "socket": has_socket}


def run_case(case: dict, witness: str, marker: str, out: int) -> None:
    """In a process of its own: warm up, wait for strace, launch, wait for its end, report."""
    isolation = netless.Isolation(**case.get("isolation", {}))
    options = {**case.get("options", {}), "isolation": isolation}
    start = netless.Popen
    if case.get("plain"):
        start = subprocess.Popen
        del options["isolation"]
    if options.pop("preexec", False):
        options["preexec_fn"] = nothing
    own = str(os.stat("/proc/self/ns/net").st_ino)
    if case["warm"]:
        netless.run(["true"], isolation=isolation, check=True)
    before = state()
    os.kill(os.getppid(), DONE)
    signal.sigwait([GO])
    result = launch(witness, marker, options, start)
    with contextlib.suppress(OSError):  # it may be the call that fails
        result["mask"] = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [GO]))
    os.kill(os.getppid(), DONE)
    signal.sigwait([GO])
    after = state()
    result |= take(marker, own)
    result["changed"] = {
        name: (before[name], after[name])
        for name in before
        if before[name] != after[name]
        and not (name == "descriptors" and abs(after[name] - before[name]) == 2)
    }
    if result.pop("mask", before["mask"]) != before["mask"]:
        result["changed"]["mask"] = True
    again = launch(witness, marker, options, start)
    result["again"] = {**again, **take(marker, own)}
    result["guarantees"] = sorted(netless.probe(isolation).guarantees)
    os.write(out, json.dumps(result).encode())


def tracer_of(pid: int) -> int:
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("TracerPid"))


def trace(pid: int, case: dict) -> subprocess.Popen:
    command = ["strace", "-f", "-qq", "-o", case.get("log", "/dev/null"), "-p", str(pid)]
    for rule in case["inject"]:
        command += ["-e", f"inject={rule}"]
    strace = subprocess.Popen(command, stderr=subprocess.PIPE)
    deadline = time.monotonic() + PATIENCE
    while not tracer_of(pid):
        if strace.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"strace did not attach: {strace.stderr.read()}")
        time.sleep(0.001)
    return strace


def supervise(pid: int, case: dict, out: int) -> dict:
    """Leads the case through its stages; a stage that does not end is a hang."""
    if signal.sigtimedwait([DONE], PATIENCE) is None:
        return {"hang": "before the fault"}
    strace = trace(pid, case)
    os.kill(pid, GO)
    finished = signal.sigtimedwait([DONE], PATIENCE) is not None
    strace.terminate()
    strace.wait()
    strace.stderr.close()
    if not finished:
        return {"hang": "in the launch"}
    os.kill(pid, GO)
    if not select.select([out], [], [], PATIENCE)[0]:
        return {"hang": "after the fault"}
    text = os.read(out, 65536)
    return json.loads(text) if text else {"hang": "the case died"}


def main() -> None:
    witness, folder = sys.argv[1:]
    signal.pthread_sigmask(signal.SIG_BLOCK, [GO, DONE])
    for number, line in enumerate(sys.stdin):
        case = json.loads(line)
        marker = os.path.join(folder, f"ran-{os.getpid()}-{number}")
        out, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                sys.stdin.close()
                os.close(out)
                run_case(case, witness, marker, write_end)
            except BaseException as error:  # shows up as "the case died"
                sys.stderr.write(f"{case}: {error!r}\n")
            finally:
                os._exit(0)
        os.close(write_end)
        result = supervise(pid, case, out)
        os.close(out)
        if "hang" in result:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        print(json.dumps(result), flush=True)


main()
