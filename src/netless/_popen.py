"""``subprocess`` with isolation: :class:`Popen` and the functions built on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from os import PathLike

import netless

from . import _diagnosis, _native
from ._isolation import DEFAULT, Isolation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from subprocess import CompletedProcess
    from typing import Any, NoReturn

    from ._signature import Command, Path


IS_SUPPORTED = sys.platform in ("linux", "darwin")


def uses_wrapper(isolation: Isolation) -> bool:
    """Is the external wrapper what this isolation comes down to here?"""
    return isolation.mechanism == "wrapper" or not _native.is_available()


EXTENSION_MISSING = (
    "the native extension of netless is missing: the wrapper isolates instead, slower and without"
    " the seccomp filter and Landlock; install netless again, from a wheel or with a C compiler"
)
OWN_MODULES = ("netless", "subprocess")
_has_warned = False


def _warn_of_the_wrapper() -> None:
    """Once, at the line that called netless; what was installed is weaker than what was meant."""
    global _has_warned
    if _has_warned:
        return
    import warnings

    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in OWN_MODULES:
        level, frame = level + 1, frame.f_back
    wanted = 'Isolation(mechanism="wrapper") asks for it and is not warned'
    warnings.warn(f"{EXTENSION_MISSING} ({wanted})", RuntimeWarning, stacklevel=level)
    _has_warned = True


class Popen(subprocess.Popen):  # type: ignore[type-arg]  # __init__.pyi has the types
    """A :class:`subprocess.Popen` whose child has no network.

    Takes every argument of :class:`subprocess.Popen` and ``isolation``.  The
    child is isolated before anything of the program, or of ``preexec_fn``, runs.

    What differs from :mod:`subprocess`:

    * Descriptors that lead to a network (sockets other than AF_UNIX, tun
      devices, namespace handles, pidfds, ...) are not inherited:
      :class:`netless.InheritedSocketError`, unless ``isolation.inherit_sockets``.
    * The child has no capability to change its namespaces.  Set-user-ID programs
      gain nothing when the caller is not root, and programs with such a file
      capability (``ping`` on many systems) are refused: :class:`PermissionError`.
    * ``preexec_fn`` runs with the parent's Python-level signal handlers reset to
      the default actions.

    Attributes:
        isolation: what was asked for.
        mechanism: what the kernel was asked with, e.g. ``"namespace"``; None
            until the child was started.

    Warns:
        RuntimeWarning: once, where the wrapper isolates because the native extension is missing.

    Raises:
        NetworkIsolationUnavailable: the child could not be isolated and was not run.
        InheritedSocketError: the child would inherit a network socket and was not run.
        OSError, ValueError, subprocess.SubprocessError: as :class:`subprocess.Popen`.
    """

    isolation: Isolation
    mechanism: str | None = None

    def __init__(self, *args: Any, isolation: Isolation = DEFAULT, **kwargs: Any) -> None:
        if not isinstance(isolation, Isolation):
            raise TypeError(f"isolation must be a netless.Isolation, not {isolation!r}")
        if not IS_SUPPORTED:
            raise _diagnosis.unsupported_platform()
        self.isolation = isolation
        super().__init__(*args, **kwargs)

    # Called by subprocess.Popen.__init__ with the pipes made and every argument checked.
    def _execute_child(
        self,
        args: Command,
        executable: Path | None,
        preexec_fn: Callable[[], object] | None,
        close_fds: bool,
        pass_fds: Sequence[int],
        cwd: Path | None,
        env: Mapping[Any, Any] | None,
        startupinfo: object,
        creationflags: int,
        shell: bool,
        p2cread: int,
        p2cwrite: int,
        c2pread: int,
        c2pwrite: int,
        errread: int,
        errwrite: int,
        restore_signals: bool,
        gid: int | None,
        gids: Sequence[int] | None,
        uid: int | None,
        umask: int,
        start_new_session: bool,
        process_group: int = -1,
    ) -> None:
        argv = args if type(args) is list and not shell else _argument_list(args, shell, executable)
        program = argv[0] if executable is None else executable
        pipes = (p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        if type(program) is str and "/" in program:
            paths: Sequence[Any] = (program,)
        else:
            paths = candidates(program, env)
        isolation = self.isolation
        if isolation.mechanism == "wrapper" or not _native.MECHANISM:
            ids = (gid, gids, uid, umask, start_new_session, process_group)
            self._execute_wrapped(
                *(argv, executable, [*map(os.fsencode, paths)], preexec_fn),
                *(close_fds, pass_fds, cwd, env),
                *(pipes, restore_signals, ids),
            )
            return
        sys.audit("subprocess.Popen", program, argv, cwd, env)
        variables = None if env is None else _environment(env)
        launch = (
            argv,
            paths,
            variables,
            cwd,
            pipes,
            close_fds,
            restore_signals,
            start_new_session,
            process_group,
            umask,
        )
        if preexec_fn or pass_fds or uid is not None or gid is not None or gids is not None:
            request = _native.Request(*launch)
            request.set_pass_fds(pass_fds)
            request.set_ids(uid, gid, gids)
            if preexec_fn is None:
                result, plan = _native.start(isolation, request)
            else:
                result, plan = _native.start_with(isolation, request, preexec_fn)
        else:
            result, plan = _native.spawn(isolation, launch)
        if type(result) is not int:
            _raise_failure(result, program, cwd)
        self.pid = result
        self.mechanism = plan.mechanism
        self._child_created = True
        if pipes == _native.NO_PIPES:
            self._closed_child_pipe_fds = True
        else:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _execute_wrapped(
        self,
        argv: Sequence[Path],
        executable: Path | None,
        paths: Sequence[bytes],
        preexec_fn: Callable[[], object] | None,
        close_fds: bool,
        pass_fds: Sequence[int],
        cwd: Path | None,
        env: Mapping[Any, Any] | None,
        pipes: tuple[int, int, int, int, int, int],
        restore_signals: bool,
        ids: tuple[Any, ...],
    ) -> None:
        if ids[:3] != (None, None, None):
            raise ValueError("user, group and extra_groups need netless's native extension")
        from . import _wrapper

        start = _wrapper.Start(
            argv=argv,
            executable=executable,
            preexec_fn=preexec_fn,
            close_fds=close_fds,
            pass_fds=tuple(pass_fds),
            cwd=cwd,
            env=env,
            pipes=pipes,
            restore_signals=restore_signals,
            rest=ids,
        )
        if self.isolation.mechanism != "wrapper":
            _wrapper.settle(self.isolation)  # where it cannot be had either, that is what is said
            _warn_of_the_wrapper()
        execute = super()._execute_child  # type: ignore[misc]

        def has_closed() -> bool:
            return self._closed_child_pipe_fds

        found = _wrapper.start(self.isolation, start, paths, execute, self.wait, has_closed)
        self.mechanism = found.mechanism


def _argument_list(args: Command, shell: bool, executable: Path | None) -> list[Path]:
    if isinstance(args, (str, bytes)):
        argv: list[Path] = [args]
    elif isinstance(args, PathLike):
        if shell:
            raise TypeError("path-like args is not allowed when shell is true")
        argv = [args]
    else:
        argv = list(args)
    if shell:
        argv = ["/bin/sh", "-c", *argv]
        if executable:
            argv[0] = executable
    return argv


def candidates(program: Path, env: Mapping[Any, Any] | None) -> list[bytes]:
    """The paths to try, as :func:`os.execvpe` finds them."""
    name = os.fsencode(program)
    if b"/" in name:
        return [name]
    folders = os.get_exec_path(env) if env is not None else _path()
    return [os.path.join(os.fsencode(folder), name) for folder in folders]


def _path() -> list[str]:
    """As :func:`os.get_exec_path`, which looks for more than this process can have."""
    return os.environ.get("PATH", os.defpath).split(os.pathsep)


def _environment(env: Mapping[Any, Any]) -> list[bytes]:
    entries = []
    for key, value in env.items():
        name = os.fsencode(key)
        if b"=" in name:
            raise ValueError("illegal environment variable name")
        entries.append(name + b"=" + os.fsencode(value))
    return entries


def _raise_failure(report: Any, program: Path, cwd: Path | None) -> NoReturn:
    if not _native.is_ordinary(report):
        _native.raise_isolation_failure(report)
    step = _native.step_name(report)
    if step == "preexec":
        raise subprocess.SubprocessError("Exception occurred in preexec_fn.")
    message = os.strerror(report.error)
    if step == "exec":
        raise OSError(report.error, message, program)
    if step == "cwd":
        raise OSError(report.error, message, cwd)
    raise OSError(report.error, message)


# ---- the functions of subprocess, on top of this Popen ----
#
# They find each other, and everything else that is public, in the module netless when they are
# called, and call each other with the arguments that subprocess's do: what somebody replaces
# there, a test above all, is what is used.

# Whether getoutput and getstatusoutput of this Python have these parameters, and pass them on.
PASSES_ENCODING = sys.version_info >= (3, 11)


def _add_isolation(options: dict[str, Any], isolation: Isolation) -> None:
    """Only where it is not the default: what stands in for Popen may not know it."""
    is_default = isolation is DEFAULT or (type(isolation) is Isolation and isolation == DEFAULT)
    if not is_default:
        options["isolation"] = isolation


def _text_options(encoding: str | None, errors: str | None) -> dict[str, Any]:
    if PASSES_ENCODING or encoding is not None or errors is not None:
        return {"encoding": encoding, "errors": errors}
    return {}


def run(
    *popenargs: Any,
    input: str | bytes | None = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    isolation: Isolation = DEFAULT,
    **kwargs: Any,
) -> CompletedProcess[Any]:
    """:func:`subprocess.run` for a child without network.

    ``timeout`` is in seconds.

    Raises:
        NetworkIsolationUnavailable: the child could not be isolated and was not run.
        CalledProcessError: ``check`` is true and the exit status is not zero.
        TimeoutExpired: the child was killed because the time ran out.
    """
    if input is not None:
        if kwargs.get("stdin") is not None:
            raise ValueError("stdin and input arguments may not both be used.")
        kwargs["stdin"] = netless.PIPE
    if capture_output:
        if kwargs.get("stdout") is not None or kwargs.get("stderr") is not None:
            raise ValueError("stdout and stderr arguments may not be used with capture_output.")
        kwargs["stdout"] = kwargs["stderr"] = netless.PIPE

    _add_isolation(kwargs, isolation)
    with netless.Popen(*popenargs, **kwargs) as process:
        try:
            stdout, stderr = process.communicate(input, timeout=timeout)
        except netless.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        except BaseException:
            process.kill()
            raise
        status: Any = process.poll()
        if check and status:
            raise netless.CalledProcessError(status, process.args, output=stdout, stderr=stderr)
    return netless.CompletedProcess(process.args, status, stdout, stderr)


def check_output(
    *popenargs: Any, timeout: float | None = None, isolation: Isolation = DEFAULT, **kwargs: Any
) -> Any:
    """:func:`subprocess.check_output` for a child without network: what it wrote to stdout.

    ``timeout`` is in seconds.
    """
    for name in ("stdout", "check"):
        if name in kwargs:
            raise ValueError(f"{name} argument not allowed, it will be overridden.")
    if "input" in kwargs and kwargs["input"] is None:
        # An explicit None means no input, not the parent's stdin.
        text = kwargs.get("text") or kwargs.get("universal_newlines")
        kwargs["input"] = "" if text or kwargs.get("encoding") or kwargs.get("errors") else b""
    _add_isolation(kwargs, isolation)
    return netless.run(
        *popenargs, stdout=netless.PIPE, timeout=timeout, check=True, **kwargs
    ).stdout


def call(
    *popenargs: Any, timeout: float | None = None, isolation: Isolation = DEFAULT, **kwargs: Any
) -> int:
    """:func:`subprocess.call` for a child without network: its exit status.

    ``timeout`` is in seconds.
    """
    _add_isolation(kwargs, isolation)
    with netless.Popen(*popenargs, **kwargs) as process:
        try:
            return process.wait(timeout=timeout)
        except BaseException:
            process.kill()
            raise


def check_call(*popenargs: Any, isolation: Isolation = DEFAULT, **kwargs: Any) -> int:
    """:func:`subprocess.check_call` for a child without network: 0, or CalledProcessError."""
    command = kwargs.get("args")
    _add_isolation(kwargs, isolation)
    status = netless.call(*popenargs, **kwargs)
    if status:
        raise netless.CalledProcessError(status, popenargs[0] if command is None else command)
    return 0


def getstatusoutput(
    cmd: str | bytes,
    *,
    encoding: str | None = None,
    errors: str | None = None,
    isolation: Isolation = DEFAULT,
) -> tuple[int, str]:
    """:func:`subprocess.getstatusoutput` for a shell command without network."""
    options = _text_options(encoding, errors)
    _add_isolation(options, isolation)
    try:
        output: Any = netless.check_output(
            cmd, shell=True, text=True, stderr=netless.STDOUT, **options
        )
        status = 0
    except netless.CalledProcessError as error:
        output, status = error.output, error.returncode
    return status, output[:-1] if output[-1:] == "\n" else output


def getoutput(
    cmd: str | bytes,
    *,
    encoding: str | None = None,
    errors: str | None = None,
    isolation: Isolation = DEFAULT,
) -> str:
    """:func:`subprocess.getoutput` for a shell command without network."""
    options = _text_options(encoding, errors)
    _add_isolation(options, isolation)
    return netless.getstatusoutput(cmd, **options)[1]
