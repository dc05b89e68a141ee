"""``asyncio.create_subprocess_exec`` and ``create_subprocess_shell`` with isolation.

They give asyncio's own :class:`asyncio.subprocess.Process`, on the default loop and
on others such as uvloop's: the child is started by :class:`netless.Popen`, the loop
only gets its pipes and, on Linux, its pidfd.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from asyncio.base_subprocess import BaseSubprocessTransport
from asyncio.log import logger
from asyncio.subprocess import Process, SubprocessStreamProtocol
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from weakref import WeakKeyDictionary

import netless

from ._isolation import DEFAULT, Isolation
from ._native import RESOURCE_ERRORS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, SubprocessProtocol
    from collections.abc import Callable, Sequence
    from typing import Any

    from typing_extensions import Unpack

    from ._signature import Launch, Path, Stream

    Popen = netless.Popen[Any]

__all__ = ["create_subprocess_exec", "create_subprocess_shell"]

LIMIT = 2**16  # bytes, as asyncio's default
LINGER = 0.05  # seconds that the starting thread waits for more to do
UNKNOWN_STATUS = 255  # asyncio's word for a child that somebody else reaped


async def create_subprocess_exec(
    program: Path,
    *args: Path,
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
    limit: int = LIMIT,
    isolation: Isolation = DEFAULT,
    **kwds: Unpack[Launch],
) -> Process:
    """:func:`asyncio.create_subprocess_exec` for a child without network.

    The loop goes on while the child is being started.  Only a ``preexec_fn`` is
    called from the loop's own thread, which waits for it.  ``limit`` is in bytes.

    Raises:
        NetworkIsolationUnavailable: the child could not be isolated and was not run.
        InheritedSocketError: the child would inherit a network socket and was not run.
        OSError, ValueError: as :func:`asyncio.create_subprocess_exec`.
    """
    streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
    return await _create((program, *args), False, limit, isolation=isolation, **streams, **kwds)


async def create_subprocess_shell(
    cmd: str | bytes,
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
    limit: int = LIMIT,
    *,
    isolation: Isolation = DEFAULT,
    **kwds: Unpack[Launch],
) -> Process:
    """:func:`asyncio.create_subprocess_shell` for a shell without network.

    As :func:`create_subprocess_exec` in everything else.
    """
    if not isinstance(cmd, (bytes, str)):
        raise ValueError("cmd must be a string")
    streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
    return await _create(cmd, True, limit, isolation=isolation, **streams, **kwds)


async def _create(
    command: Path | Sequence[Path], is_shell: bool, limit: int, **options: Any
) -> Process:
    loop = asyncio.get_running_loop()
    protocol = SubprocessStreamProtocol(limit=limit, loop=loop)
    transport = await connect(loop, protocol, command, is_shell, **options)
    return Process(transport, protocol, loop)


async def connect(
    loop: AbstractEventLoop,
    protocol: SubprocessProtocol,
    command: Any,
    is_shell: bool,
    **options: Any,
) -> BaseSubprocessTransport:
    """Start a child and connect it to the protocol, as ``loop.subprocess_exec`` does.

    ``options`` are the streams and the rest of what :class:`netless.Popen` takes.
    """
    _refuse_text(is_shell, options)
    popen = partial(netless.Popen, command, shell=is_shell, bufsize=0, **options)
    starter = _starters.setdefault(loop, _Starter())
    starter.enter()
    try:
        if options.get("preexec_fn") is None:
            process, pidfd = await starter.start(popen)
        else:
            process, pidfd = _start(popen)
    except BaseException:
        starter.leave()
        raise
    waiter = loop.create_future()
    streams = map(options.get, ("stdin", "stdout", "stderr"))
    try:
        transport = _Transport(process, loop, protocol, command, is_shell, *streams, 0, waiter)
    except BaseException:  # out of descriptors
        if pidfd >= 0:
            os.close(pidfd)
        _end(process)
        starter.leave()
        raise
    transport.watch(pidfd, starter.leave)
    try:
        await waiter
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException:
        transport.close()
        await transport._wait()
        raise
    return transport


def _refuse_text(is_shell: bool, options: dict[str, Any]) -> None:
    """What asyncio does not take, in its words. What remains of options is for Popen."""
    if options.pop("universal_newlines", False):
        raise ValueError("universal_newlines must be False")
    if bool(options.pop("shell", is_shell)) != is_shell:
        raise ValueError(f"shell must be {is_shell}")
    if options.pop("bufsize", 0) != 0:
        raise ValueError("bufsize must be 0")
    if options.pop("text", None):
        raise ValueError("text must be False")
    for name in ("encoding", "errors"):
        if options.pop(name, None) is not None:
            raise ValueError(f"{name} must be None")


# ---- starting: in one thread, which outlives what it started ----


def _start(popen: Callable[[], Popen]) -> tuple[Popen, int]:
    """The child and its pidfd; -1 where the system has none."""
    process = popen()
    try:
        return process, os.pidfd_open(process.pid)
    except AttributeError:
        return process, -1
    except OSError as error:
        if error.errno not in RESOURCE_ERRORS:
            return process, -1
        _end(process)
        raise


def _end(process: Popen) -> None:
    with process:  # closes its pipes and reaps it
        process.kill()


def _discard(started: Future[tuple[Popen, int]]) -> None:
    """End the child that nobody waits for any more, if it came to one."""
    if started.cancelled() or started.exception() is not None:
        return
    process, pidfd = started.result()
    if pidfd >= 0:
        os.close(pidfd)
    _end(process)


class _Starter:
    """The thread that starts the children of one loop; it outlives them a little.

    To Linux the thread that started a child is its parent: had it ended, a
    program that asks to die with its parent (PR_SET_PDEATHSIG) would be killed.
    """

    def __init__(self) -> None:
        self.children = 0
        self.executor: ThreadPoolExecutor | None = None
        self.lock = threading.Lock()
        self.wanted = threading.Event()

    def enter(self) -> None:
        """One more child, from before its start to when it was reaped."""
        self.children += 1

    def leave(self) -> None:
        """One child less; after the last one the thread waits a moment for another."""
        self.children -= 1
        if self.children == 0 and self.executor is not None:
            self.wanted.clear()
            self.executor.submit(self._linger, self.executor)

    def _linger(self, executor: ThreadPoolExecutor) -> None:
        if self.wanted.wait(LINGER):
            return
        with self.lock:
            if not self.wanted.is_set():
                executor.shutdown(wait=False)
                if self.executor is executor:
                    self.executor = None

    def _running(self) -> ThreadPoolExecutor:
        with self.lock:
            self.wanted.set()
            if self.executor is None:
                self.executor = ThreadPoolExecutor(1, thread_name_prefix="netless")
            return self.executor

    async def start(self, popen: Callable[[], Popen]) -> tuple[Popen, int]:
        """Start a child; when cancelled, it is killed and reaped before that comes out."""
        executor = self._running()
        started = executor.submit(_start, popen)
        try:
            return await asyncio.wrap_future(started)
        except BaseException as error:
            # The one thread takes this up when it is done with the start.
            discarded = executor.submit(_discard, started)
            if isinstance(error, asyncio.CancelledError):
                await asyncio.wrap_future(discarded)
            raise


_starters: WeakKeyDictionary[AbstractEventLoop, _Starter] = WeakKeyDictionary()


# ---- watching ----


class _Transport(BaseSubprocessTransport):
    """asyncio's transport for a child that was started already."""

    _pidfd = -1
    _proc: Popen

    def __init__(self, process: Popen, loop: AbstractEventLoop, *args: Any) -> None:
        self._on_exit: Callable[[], object] = bool  # what watch() is told
        if type(loop).__module__.partition(".")[0] == "uvloop":
            for name in ("stdin", "stdout", "stderr"):
                _lend(process, name)
        super().__init__(loop, *args, process=process)

    def _start(self, *, process: Popen, **_: Any) -> None:  # type: ignore[override]
        self._proc = process

    def watch(self, pidfd: int, on_exit: Callable[[], object]) -> None:
        """Have the loop notice the child's end: by pidfd, or else by a thread that waits."""
        loop = self._loop
        self._on_exit = on_exit
        if pidfd >= 0:
            self._pidfd = pidfd
            loop.add_reader(pidfd, self._reap)
            return
        threading.Thread(
            target=_wait_for,
            name=f"netless-wait-{self._proc.pid}",
            args=(loop, self._proc, self._reap),
            daemon=True,
        ).start()

    # A pid is given back to the kernel, which may give it to a stranger, and its end is made
    # known in one step of the loop: whoever finds no returncode there may signal the pid.

    def _reap(self) -> None:
        """The child has ended."""
        process = self._proc
        if self._returncode is not None:  # close() has seen it before
            return
        self._close_pidfd()
        if process.returncode is None:
            try:
                _, status = os.waitpid(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
            except ChildProcessError:
                process.returncode = UNKNOWN_STATUS
                logger.warning("exit status of child %d was taken by others", process.pid)
        try:
            self._process_exited(process.returncode)
        finally:
            self._on_exit()

    def close(self) -> None:
        """As asyncio's, which reaps a child that has ended by asking it."""
        super().close()
        process, loop = self._proc, self._loop
        if process is not None and process.returncode is not None and not loop.is_closed():
            self._reap()

    def _close_pidfd(self) -> None:
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def terminate(self) -> None:
        """Send SIGTERM, as :meth:`send_signal` does."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, as :meth:`send_signal` does."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Send it unless the child's end is known; never to a process that got its number.

        Not by Popen.send_signal, which reaps a child that has ended.
        """
        self._check_proc()
        process = self._proc
        if self._returncode is not None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            if not self._signal_by_pidfd(number) and not _is_taken(process.pid):
                os.kill(process.pid, number)

    def _signal_by_pidfd(self, number: int) -> bool:
        """False where that is not to be had; why a child may not be signalled, kill says."""
        if self._pidfd < 0:
            return False
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            raise
        except (AttributeError, OSError):
            return False
        return True

    def __del__(self) -> None:
        try:
            super().__del__()
        finally:
            if self._pidfd >= 0:  # the loop was closed before the child ended
                os.close(self._pidfd)


def _lend(process: Popen, name: str) -> None:
    """A pipe that libuv alone closes.

    uvloop has libuv close the descriptor and then closes the file object too, which
    would hit whatever another thread has opened in between.
    """
    file = getattr(process, name)
    if file is None:
        return
    with file:
        lent = os.dup(file.fileno())
    setattr(process, name, open(lent, file.mode, buffering=0, closefd=False))  # noqa: SIM115


def _is_taken(pid: int) -> bool:
    """Has somebody else reaped this child? Its number may be a stranger's then."""
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return False
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return True
    return False


def _wait_for(loop: AbstractEventLoop, process: Popen, reap: Callable[[], object]) -> None:
    """In a thread: see the child's end, and leave the child to the loop."""
    if hasattr(os, "waitid"):
        with suppress(ChildProcessError):  # taken by others
            _wait_until_ended(process.pid)
    else:  # nothing waits without reaping there: as asyncio's own thread
        process.wait()
    try:
        loop.call_soon_threadsafe(reap)
    except RuntimeError:  # the loop was closed meanwhile
        process.wait()


def _wait_until_ended(pid: int) -> None:
    while (found := os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)) is not None:
        if found.si_code != os.CLD_STOPPED:
            return
        # macOS tells of a stopped child as well; taken, so that the next call waits again.
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG)
