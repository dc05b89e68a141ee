"""The descriptor check of the parent, for what the child's own check does not see.

That is what a process has open when it isolates itself, what a fork server passes on,
and all of it where there is no extension, whose classes are told apart here as well as
Python can.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
from collections.abc import Iterable, Iterator

from . import _native
from ._errors import InheritedSocketError

HARMLESS_ANONYMOUS = frozenset(
    f"anon_inode:{name}"
    for name in ("[eventfd]", "[timerfd]", "[eventpoll]", "[signalfd]", "inotify")
)
NAMESPACE = re.compile(r"\w+:\[\d+\]")
# null, zero, full, random, urandom; tty, console, ptmx (drivers/char/mem.c, tty_io.c)
HARMLESS_DEVICES = {(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 1), (5, 2)}
TTY_MAJORS = {4, 229, *range(136, 144)}


def check(
    *, standard: Iterable[int], passed: Iterable[int], close_fds: bool, unix_sockets: bool
) -> None:
    """Refuse what the child would inherit and must not.

    Args:
        standard: the descriptors that become 0, 1 and 2.
        passed: ``pass_fds``.
        close_fds: False adds every inheritable descriptor of this process.
        unix_sockets: False refuses AF_UNIX sockets that can be pointed elsewhere.

    Raises:
        InheritedSocketError: naming the first such descriptor.
    """
    for fd in (*standard, *passed, *(() if close_fds else _inheritable())):
        found = classify(fd, unix_sockets)
        if found is not None:
            kind, family = found
            raise InheritedSocketError(fd, family, kind)


def all_open() -> list[int]:
    """Every descriptor of this process, and the one that listed them.

    Raises:
        OSError: the list is empty, which it cannot be.
    """
    folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    found = list(map(int, os.listdir(folder)))
    if not found:
        raise OSError(errno.EIO, os.strerror(errno.EIO), folder)
    return found


def _inheritable() -> Iterator[int]:
    for fd in all_open():
        try:
            if fd > 2 and os.get_inheritable(fd):
                yield fd
        except OSError:  # the one that listed the folder
            continue


def classify(fd: int, unix_sockets: bool) -> tuple[str, int | None] | None:
    """None for what may be inherited, else its kind and, for a socket, its family."""
    try:
        status = os.fstat(fd)
    except OSError:  # not open: subprocess will say so, or it stays closed
        return None
    if _native.is_available():
        return _native.classify(fd, unix_sockets)
    mode = status.st_mode
    if stat.S_ISSOCK(mode):
        return _classify_socket(fd, unix_sockets)
    if stat.S_ISFIFO(mode):
        return None
    if stat.S_ISCHR(mode):
        major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
        fine = major in TTY_MAJORS or (major, minor) in HARMLESS_DEVICES
        return None if fine or not os.path.isdir("/proc/self/fd") else ("device", None)
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return _classify_file(fd, status)
    if stat.S_IFMT(mode) == 0:
        fine = _target(fd) in HARMLESS_ANONYMOUS
        return None if fine else ("anonymous", None)
    return ("unknown", None)


def _classify_socket(fd: int, unix_sockets: bool) -> tuple[str, int | None] | None:
    try:
        copy = os.dup(fd)
        try:
            found = socket.socket(fileno=copy)
        except OSError:
            os.close(copy)
            raise
    except OSError:  # O_PATH: a name, not a socket
        return ("socket", None)
    with found:
        if found.family != socket.AF_UNIX:
            return ("socket", int(found.family))
        if unix_sockets:
            return None
        if found.type in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
            try:
                found.getpeername()
            except OSError:
                pass
            else:
                return None
    return ("socket", int(socket.AF_UNIX))


def _classify_file(fd: int, status: os.stat_result) -> tuple[str, int | None] | None:
    """By the file system as well, since what it holds can be mounted under any name."""
    target = _target(fd)
    if target == "anon_inode:[pidfd]":
        return ("pidfd", None)
    if NAMESPACE.fullmatch(target) or status.st_dev == _device("/proc/self/ns/net"):
        return ("namespace", None)
    in_proc = target == "/proc" or target.startswith("/proc/") or status.st_dev == _device("/proc")
    # What only its owner may read there is the memory of a process, or of the kernel.
    for_all = stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IROTH
    harmless = for_all and _is_read_only(fd)
    return ("proc", None) if in_proc and not harmless else None


def _device(path: str) -> int | None:
    try:
        return os.stat(path).st_dev
    except OSError:  # no /proc
        return None


def _is_read_only(fd: int) -> bool:
    import fcntl

    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    path_only: int = getattr(os, "O_PATH", 0)
    return flags & (os.O_WRONLY | os.O_RDWR) == os.O_RDONLY and not flags & path_only


def _target(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""
