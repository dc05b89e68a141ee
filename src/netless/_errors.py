"""The two exceptions of this package."""

from __future__ import annotations

import errno as errno_module
import os

TYPE_CHECKING = False  # typing costs more to import than the rest of this package
if TYPE_CHECKING:
    from typing import Any, ClassVar


def errno_name(number: int) -> str:
    """``EPERM`` for 1, and so on; the number itself where it has no name."""
    return errno_module.errorcode.get(number, str(number))


class NetworkIsolationUnavailable(RuntimeError):
    """The operating system did not give the isolation that was asked for.

    Raised before or instead of a run: the program was never executed.  Neither
    an :class:`OSError` nor a :class:`subprocess.SubprocessError`, so that code
    which treats those as "the command is missing" cannot swallow it.

    Attributes:
        code: the same everywhere; ``str(error)`` begins with it.
        cause: a stable token such as ``"unsupported-platform"``.
        step: the step of the launch sequence that failed, None where none was tried.
        errno: what the kernel said at that step.
        hint: what the reader can do about it.
        summary: one sentence in plain words, without any token: for hosts that take long
            words in what they log for secrets.
    """

    code: ClassVar[str] = "cave_sandbox_os_network_isolation_unavailable"

    def __init__(
        self,
        cause: str,
        hint: str = "",
        *,
        step: str | None = None,
        errno: int | None = None,
        meaning: str = "",
        summary: str = "",
    ) -> None:
        super().__init__(cause, hint)
        self.cause = cause
        self.hint = hint
        self.step = step
        self.errno = errno
        self.meaning = meaning
        self.summary = summary or "The network could not be taken away, so nothing was run."

    def __str__(self) -> str:
        text = without_hint(self)
        return f"{text}. Hint: {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[Any, ...]:
        told = (self.cause, self.hint, self.step, self.errno, self.meaning, self.summary)
        return _rebuild, (type(self), *told)


def without_hint(error: NetworkIsolationUnavailable) -> str:
    """Code, cause, failed step and what it means."""
    text = f"{error.code}: {error.cause}"
    if error.step is not None and error.errno:
        text += (
            f": launch step {error.step!r} failed with "
            f"{errno_name(error.errno)} ({os.strerror(error.errno)})"
        )
    elif error.step is not None:
        text += f": launch step {error.step!r} failed"
    return f"{text}: {error.meaning}" if error.meaning else text


def _rebuild(
    kind: type[NetworkIsolationUnavailable],
    cause: str,
    hint: str,
    step: str | None,
    errno: int | None,
    meaning: str,
    summary: str,
) -> NetworkIsolationUnavailable:
    return kind(cause, hint, step=step, errno=errno, meaning=meaning, summary=summary)


KINDS = {
    "socket": "a socket whose address family a sandbox does not let be asked for",
    "device": "a device",
    "namespace": "a namespace handle",
    "pidfd": "a process handle (pidfd)",
    "proc": "a handle into /proc",
    "anonymous": "a kernel object that may lead outside (io_uring, bpf, perf, ...)",
    "unknown": "of an unknown kind",
}


class InheritedSocketError(ValueError):
    """The child would inherit a descriptor that leads out of its isolation.

    Raised before the program is executed.  ``Isolation(inherit_sockets=True)``
    passes such descriptors.

    Attributes:
        fd: the descriptor's number in the child.
        family: its address family (``socket.AF_INET``, ...), None when it is no socket.
    """

    def __init__(self, fd: int, family: int | None, kind: str = "socket") -> None:
        super().__init__(fd, family, kind)
        self.fd = fd
        self.family = family
        self.kind = kind

    def __str__(self) -> str:
        return (
            f"{descriptor_in_words(self)}, which the isolated child must not inherit; "
            f"close it or pass Isolation(inherit_sockets=True)"
        )


def descriptor_in_words(error: InheritedSocketError) -> str:
    """Which descriptor it is, and what."""
    return f"descriptor {error.fd} is {_kind_in_words(error)}"


def _kind_in_words(error: InheritedSocketError) -> str:
    if error.family is None:
        return KINDS.get(error.kind, f"a {error.kind}")
    import socket

    try:
        return f"an {socket.AddressFamily(error.family).name} socket"
    except ValueError:
        return f"a socket of address family {error.family}"
