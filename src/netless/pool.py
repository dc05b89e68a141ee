"""Pools of worker processes without network."""

from __future__ import annotations

import contextlib
import multiprocessing.pool
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import process as standard
from multiprocessing.context import BaseContext
from typing import Any

from ._contexts import IsolatedContext, get_context, seeing
from ._errors import InheritedSocketError, NetworkIsolationUnavailable
from ._isolation import DEFAULT, Isolation

Refused = (NetworkIsolationUnavailable, InheritedSocketError)
RETRY = 0.1
"""Seconds until a Pool tries again to replace a worker."""


class _ManagerThread(standard._ExecutorManagerThread):
    """Fails the pool with the reason why a worker could not be isolated."""

    def run(self) -> None:
        try:
            super().run()
        except Refused as error:  # while it replaced a worker that had done its tasks
            executor = self.executor_reference()
            if executor is not None:
                executor._refusal = error
            del executor
            self.terminate_broken(None)

    def wait_result_broken_or_wakeup(self) -> tuple[Any, bool, Any]:
        found: tuple[Any, bool, Any] = super().wait_result_broken_or_wakeup()
        executor = self.executor_reference()
        return found if executor is None or executor._refusal is None else (None, True, None)

    def terminate_broken(self, cause: Any) -> None:
        executor = self.executor_reference()
        if executor is not None and executor._refusal is not None:
            for item in self.pending_work_items.values():
                with contextlib.suppress(futures.InvalidStateError):
                    item.future.set_exception(executor._refusal)
            self.pending_work_items.clear()
        del executor
        super().terminate_broken(cause)


class Pool(multiprocessing.pool.Pool):
    """What ``get_context(...).Pool()`` gives."""

    @classmethod
    def _handle_workers(cls, cache: dict[int, Any], *args: Any) -> None:
        """In its own thread: replace workers, and fail what waits while that is refused."""
        while True:
            try:
                super()._handle_workers(cache, *args)  # type: ignore[misc]
                return
            except Refused as error:
                for job in list(cache.values()):
                    _fail(job, error)
                time.sleep(RETRY)


def _fail(job: Any, error: Exception) -> None:
    """One result, or what is left of a map or an iterator."""
    if isinstance(job, multiprocessing.pool.IMapIterator):
        job._set(job._index, (False, error))  # type: ignore[attr-defined]
        job._set_length(job._index)  # type: ignore[attr-defined]
        return
    while not job.ready():
        job._set(0, (False, error))


Pool.__init__ = seeing(multiprocessing.pool.Pool.__init__, Pool=Pool)  # type: ignore[method-assign]


class ProcessPoolExecutor(standard.ProcessPoolExecutor):
    """:class:`concurrent.futures.ProcessPoolExecutor` with workers that have no network.

    Takes the same arguments and ``isolation``.  Of ``mp_context`` the start method
    counts, unless it is a context of :func:`netless.get_context`: that one is used
    as it is.  A worker that cannot be isolated breaks the pool as one that died
    does, with the reason in place of ``BrokenProcessPool``.

    Raises:
        NetworkIsolationUnavailable, InheritedSocketError: from ``submit()`` and
            from the futures.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        mp_context: BaseContext | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        *,
        isolation: Isolation = DEFAULT,
        **kwargs: Any,
    ) -> None:
        """The arguments are those of the base class, and ``isolation``."""
        if not isinstance(mp_context, IsolatedContext):
            method = None if mp_context is None else mp_context.get_start_method()
            if mp_context is None and kwargs.get("max_tasks_per_child") is not None:
                method = "spawn"  # fork cannot replace workers beside threads
            mp_context = get_context(method, isolation)
        self._refusal: Exception | None = None
        super().__init__(max_workers, mp_context, initializer, initargs, **kwargs)

    @property
    def isolation(self) -> Isolation:
        """What the workers are started with."""
        executor: Any = self
        isolation: Isolation = executor._mp_context.isolation
        return isolation

    def _start_executor_manager_thread(self) -> None:
        start = standard.ProcessPoolExecutor._start_executor_manager_thread
        seeing(start, _ExecutorManagerThread=_ManagerThread)(self)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        """As :meth:`concurrent.futures.Executor.submit`."""
        if self._refusal is not None:
            raise self._refusal
        try:
            return super().submit(fn, *args, **kwargs)
        except Refused as error:
            self._refuse(error)
            raise

    def _refuse(self, error: Exception) -> None:
        """End what has been started; the manager's thread ends it where there is one."""
        executor: Any = self
        self._refusal = error
        with executor._shutdown_lock:
            if executor._executor_manager_thread is not None:
                executor._executor_manager_thread_wakeup.wakeup()
                return
        for worker in executor._processes.values():
            worker.terminate()
            worker.join()
