"""The external wrapper: what is left where the extension is missing.

``unshare`` (util-linux) on Linux, ``sandbox-exec`` on macOS.  Between the wrapper
and the program runs a small stage (:mod:`netless._stage`) that proves the
isolation before it becomes the program, and tells a wrapper that failed from a
program that did.
"""

from __future__ import annotations

import contextlib
import errno
import marshal
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, NoReturn

from . import _descriptors, _diagnosis, _launcher, _native, _stage
from ._errors import NetworkIsolationUnavailable
from ._isolation import Isolation
from ._profile import profile

UNSHARE = ("/usr/bin/unshare", "/bin/unshare", "/run/current-system/sw/bin/unshare")
SANDBOX_EXEC = ("/usr/bin/sandbox-exec",)
OVERRIDE = "NETLESS_WRAPPER"
"""Environment variable with the absolute path of unshare or sandbox-exec elsewhere."""
PROOFS = ("verify-net", "verify-user", "loopback")


@dataclass(frozen=True)
class Settled:
    """A wrapper that was tried and works, and what it guarantees."""

    command: tuple[str, ...]
    guarantees: frozenset[str]
    others: tuple[int, ...]
    """Ids of the network namespaces that the trials were in, and that no child is to be in."""
    mechanism: str = "wrapper"


_settled: dict[tuple[object, ...], Settled] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_settled.clear)


def _find_program() -> str:
    override = os.environ.get(OVERRIDE)
    places = UNSHARE if sys.platform.startswith("linux") else SANDBOX_EXEC
    if override:
        places = (override,)
    for path in places:
        if os.path.isabs(path) and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise _missing(f"none of {', '.join(places)} can be executed")


def _missing(meaning: str, error: int | None = None) -> NetworkIsolationUnavailable:
    return NetworkIsolationUnavailable(
        "wrapper-missing",
        f"install util-linux, or set {OVERRIDE} to the absolute path of unshare",
        errno=error,
        meaning=meaning,
        summary="The wrapper program is missing or cannot be executed.",
    )


@contextlib.contextmanager
def _os_errors(step: str, what: str) -> Iterator[None]:
    """What the system refuses is lack of isolation; what it has run out of stays an OSError."""
    try:
        yield
    except OSError as error:
        if error.errno in _native.RESOURCE_ERRORS:
            raise
        raise NetworkIsolationUnavailable(
            "refused",
            _diagnosis.HINT,
            step=step,
            errno=error.errno,
            meaning=f"{what}: {error}",
            summary=_diagnosis.refused_in_words(error.errno),
        ) from error


def _prefix(isolation: Isolation) -> list[str]:
    """The external command up to the program.

    Raises:
        NetworkIsolationUnavailable: no wrapper here, or it cannot give this.
    """
    if sys.platform == "darwin":
        return [_find_program(), "-p", profile(isolation)]
    if not sys.platform.startswith("linux"):
        raise _diagnosis.unsupported_platform()
    if not isolation.unix_sockets:
        raise _needs_extension("unix_sockets=False")
    program = _find_program()
    identity = "--map-root-user" if isolation.map_root else "--map-current-user"
    return [program, "--user", identity, "--net", "--"]


def _needs_extension(what: str) -> NetworkIsolationUnavailable:
    return NetworkIsolationUnavailable(
        "extension-missing",
        "install netless from a wheel, or with a C compiler at hand",
        meaning=f"{what} needs the native extension",
        summary=_diagnosis.NO_EXTENSION.summary,
    )


def wrapper_command(
    args: Iterable[str | bytes | os.PathLike[str] | os.PathLike[bytes]],
    isolation: Isolation = Isolation(),  # noqa: B008
    *,
    native: bool = True,
    check: bool = False,
    path: str | None = None,
) -> list[str]:
    """The external command that runs ``args`` without network on this platform.

    That is ``netless-exec`` where it is installed with this package.  Without it, with
    ``native=False`` or with ``mechanism="wrapper"``, it is ``unshare`` or ``sandbox-exec``,
    which leave out the seal and cannot give loopback.

    Without ``check`` nothing is run and nothing is looked up: the wrapper's own failure is
    the exit status of the command.  With ``check``, for hosts that start processes
    themselves, isolation is required first and the program looked up then, so that both
    fail here and not in the host's process later.

    Args:
        args: the program and its arguments.
        isolation: what to keep it from.
        native: False for ``unshare`` or ``sandbox-exec`` even where ``netless-exec`` is installed.
        check: raise now what would be an exit status later.  The command then holds the
            program's absolute path.
        path: folders to look the program up in, as in the environment variable PATH, when
            ``check`` is true; None for this process's own.

    Raises:
        TypeError: ``args`` is one string or path, or one of its items, or another argument,
            is of a type that cannot be meant.
        ValueError: ``args`` is empty or holds a null byte.
        NetworkIsolationUnavailable: there is no wrapper on this platform, or it
            cannot give what ``isolation`` asks for; with ``check`` also: it does not work here.
        FileNotFoundError: with ``check``: there is no such program.
        PermissionError: with ``check``: the program may not be executed.
    """
    arguments = _texts(args)
    if not isinstance(isolation, Isolation):
        raise TypeError(f"isolation must be a netless.Isolation, not {isolation!r}")
    if path is not None and not isinstance(path, str):
        raise TypeError(f"path must be a str or None, not {path!r}")
    launcher = _launcher.find() if native and isolation.mechanism != "wrapper" else None
    if check:
        from ._popen import uses_wrapper

        if uses_wrapper(isolation):
            launcher = None  # its way cannot be tried without the extension
        _require(isolation, launcher)
        arguments[0] = _look_up(arguments[0], path)
    if launcher is not None:
        return _launcher.command(launcher, arguments, isolation)
    return [*_external(isolation), *arguments]


def _texts(args: Iterable[str | bytes | os.PathLike[str] | os.PathLike[bytes]]) -> list[str]:
    """The arguments of a command, each a str.

    Raises:
        TypeError, ValueError: see :func:`wrapper_command`.
    """
    if isinstance(args, (str, bytes, os.PathLike)):
        raise TypeError(f"args must be a sequence of a program and its arguments, not {args!r}")
    try:
        arguments = [os.fsdecode(argument) for argument in args]
    except TypeError as error:
        raise TypeError(f"args must be a sequence of strings or paths: {error}") from None
    if not arguments:
        raise ValueError("args must hold a program at least")
    if any("\0" in argument for argument in arguments):
        raise ValueError("embedded null byte")
    return arguments


def _external(isolation: Isolation) -> list[str]:
    """``unshare`` or ``sandbox-exec`` for this isolation, up to the program.

    Raises:
        NetworkIsolationUnavailable: there is none here, or it cannot give this.
    """
    own = "seatbelt" if sys.platform == "darwin" else "namespace"
    if isolation.mechanism not in ("auto", "wrapper", own):
        raise _needs_extension(f"mechanism={isolation.mechanism!r}")
    if isolation.loopback:
        raise _needs_extension("loopback=True in an external command")
    return _prefix(isolation)


def _require(isolation: Isolation, launcher: str | None) -> None:
    """Run what the command will run up to the program, once.

    Raises:
        NetworkIsolationUnavailable: it does not work here.
    """
    if launcher is not None:
        from ._probe import require

        require(isolation)
    else:
        _external(isolation)
        settle(replace(isolation, mechanism="wrapper", fallback=None))


def _look_up(program: str, path: str | None) -> str:
    """The absolute path of a program, found as :func:`os.execvpe` finds it.

    Raises:
        FileNotFoundError, PermissionError: as ``execve`` would.
    """
    from ._popen import candidates

    number = errno.ENOENT
    for found in candidates(program, None if path is None else {"PATH": path}):
        try:
            is_file = stat.S_ISREG(os.stat(found).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            number = error.errno or errno.EACCES
            continue
        if is_file and os.access(found, os.X_OK):
            return os.path.join(os.getcwd(), os.fsdecode(found))
        number = errno.EACCES
    raise OSError(number, os.strerror(number), program)


# ---- one launch ----


class _Launch:
    """The pipes and the orders of one stage."""

    def __init__(self, isolation: Isolation, others: Sequence[int] = ()) -> None:
        self.isolation = isolation
        self.others = others
        self.report_read, self.report_write = _pipe()
        self.complaints_read, self.complaints_write = _pipe()
        # What the program is to have as 0 and 2, kept from the wrapper and the stage.
        self.orders = self.stdin = self.stderr = -1

    def give_orders(
        self,
        argv: Sequence[bytes],
        candidates: Sequence[bytes],
        env: Sequence[tuple[bytes, bytes]] | None,
        streams: tuple[int, int],
        restore_signals: bool,
    ) -> None:
        """``env`` None: what this process has, as C sees it."""
        self.stdin, self.stderr = map(_copy_if_open, streams)
        orders = (
            list(argv),
            list(candidates),
            None if env is None else list(env),
            b"LC_CTYPE" in os.environb,
            _outside(self.others),
            self.isolation.loopback,
            self.stdin,
            self.stderr,
            restore_signals,
        )
        with _os_errors("channel", "the orders for the program's start cannot be kept"):
            self.orders = _file_of(marshal.dumps(orders))

    def command(self, prefix: Sequence[str]) -> list[str]:
        prefix = list(prefix)
        if self.isolation.loopback:  # the stage raises lo with them, then drops them
            prefix.insert(-1, "--keep-caps")
        if not sys.executable:
            raise NetworkIsolationUnavailable(
                "mechanism-unavailable",
                "set sys.executable to the path of a Python interpreter",
                meaning="the wrapper proves the isolation by a Python program, and this process "
                "knows no interpreter (sys.executable)",
                summary="The wrapper needs a Python interpreter, and this process knows none.",
            )
        stage = [sys.executable, "-I", "-S", str(Path(_stage.__file__))]
        return [*prefix, *stage, str(self.orders), str(self.report_write)]

    def passed(self) -> list[int]:
        return [fd for fd in (self.orders, self.report_write, self.stdin, self.stderr) if fd >= 0]

    def close_childs_ends(self) -> None:
        for name in ("report_write", "complaints_write", "orders", "stdin", "stderr"):
            if getattr(self, name) >= 0:
                os.close(getattr(self, name))
                setattr(self, name, -1)

    def close(self) -> None:
        self.close_childs_ends()
        for name in ("report_read", "complaints_read"):
            if getattr(self, name) >= 0:
                os.close(getattr(self, name))
                setattr(self, name, -1)


def _pipe() -> tuple[int, int]:
    read, write = os.pipe()
    return _moved(read), _moved(write)


def _above_stdio(fd: int) -> int:
    import fcntl

    # PyPy's fcntl has no name for it.
    command = getattr(fcntl, "F_DUPFD_CLOEXEC", 67 if sys.platform == "darwin" else 1030)
    return fcntl.fcntl(fd, command, 3)


def _copy_if_open(fd: int) -> int:
    try:
        return _above_stdio(fd) if fd >= 0 else -1
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        return -1


def _moved(fd: int) -> int:
    if fd > 2:
        return fd
    moved = _above_stdio(fd)
    os.close(fd)
    return moved


def _file_of(data: bytes) -> int:
    """A descriptor to read this from: a pipe where it fits, which needs no file system."""
    read, write = _pipe()
    try:
        os.set_blocking(write, False)
        if os.write(write, data) == len(data):
            return read
    finally:
        os.close(write)
    os.close(read)
    if hasattr(os, "memfd_create"):
        for flags in MEMORY_FILE:
            with contextlib.suppress(OSError):
                fd = os.memfd_create("netless", flags)
                with open(fd, "r+b") as file:
                    return _filled(file, data)
    import tempfile  # macOS, and where there are no such files

    with tempfile.TemporaryFile() as file:
        return _filled(file, data)


# MFD_CLOEXEC, and MFD_NOEXEC_SEAL: wanted where vm.memfd_noexec is 2, and not known
# before Linux 6.3.
MEMORY_FILE = (9, 1)


def _filled(file: IO[bytes], data: bytes) -> int:
    file.write(data)
    file.seek(0)
    return _above_stdio(file.fileno())


def _nothing() -> int:
    """A descriptor that has nothing to read: /dev/null may be missing."""
    read, write = _pipe()
    os.close(write)
    return read


def _outside(others: Sequence[int] = ()) -> _stage.Outside | None:
    """Where the calling thread is, and where a child is not to be; None without namespaces."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        user, network = (_stage.namespace(kind, "thread-self") for kind in ("user", "net"))
    except OSError as error:
        if error.errno in _native.RESOURCE_ERRORS:
            raise
        raise _explain("verify-net", error.errno or 0) from None
    return user, network, tuple(filter(None, (_stage.network_id(), *others)))


def _read_all(fd: int) -> bytes:
    blocks = []
    while block := os.read(fd, 65536):
        blocks.append(block)
    return b"".join(blocks)


def _explain(step: str, error: int) -> NetworkIsolationUnavailable:
    return _diagnosis.explain(step, error, _try_unshare)


def _try_unshare(flags: int) -> int:
    """Does a user namespace alone work? For the wording only."""
    command = [_find_program(), "--user", "--", "true"]
    try:
        done = subprocess.run(command, input=b"", capture_output=True, env={"PATH": os.defpath})
    except OSError as error:
        return error.errno or errno.EPERM
    return 0 if done.returncode == 0 else errno.EPERM


def _wrapper_failed(report: bytes, complaints: bytes) -> Exception:
    """The stage's own report, or else what the wrapper wrote to its standard error."""
    failed = re.match(rb"([a-z-]+) (\d+)\n", report)
    if failed:
        return _stage_failed(failed[1].decode(), int(failed[2]))
    text = complaints.decode(errors="replace").strip()
    if "--map-current-user" in text or "--keep-caps" in text:
        return NetworkIsolationUnavailable(
            "wrapper-too-old",
            "use util-linux 2.34 or newer, or install netless with its extension",
            step="unshare",
            meaning=text,
            summary="The wrapper program is too old.",
        )
    message = text.splitlines()[-1].rpartition(": ")[2] if text else ""
    numbers = (number for number in errno.errorcode if os.strerror(number) == message)
    step = next((s for s in ("uid_map", "gid_map", "setgroups") if s in text), "unshare")
    number = next(numbers, 0)
    if number in _native.RESOURCE_ERRORS:
        return OSError(number, message)
    error = _explain(step.replace("_", "-"), number)
    error.meaning = error.meaning or text
    return error


def _stage_failed(step: str, error: int) -> Exception:
    if error in _native.RESOURCE_ERRORS:
        return OSError(error, os.strerror(error))
    finding = _diagnosis.DISPROVED.get(error) if step in PROOFS else None
    if finding is None:
        return _explain(step, error)
    return _diagnosis.unavailable(finding, step=step, errno=error)


# ---- settling, and starting children ----


def settle(isolation: Isolation) -> Settled:
    """The wrapper for this isolation, tried once per process and credentials.

    Raises:
        NetworkIsolationUnavailable: it is missing, too old, refused, or cannot give this.
        OSError: out of processes or descriptors.
    """
    if isolation.mechanism not in ("auto", "wrapper"):
        raise _needs_extension(f"mechanism={isolation.mechanism!r}")
    key = (isolation, os.geteuid(), os.getegid(), os.environ.get(OVERRIDE))
    found = _settled.get(key)
    if found is None:
        found = _settled[key] = _try(isolation)
    return found


def _try(isolation: Isolation) -> Settled:
    prefix = _prefix(isolation)
    first = _trial(isolation, prefix, ())
    second = _trial(isolation, prefix, first)
    guarantees = {"ip", "inherited-sockets", "no-way-back", "unix-abstract", "siblings"}
    if sys.platform == "darwin":
        guarantees = {"ip", "inherited-sockets"}
        guarantees |= {"unix-path"} if not isolation.unix_sockets else set()
    if isolation.inherit_sockets:
        guarantees.discard("inherited-sockets")
    return Settled(tuple(prefix), frozenset(guarantees), first + second)


def _trial(isolation: Isolation, prefix: Sequence[str], others: Sequence[int]) -> tuple[int, ...]:
    """The stage alone: the id of the network namespace that it was in, where there are ids."""
    launch = _Launch(isolation, others)
    nothing = _nothing()
    try:
        launch.give_orders((), (), (), (-1, -1), False)
        command = launch.command(prefix)
        with (
            _wrapper_errors(command[0]),
            subprocess.Popen(
                command,
                stdin=nothing,
                stdout=launch.complaints_write,
                stderr=launch.complaints_write,
                pass_fds=launch.passed(),
                env={},
                cwd="/",
            ),
        ):
            launch.close_childs_ends()
            report, complaints = _read_all(launch.report_read), _read_all(launch.complaints_read)
    finally:
        os.close(nothing)
        launch.close()
    if not report.startswith(_stage.PROVED):
        raise _wrapper_failed(report, complaints)
    return tuple(map(int, report[len(_stage.PROVED) :].split()))


@contextlib.contextmanager
def _wrapper_errors(program: str, cwd: object = None) -> Iterator[None]:
    """An error that names the wrapper's file, and not the directory, is not the program's."""
    try:
        yield
    except OSError as error:
        is_its_own = error.filename == program != cwd
        if not is_its_own or error.errno in (errno.E2BIG, *_native.RESOURCE_ERRORS):
            raise
        raise _missing(f"{program} cannot be executed: {error.strerror}", error.errno) from error


@dataclass
class Start:
    """What :class:`netless.Popen` passes to :meth:`subprocess.Popen._execute_child`."""

    argv: Sequence[Any]
    executable: Any
    preexec_fn: Callable[[], object] | None
    close_fds: bool
    pass_fds: Sequence[int]
    cwd: Any
    env: Mapping[Any, Any] | None
    pipes: tuple[int, int, int, int, int, int]
    restore_signals: bool
    rest: Sequence[Any]

    def call(self, execute: Callable[..., None], **changes: Any) -> None:
        """``execute`` with the positional arguments of every Python since 3.10."""
        used = {**vars(self), **changes}
        execute(
            *(used[name] for name in ("argv", "executable", "preexec_fn", "close_fds")),
            *(used[name] for name in ("pass_fds", "cwd", "env")),
            *(None, 0, False),  # startupinfo, creationflags; shell is in argv already
            *used["pipes"],
            used["restore_signals"],
            *(used["rest"] if sys.version_info >= (3, 11) else used["rest"][:-1]),
        )


def start(
    isolation: Isolation,
    start: Start,
    candidates: Sequence[bytes],
    execute: Callable[..., None],
    reap: Callable[[], object],
    has_closed: Callable[[], bool],
) -> Settled:
    """Start the program through the wrapper.

    Args:
        isolation: what was asked for.
        start: the arguments of ``execute``.
        candidates: the paths to try, in order.
        execute: :meth:`subprocess.Popen._execute_child`, bound.
        reap: waits for the child that ``execute`` started.
        has_closed: did ``execute`` close the child's ends of the pipes that it got?

    Raises:
        NetworkIsolationUnavailable: the wrapper failed; the program was not run.
        OSError: what subprocess raises when the program cannot be executed.
    """
    found = settle(isolation)
    if not isolation.inherit_sockets:
        p2cread, _, _, c2pwrite, _, errwrite = start.pipes
        standard = [fd if fd >= 0 else n for n, fd in enumerate((p2cread, c2pwrite, errwrite))]
        _descriptors.check(
            standard=standard,
            passed=start.pass_fds,
            close_fds=start.close_fds,
            unix_sockets=isolation.unix_sockets,
        )
    if start.preexec_fn is not None:
        _start_in_process(isolation, start, execute)
        return found
    launch = _Launch(isolation, found.others)
    try:
        _start_wrapped(launch, found, start, candidates, execute, has_closed)
        report = _read_all(launch.report_read)
        if report != _stage.PROVED:
            reap()
            _raise(report, launch, start)
    finally:
        launch.close()
    return found


def _start_wrapped(
    launch: _Launch,
    found: Settled,
    start: Start,
    candidates: Sequence[bytes],
    execute: Callable[..., None],
    has_closed: Callable[[], bool],
) -> None:
    p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = start.pipes
    pairs = [(os.fsencode(key), os.fsencode(value)) for key, value in (start.env or {}).items()]
    _refuse_null_bytes(start.argv, candidates, pairs)
    launch.give_orders(
        [os.fsencode(argument) for argument in start.argv],
        candidates,
        None if start.env is None else pairs,
        (p2cread if p2cread >= 0 else 0, errwrite if errwrite >= 0 else 2),
        start.restore_signals,
    )
    command, nothing = launch.command(found.command), _nothing()
    try:
        with _wrapper_errors(command[0], start.cwd):
            start.call(
                execute,
                argv=command,
                executable=None,
                pass_fds=[*start.pass_fds, *launch.passed()],
                env=None if start.env is None else {},
                pipes=(nothing, -1, c2pread, c2pwrite, -1, launch.complaints_write),
            )
    finally:
        os.close(nothing)
        if has_closed():  # but did not see these two, which it made itself
            for mine, theirs in ((p2cwrite, p2cread), (errread, errwrite)):
                if mine >= 0:
                    os.close(theirs)
    launch.close_childs_ends()


def _refuse_null_bytes(
    argv: Sequence[Any], candidates: Sequence[bytes], pairs: Sequence[tuple[bytes, bytes]]
) -> None:
    """What subprocess would refuse; and names that hold a "="."""
    for name, _ in pairs:
        if b"=" in name:
            raise ValueError("illegal environment variable name")
    texts = [*map(os.fsencode, argv), *candidates, *(part for pair in pairs for part in pair)]
    if any(b"\0" in text for text in texts):
        raise ValueError("embedded null byte")


def _raise(report: bytes, launch: _Launch, start: Start) -> NoReturn:
    failed = re.match(_stage.PROVED + rb"exec (\d+)\n", report)
    if failed is None:
        raise _wrapper_failed(report, _read_all(launch.complaints_read))
    program = start.argv[0] if start.executable is None else start.executable
    raise OSError(int(failed[1]), os.strerror(int(failed[1])), program)


def become(isolation: Isolation, argv: Sequence[str], candidates: Sequence[bytes]) -> NoReturn:
    """Replace this process by the wrapper, and that by the program; no parent stays.

    Raises:
        NetworkIsolationUnavailable: the wrapper does not work here.
        InheritedSocketError: the program would inherit a network socket.
    """
    found = settle(isolation)
    if not isolation.inherit_sockets:
        _descriptors.check(standard=(0, 1, 2), passed=(), close_fds=False, unix_sockets=True)
    launch = _Launch(isolation, found.others)
    arguments = [os.fsencode(argument) for argument in argv]
    launch.give_orders(arguments, candidates, None, (0, 2), True)
    for fd in launch.passed():
        os.set_inheritable(fd, True)
    command = launch.command(found.command)
    with _wrapper_errors(command[0]):
        os.execve(command[0], [*command[:-1], "2", argv[0]], os.environ)
    raise AssertionError("execve came back")


# ---- preexec_fn: a Python function cannot pass through an external command ----


def _start_in_process(isolation: Isolation, start: Start, execute: Callable[..., None]) -> None:
    """The forked child isolates itself, then calls preexec_fn and becomes the program."""
    if sys.platform == "darwin":
        raise _needs_extension("preexec_fn")
    try:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
    except (ImportError, OSError):  # an interpreter without it, or linked statically
        raise _needs_extension("preexec_fn with this interpreter") from None
    report_read, report_write = _pipe()
    outside, wanted = _outside(), start.preexec_fn
    assert wanted is not None

    def isolate_first() -> None:
        try:
            _unshare_here(libc, isolation, outside)
        except BaseException as error:
            step, number = error.args if isinstance(error, _stage.Failed) else ("unshare", 0)
            os.write(report_write, f"{step} {number}\n".encode())
            os._exit(127)
        os.write(report_write, _stage.PROVED)
        wanted()

    try:
        try:
            start.call(execute, preexec_fn=isolate_first)
        finally:
            os.close(report_write)
        report = _read_all(report_read)
    finally:
        os.close(report_read)
    if report != _stage.PROVED:
        raise _wrapper_failed(report, b"")


def _unshare_here(libc: Any, isolation: Isolation, outside: _stage.Outside | None) -> None:
    """In the forked child: both namespaces, own maps, proof, loopback."""
    import ctypes

    uid, gid = os.geteuid(), os.getegid()
    if libc.unshare(_diagnosis.CLONE_NEWUSER | 0x40000000) != 0:  # CLONE_NEWNET
        raise _stage.Failed("unshare", ctypes.get_errno())
    for step, name, text in (
        ("setgroups", "setgroups", "deny"),
        ("uid-map", "uid_map", f"{0 if isolation.map_root else uid} {uid} 1"),
        ("gid-map", "gid_map", f"{0 if isolation.map_root else gid} {gid} 1"),
    ):
        try:
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        except OSError as error:
            raise _stage.Failed(step, error.errno or 0) from None
    step = "verify-net"
    try:
        _stage.prove(outside)
        if isolation.loopback:
            step = "loopback"
            _stage.raise_loopback()
    except OSError as error:
        raise _stage.Failed(step, error.errno or 0) from None
