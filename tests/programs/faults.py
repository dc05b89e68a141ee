"""faults.py WITNESS LIBRARY FOLDER: launches with faults, one JSON line in and one out for each.

A case is forked from this process, so that it is as good as a fresh interpreter
and costs a hundredth of one.  Its faults come right before the launch: strace is
attached, or the case puts a seccomp filter around itself.  From then on any system
call of the case may be the one that fails, so this side looks at the case from
outside, and the two talk by signals and by memory that they share.
"""

import concurrent.futures
import contextlib
import ctypes
import gc
import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker

import netless
import netless.pool  # now, not in the middle of a case
from netless import _launcher, _native, _process

PATIENCE = 60  # seconds after which a case counts as hanging
ENDING = 0.2  # seconds in which the kernel is done with a thread or process that has ended
GO, DONE = signal.SIGUSR1, signal.SIGUSR2
PR_SET_SECCOMP, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 22, 4, 36, 38
SECCOMP_MODE_FILTER = 2
NOBODY = 65534
UNABLE = 120  # exit status of what was to become netless-exec
OF_LIBC = {32, 33}  # what it catches once there are threads
KEPT = ("user:[", "net:[")  # the namespace that netless keeps between launches

libc = ctypes.CDLL(None, use_errno=True)
WITNESS, LIBRARY, FOLDER = sys.argv[1:]
settle_alone = _native._settle_alone
witness_here = ctypes.CDLL(LIBRARY).witness
ADDRESS = f"netless-faults-{os.getpid()}"


def nothing() -> None:
    pass


class Box:
    """A memory that a case shares with its supervisor: stages, a process, what came of it."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 1 << 17)

    def reach(self, stage: int) -> None:
        self.memory[0] = stage
        with contextlib.suppress(PermissionError):  # the case is somebody else
            os.kill(os.getppid(), DONE)

    @property
    def stage(self) -> int:
        return self.memory[0]

    def release(self, stage: int) -> None:
        self.memory[1] = stage

    def wait_after(self, stage: int) -> None:
        """Without a signal: a fault may have left it unblocked, or blocked for ever."""
        while self.memory[1] < stage:
            time.sleep(0.0005)

    def point_to(self, pid: int) -> None:
        """The process that gets the faults, where that is not the case itself."""
        self.memory[4:8] = struct.pack("I", pid)

    @property
    def subject(self) -> int:
        return struct.unpack("I", self.memory[4:8])[0]

    def put(self, found: dict) -> None:
        data = json.dumps(found).encode()
        self.memory[16 : 16 + len(data)] = data
        self.memory[8:12] = struct.pack("I", len(data))

    def get(self) -> dict:
        (size,) = struct.unpack("I", self.memory[8:12])
        return json.loads(self.memory[16 : 16 + size]) if size else {}


# ---- the case's side ----


def refuse(numbers: list[int], error: int) -> None:
    """A filter around this process, as a sandbox puts it: these calls are refused from now on."""
    load, equal, answer = 0x20, 0x15, 0x06
    code = [(load, 0, 0, 0)]
    for at, number in enumerate(numbers):
        code.append((equal, len(numbers) - at, 0, number))
    code += [(answer, 0, 0, 0x7FFF0000), (answer, 0, 0, 0x00050000 | error)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in code))
    head = ctypes.create_string_buffer(struct.pack("HP", len(code), ctypes.addressof(program)))
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, head) != 0:
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, head) != 0:
            raise OSError(ctypes.get_errno(), "seccomp")


def contraband(kind: str | None, options: dict) -> object:
    """Something that leads out, where the child could get it."""
    if kind is None:
        return None
    if kind == "namespace":
        held = open("/proc/self/ns/net")  # noqa: SIM115
        options["pass_fds"] = [held.fileno()]
        return held
    held = socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET)
    if kind in ("stdin", "unix"):
        options["stdin"] = held
    else:  # close-on-exec no more
        held.set_inheritable(True)
    return held


def take_text(file) -> str:
    file.seek(0)
    text = file.read()
    file.seek(0)
    file.truncate()
    return text


def reported(line: str, words: str) -> Exception:
    """What netless-exec's --fd-report means in Python, with what it said on stderr."""
    step, number, cause, *descriptor = line.split()
    if descriptor:
        fd, family = map(int, descriptor)
        kind = cause.removeprefix("inherited-")
        return netless.InheritedSocketError(fd, None if family < 0 else family, kind)
    if cause == "-":
        return OSError(int(number), words)
    return netless.NetworkIsolationUnavailable(
        cause, step=None if step == "-" else step, errno=int(number) or None, meaning=words
    )


class Case:
    """What one case does: made ready before its faults come, started after."""

    def __init__(self, case: dict, marker: str) -> None:
        self.isolation = netless.Isolation(**case.get("isolation", {}))
        self.options = dict(case.get("options", {}))
        self.marker = marker
        self.plain = case.get("plain", False)
        self.promised = None
        if self.options.pop("preexec", False):
            self.options["preexec_fn"] = nothing
        self.held = contraband(case.get("contraband"), self.options)
        self.subject = None
        self.start = getattr(self, "by_" + case.get("entry", "popen"))

    def warm(self) -> None:
        netless.run(["true"], isolation=self.isolation, check=True)

    def by_popen(self) -> int:
        start, options = netless.Popen, {**self.options, "isolation": self.isolation}
        if self.plain:
            start, options = subprocess.Popen, self.options
        with start([WITNESS, self.marker, ADDRESS], **options) as child:
            self.mechanism = getattr(child, "mechanism", None)
            return child.wait()

    def by_isolate(self) -> int:
        if not self.plain:
            plan = _process.enter(self.isolation)
            self.mechanism, self.promised = plan.mechanism, plan.guarantees
        return self.mark()

    def context(self, method: str):
        if self.plain:
            import multiprocessing

            return multiprocessing.get_context(method)
        return netless.get_context(method, self.isolation)

    def finish(self, process) -> int:
        process.start()
        process.join()
        return process.exitcode

    def settle_alone(self, isolation: netless.Isolation):
        """As netless's own, which tells what a forked worker is promised."""
        plan = settle_alone(isolation)
        self.promised = plan.guarantees
        return plan

    def by_fork(self) -> int:
        _native._settle_alone = self.settle_alone
        return self.finish(self.context("fork").Process(target=self.mark))

    def by_spawn(self) -> int:
        command = [WITNESS, self.marker, ADDRESS]
        return self.finish(self.context("spawn").Process(target=os.execv, args=(WITNESS, command)))

    def by_executor(self) -> int:
        _native._settle_alone = self.settle_alone
        executor = concurrent.futures if self.plain else netless
        with executor.ProcessPoolExecutor(1, self.context("fork")) as pool:
            return pool.submit(mark, self.marker).result()

    def launcher(self, refused: dict | None = None) -> int:
        """A process that becomes netless-exec when it is told to."""
        command = [WITNESS, self.marker, ADDRESS]
        if not self.plain:
            command = _launcher.command(_launcher.find(), command, self.isolation)
            command[1:1] = ["--fd-report", str(self.report.fileno())]
        pid = os.fork()
        if pid == 0:
            try:
                signal.sigwait([GO])
                os.dup2(self.words.fileno(), 2)
                if refused is not None:
                    refuse(**refused)
                os.execv(command[0], command)
            finally:
                os._exit(UNABLE)
        return pid

    def by_exec(self) -> int:
        pid, self.subject = self.subject or self.launcher(), None
        os.kill(pid, GO)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        line, words = take_text(self.report), take_text(self.words)
        if line:
            raise reported(line, words)
        return status

    def mark(self) -> int:
        return mark(self.marker)

    def make_subject(self, box: Box, refused: dict | None) -> None:
        """netless-exec's faults are its own; what it leaves behind comes to this process."""
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.report = tempfile.TemporaryFile("w+", dir=FOLDER)  # noqa: SIM115
        self.words = tempfile.TemporaryFile("w+", dir=FOLDER)  # noqa: SIM115
        os.set_inheritable(self.report.fileno(), True)
        self.subject = self.launcher(refused)
        box.point_to(self.subject)


def mark(marker: str) -> int:
    """What witness.c does, in this very process."""
    return witness_here(marker.encode(), ADDRESS.encode())


def described(error: Exception) -> dict:
    """The error as the caller sees it."""
    typed = (
        *(netless.NetworkIsolationUnavailable, netless.InheritedSocketError),
        *(OSError, MemoryError, subprocess.SubprocessError, BrokenProcessPool),
    )
    found = {"kind": type(error).__name__, "typed": isinstance(error, typed), "text": str(error)}
    return {**found, **{name: getattr(error, name, None) for name in ("step", "errno", "cause")}}


def attempt(case: Case) -> dict:
    result = {"kind": None, "step": None, "errno": None, "cause": None, "status": None}
    case.mechanism = case.promised = None
    try:
        result["status"] = case.start()
    except Exception as error:
        result |= described(error)
    gc.collect()  # an executor's queues end with it
    if case.promised is not None:
        result["promised"] = sorted(case.promised)
    return {**result, "mechanism": case.mechanism}


def become_somebody() -> None:
    """Root's cases of what root cannot have: as a user without privileges."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def run_case(order: dict, marker: str, box: Box) -> None:
    """In a process of its own: warm up, wait for the faults, launch, wait for their end."""
    if order.get("somebody"):
        become_somebody()
    case = Case(order, marker)
    if order["warm"]:
        case.warm()
    box.point_to(os.getpid())
    if case.start == case.by_exec:
        case.make_subject(box, order.get("refused"))
    found = {}
    if case.held is not None:
        held = os.fstat(case.held.fileno())
        found["held"] = f"{held.st_dev}:{held.st_ino}"
    box.reach(1)
    signal.sigwait([GO])
    if "refused" in order and case.start != case.by_exec:
        refuse(**order["refused"])
    found |= attempt(case)
    box.put(found)
    box.reach(2)
    box.wait_after(2)
    if case.start != case.by_isolate:
        found["again"] = attempt(case)
    guarantees = found.get("promised") or sorted(netless.probe(case.isolation).guarantees)
    box.put({**found, "guarantees": guarantees})
    box.reach(3)
    box.wait_after(3)


# ---- the supervisor's side ----


def read(path: str) -> str:
    with open(path) as file:
        return file.read()


def status_of(pid: int) -> dict[str, str]:
    lines = read(f"/proc/{pid}/status").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def signals(mask: str) -> set[int]:
    return {number for number in range(1, 65) if int(mask, 16) >> (number - 1) & 1}


def open_files(pid: int) -> list[str]:
    """Without the namespace that is kept, which may be made or remade."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        link = os.readlink(f"/proc/{pid}/fd/{name}")
        if not link.startswith(KEPT):
            found.append(f"{name} {link}")
    return sorted(found)


def state_of(pid: int) -> dict:
    """What a launch has to leave as it was, seen from outside."""
    status = status_of(pid)
    tasks = [f"/proc/{pid}/task/{task}/children" for task in os.listdir(f"/proc/{pid}/task")]
    return {
        "descriptors": open_files(pid),
        "children": [read(task) for task in tasks if read(task)],
        "mask": sorted(signals(status["SigBlk"]) - {GO}),  # which is waited for, or not yet
        "handlers": [status["SigIgn"], sorted(signals(status["SigCgt"]) - OF_LIBC)],
        "threads": status["Threads"],
        "umask": status["Umask"],
        "cwd": os.readlink(f"/proc/{pid}/cwd"),
        "session": os.getsid(pid),
        "limits": read(f"/proc/{pid}/limits"),
    }


def take(marker: str) -> dict:
    """What the child left word of; "net" is None where it did not run."""
    try:
        words = os.readlink(marker).split()
    except FileNotFoundError:
        return {"net": None}
    os.unlink(marker)
    found = dict(word.split("=") for word in words)
    return {**found, "open": found["open"].split(",")[:-1]}


def is_alive(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def reached(pid: int, box: Box, stage: int) -> bool:
    """Waits until the case is there; not where it hangs or has ended."""
    end = time.monotonic() + PATIENCE
    while box.stage < stage:
        if not is_alive(pid) or time.monotonic() > end:
            return box.stage >= stage
        signal.sigtimedwait([DONE, signal.SIGCHLD], 0.01)
    return True


def trace(pid: int, order: dict) -> subprocess.Popen:
    command = ["strace", "-f", "-qq", "-o", order.get("log", "/dev/null"), "-p", str(pid)]
    for rule in order["inject"]:
        command += ["-e", f"inject={rule}"]
    strace = subprocess.Popen(command, stderr=subprocess.PIPE)
    deadline = time.monotonic() + PATIENCE
    while status_of(pid)["TracerPid"] == "0":
        if strace.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"strace did not attach: {strace.stderr.read()}")
        time.sleep(0.001)
    return strace


def end(strace: subprocess.Popen) -> None:
    strace.terminate()
    strace.wait()
    strace.stderr.close()


def changes(before: dict, pid: int) -> dict:
    """What is not as it was, once the threads that Python has joined are gone."""
    deadline = time.monotonic() + ENDING
    while True:
        after = state_of(pid)
        changed = {
            name: (before[name], after[name]) for name in before if before[name] != after[name]
        }
        if not changed or time.monotonic() > deadline:
            return changed
        time.sleep(0.01)


def supervise(pid: int, order: dict, marker: str, box: Box) -> dict:
    """Leads the case through its stages; a stage that does not end is a hang."""
    if not reached(pid, box, 1):
        return {"hang": "before the fault"}
    before = state_of(pid)
    if box.subject != pid:  # it is to be gone
        before["children"] = []
    strace = None if "refused" in order else trace(box.subject, order)
    os.kill(pid, GO)
    finished = reached(pid, box, 2)
    if strace is not None:
        end(strace)
    if not finished:
        return {"hang" if is_alive(pid) else "dead": "in the launch", **take(marker)}
    result = {**box.get(), **take(marker), "changed": changes(before, pid)}
    box.release(2)
    if not reached(pid, box, 3):
        return {"hang" if is_alive(pid) else "dead": "after the fault", **result}
    last = box.get()
    if "again" in last:
        result["again"] = {**last["again"], **take(marker)}
    return {**result, "guarantees": last["guarantees"]}


def kill_all(pid: int) -> None:
    """A case, and what it has started."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for child in read(f"/proc/{pid}/task/{pid}/children").split():
            kill_all(int(child))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def run(order: dict, marker: str, null: int) -> dict:
    box = Box()
    pid = os.fork()
    if pid == 0:
        try:
            for fd in (0, 1):  # a fault may make anything read or write there
                os.dup2(null, fd)
            run_case(order, marker, box)
        except BaseException as error:  # shows up as a case that died
            sys.stderr.write(f"{order}: {error!r}\n")
        finally:
            os._exit(0)
    try:
        return supervise(pid, order, marker, box)
    finally:
        kill_all(pid)
        os.waitpid(pid, 0)


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [GO, DONE, signal.SIGCHLD])
    null = os.open(os.devnull, os.O_RDWR)
    resource_tracker.ensure_running()  # so that no case starts one
    gc.freeze()  # cases are not to copy what they only look through
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + ADDRESS)
        outside = {
            "net": str(os.stat("/proc/self/ns/net").st_ino),
            "user": str(os.stat("/proc/self/ns/user").st_ino),
        }
        print(json.dumps(outside), flush=True)
        for number, line in enumerate(sys.stdin):
            marker = os.path.join(FOLDER, f"ran-{os.getpid()}-{number}")
            print(json.dumps(run(json.loads(line), marker, null)), flush=True)


if __name__ == "__main__":
    main()
