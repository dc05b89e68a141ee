"""What a caller may ask for: the frozen, hashable :class:`Isolation`."""

from __future__ import annotations

from dataclasses import dataclass, fields

MECHANISMS = ("auto", "namespace", "seatbelt", "wrapper", "filter")


@dataclass(frozen=True, kw_only=True)
class Isolation:
    """How a child process is cut off from the network.

    The default is a network namespace without any interface that all children
    of this process share, joined by way of a user namespace, with the seal of
    Landlock, seccomp and a reduced capability bounding set on top.  Nothing is
    ever weakened unasked: where the request cannot be met, the launch raises
    :class:`netless.NetworkIsolationUnavailable`.

    Raises:
        TypeError: a flag is not a bool, or ``mechanism`` not a str.
        ValueError: an unknown mechanism or fallback, or a combination that no
            mechanism can give.
    """

    loopback: bool = False
    """A private namespace with 127.0.0.1 and ::1 up, reachable by nobody else."""
    private: bool = False
    """A network namespace of its own even without loopback."""
    unix_sockets: bool = True
    """False: AF_UNIX sockets that lead out of the child are refused as well."""
    map_root: bool = False
    """True: uid and gid 0 inside, as ``unshare --map-root-user``; False: the caller's own ids."""
    inherit_sockets: bool = False
    """True: the caller vouches for network sockets among the inherited descriptors."""
    mechanism: str = "auto"
    """``"auto"``, ``"namespace"``, ``"seatbelt"``, ``"wrapper"`` or ``"filter"``."""
    fallback: str | None = None
    """``"filter"``: use that mechanism where namespaces are refused."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        for field in fields(self)[:5]:
            if not isinstance(getattr(self, field.name), bool):
                raise TypeError(f"Isolation.{field.name} must be a bool")
        if not isinstance(self.mechanism, str):
            raise TypeError("Isolation.mechanism must be a str")
        if self.mechanism not in MECHANISMS:
            raise ValueError(
                f"unknown mechanism {self.mechanism!r}: expected one of {', '.join(MECHANISMS)}"
            )
        if self.fallback not in (None, "filter"):
            raise ValueError(f'unknown fallback {self.fallback!r}: expected "filter" or None')
        if "filter" in (self.mechanism, self.fallback):
            for name in ("loopback", "map_root"):
                if getattr(self, name):
                    raise ValueError(f"{name}=True needs a namespace, which filter does not make")
        if self.mechanism == "seatbelt" and (self.loopback or self.map_root):
            raise ValueError("loopback=True and map_root=True need a namespace, not seatbelt")


DEFAULT = Isolation()
