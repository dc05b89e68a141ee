"""Isolation of the calling process itself."""

from __future__ import annotations

import os
import sys
import time

from . import _descriptors, _diagnosis, _native
from ._isolation import DEFAULT, Isolation

ENDING = 0.1
"""Seconds in which the kernel is done with a thread that Python has joined."""


def isolate(isolation: Isolation = DEFAULT) -> None:
    """Take the network from this process, from now on and irrevocably.

    All that it starts afterwards is inside as well, and :class:`netless.Popen`
    still works there.  With ``loopback=True`` the process has a 127.0.0.1 and ::1
    of its own.  A process that isolates itself always has namespaces of its own:
    ``private`` changes nothing.

    To be called before the process starts threads: a namespace is entered by one
    thread only (setns(2), unshare(2)).  macOS has no such limit.

    Raises:
        NetworkIsolationUnavailable: it could not be had; ``cause`` is
            ``"process-has-threads"`` when it came too late.  Where ``step`` is None
            or one before ``"setns-user"``, nothing was changed; later than that the
            process has lost its network without having the whole seal.
        InheritedSocketError: the process has a socket or another descriptor open that
            leads to a network; nothing was changed.
        OSError: out of processes, descriptors or memory.
    """
    enter(isolation)


def enter(isolation: Isolation) -> _native.Plan:
    """As :func:`isolate`, and tell what is in force."""
    if os.name != "posix" or sys.platform not in ("linux", "darwin"):
        raise _diagnosis.unsupported_platform()
    if sys.platform == "linux":
        threads = _count_threads()
        if threads > 1:
            raise _diagnosis.has_threads(threads)
    _native.forget()  # its handles of namespaces would be ways out themselves
    if not isolation.inherit_sockets:
        _descriptors.check(
            standard=_descriptors.all_open(),
            passed=(),
            close_fds=True,
            unix_sockets=isolation.unix_sockets,
        )
    return _native.isolate(isolation)


def _count_threads() -> int:
    """As the kernel counts them, whoever started them."""
    end = time.monotonic() + ENDING
    while True:
        threads = len(os.listdir("/proc/self/task"))
        if threads == 1 or time.monotonic() > end:
            return threads
        time.sleep(0.001)
