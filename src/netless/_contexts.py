""":mod:`multiprocessing` contexts whose processes have no network.

What starts the processes is multiprocessing's own code.  It finds other
functions under the names ``os.fork``, ``util.spawnv_passfds`` and
``forkserver.connect_to_new_process``: ones that isolate.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import tempfile
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import context, forkserver, popen_fork, popen_forkserver, process, util
from multiprocessing import popen_spawn_posix as popen_spawn
from typing import TYPE_CHECKING, Any, ClassVar

from . import _descriptors, _diagnosis, _native
from ._isolation import DEFAULT, Isolation
from ._popen import Popen

if TYPE_CHECKING:
    from multiprocessing.managers import SyncManager

    from .pool import Pool


class Instead:
    """A module with some of its functions replaced."""

    def __init__(self, module: types.ModuleType, **functions: object) -> None:
        self.__dict__.update(functions)
        self._module = module
        self._names = set(functions)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def seeing(function: Any, **replaced: Any) -> Any:
    """The same function, which finds ``replaced`` among its globals.

    Raises:
        NetworkIsolationUnavailable: it does not use them, so it would not isolate.
    """
    needed = set(replaced).union(*(getattr(new, "_names", ()) for new in replaced.values()))
    if not needed <= set(function.__code__.co_names):
        raise _diagnosis.unavailable(_diagnosis.UNKNOWN_MULTIPROCESSING)
    return types.FunctionType(
        function.__code__,
        {**function.__globals__, **replaced},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )


def spawn(
    isolation: Isolation, path: str | bytes, args: Sequence[str | bytes], fds: Sequence[int]
) -> int:
    """The pid of a new program without network, which the caller is to reap."""
    started = Popen(args, executable=path, pass_fds=fds, restore_signals=False, isolation=isolation)
    started.returncode = 0  # not this object's to wait for
    return started.pid


def _launch_of(module: Any) -> Any:
    return module.Popen._launch


class _Launcher:
    """Mixed into multiprocessing's own Popen objects, one for each start method."""

    def __init__(self, isolated: IsolatedContext, process_obj: process.BaseProcess) -> None:
        self._isolated = isolated
        super().__init__(process_obj)  # type: ignore[call-arg]


class _ForkPopen(_Launcher, popen_fork.Popen):
    def _launch(self, process_obj: process.BaseProcess) -> None:
        pipes: list[int] = []
        replaced = Instead(
            os,
            fork=functools.partial(_native.fork, self._isolated.isolation),
            pipe=functools.partial(_pipe, pipes),
        )
        try:
            seeing(_launch_of(popen_fork), os=replaced)(self, process_obj)
        except BaseException:
            if not hasattr(self, "pid"):  # multiprocessing does not think of a fork that fails
                for descriptor in pipes:
                    os.close(descriptor)
            raise


def _pipe(made: list[int]) -> tuple[int, int]:
    pipe = os.pipe()
    made += pipe
    return pipe


class _SpawnPopen(_Launcher, popen_spawn.Popen):
    def _launch(self, process_obj: process.BaseProcess) -> None:
        start = functools.partial(spawn, self._isolated.isolation)
        replaced = Instead(util, spawnv_passfds=start)
        seeing(_launch_of(popen_spawn), util=replaced)(self, process_obj)


class _ForkServerPopen(_Launcher, popen_forkserver.Popen):
    def _launch(self, process_obj: process.BaseProcess) -> None:
        connect = self._isolated.server.connect_to_new_process
        replaced = Instead(forkserver, connect_to_new_process=connect)
        seeing(_launch_of(popen_forkserver), forkserver=replaced)(self, process_obj)


class _ForkServer(forkserver.ForkServer):
    """A server that is isolated itself, and so all that it forks."""

    def __init__(self, isolation: Isolation) -> None:
        super().__init__()
        self._isolation = isolation

    def connect_to_new_process(self, fds: Sequence[int]) -> tuple[int, int]:
        """Pass what the process object holds, unless it leads to a network."""
        self._check(fds, self._isolation.unix_sockets)
        return super().connect_to_new_process(fds)

    def ensure_running(self) -> None:
        """Start the server if it is not running, isolated."""
        replaced = Instead(util, spawnv_passfds=self._start)
        seeing(forkserver.ForkServer.ensure_running, util=replaced)(self)

    def _start(self, path: str, args: Sequence[str], fds: Sequence[int]) -> int:
        """With its listening AF_UNIX socket, which can be pointed nowhere else."""
        self._check((0, 1, 2), self._isolation.unix_sockets)
        self._check(fds, unix_sockets=True)
        return spawn(replace(self._isolation, inherit_sockets=True), path, args, fds)

    def _check(self, fds: Sequence[int], unix_sockets: bool) -> None:
        if not self._isolation.inherit_sockets:
            _descriptors.check(standard=(), passed=fds, close_fds=True, unix_sockets=unix_sockets)


class IsolatedProcess(process.BaseProcess):
    """A process that is isolated before anything of the caller's runs in it."""

    _context: ClassVar[IsolatedContext]
    _start_method: ClassVar[str]
    _Popen: ClassVar[Callable[[process.BaseProcess], object]]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """The class of a context is found by that context; other classes by their name."""
        if type(self) is self._context.Process:
            return (_blank, (self._start_method, self._context.isolation), self.__dict__)
        return super().__reduce_ex__(protocol)


def _blank(method: str, isolation: Isolation) -> IsolatedProcess:
    kind = get_context(method, isolation).Process
    return kind.__new__(kind)


STANDARD: dict[str, Any] = {
    "fork": context.ForkProcess,
    "spawn": context.SpawnProcess,
    "forkserver": context.ForkServerProcess,
}


class IsolatedContext(context.BaseContext):
    """All of a :mod:`multiprocessing` context, with :class:`IsolatedProcess` for its processes.

    Attributes:
        isolation: what its processes are started with.
    """

    _launchers: ClassVar[dict[str, Any]] = {
        "fork": _ForkPopen,
        "spawn": _SpawnPopen,
        "forkserver": _ForkServerPopen,
    }

    def __init__(self, method: str, isolation: Isolation) -> None:
        self._name = method
        self.isolation = isolation
        self.server = _ForkServer(isolation)
        self.Process: type[IsolatedProcess] = type(
            "Process",
            (IsolatedProcess,),
            {
                "_context": self,
                "_start_method": method,
                "_after_fork": staticmethod(STANDARD[method]._after_fork),
                "_Popen": staticmethod(functools.partial(self._launchers[method], self)),
                "__module__": __name__,
            },
        )

    def __reduce__(self) -> Any:
        """By what it was made from."""
        return (get_context, (self._name, self.isolation))

    def get_context(self, method: str | None = None) -> IsolatedContext:  # type: ignore[override]
        """This context, or the one of another start method with the same isolation."""
        return self if method is None else get_context(method, self.isolation)

    def get_start_method(self, allow_none: bool = False) -> str:
        """The start method, which is fixed."""
        return self._name

    def set_forkserver_preload(self, module_names: list[str]) -> None:
        """Modules that this context's server imports, isolated, before it forks."""
        self.server.set_forkserver_preload(module_names)

    def Pool(self, *args: Any, **kwargs: Any) -> Pool:
        """A :class:`multiprocessing.pool.Pool` of isolated workers."""
        from .pool import Pool

        return Pool(*args, **{**kwargs, "context": self})

    def Manager(self) -> SyncManager:
        """A manager whose server is isolated too, reached over a socket in the file system.

        Raises:
            ValueError: the isolation refuses such sockets.
        """
        from multiprocessing.managers import SyncManager

        if not self.isolation.unix_sockets:
            raise ValueError("a manager is reached by an AF_UNIX socket: unix_sockets=False")
        # By path: an abstract address, as some Pythons choose, is not seen from outside.
        address = tempfile.mktemp(prefix="manager-", dir=util.get_temp_dir())
        manager = SyncManager(address, ctx=self)
        manager.start()
        return manager


def get_context(method: str | None = None, isolation: Isolation = DEFAULT) -> IsolatedContext:
    """As :func:`multiprocessing.get_context`, for processes without network.

    They are isolated before anything of the caller's runs in them: the import of
    ``__main__``, the unpickling of arguments, at-fork hooks.  A process that cannot
    be isolated makes ``Process.start()``, or what calls it, raise.

    * ``fork``: the process has namespaces of its own.  Sockets and other
      descriptors of the parent that lead to a network are shut in it.
    * ``spawn``: each process is isolated from the others as children of
      :class:`netless.Popen` are.
    * ``forkserver``: the server is isolated, and its processes share that.

    The same context is given for the same arguments.  Results are unpickled by the
    parent, so this holds back code that uses the network, not code that attacks its
    parent: see docs/pools.md.

    Args:
        method: ``"fork"``, ``"spawn"`` or ``"forkserver"``; None is
            :mod:`multiprocessing`'s own default.
        isolation: what the processes cannot do.

    Raises:
        ValueError: no such start method here.
    """
    standard = multiprocessing.get_context(method)
    return _context(standard.get_start_method(), isolation)


@functools.cache
def _context(method: str, isolation: Isolation) -> IsolatedContext:
    return IsolatedContext(method, isolation)


if os.name != "posix":
    raise _diagnosis.unsupported_platform()
