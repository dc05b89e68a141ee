"""The sandbox profile of macOS: one text for ``sandbox_init`` and for ``sandbox-exec``."""

from __future__ import annotations

from ._isolation import Isolation

PROFILE = """\
(version 1)
(allow default)
(deny network*)
(deny mach-lookup
    (global-name "com.apple.dnssd.service")
    (global-name-prefix "com.apple.nsurlsessiond"))
"""
"""No network operation, AF_UNIX by path included; no Mach service that does it for others."""

UNIX_SOCKETS = """\
(allow network-bind (local unix-socket))
(allow network-outbound (remote unix-socket))
(deny network-outbound
    (literal "/private/var/run/mDNSResponder")
    (literal "/var/run/mDNSResponder"))
"""
"""What ``unix_sockets=True`` adds; the last rule that matches wins. Names stay unresolved."""


def profile(isolation: Isolation) -> str:
    """The profile for this isolation.

    Raises:
        ValueError: it asks for what a profile cannot give.
    """
    for name in ("loopback", "map_root"):
        if getattr(isolation, name):
            raise ValueError(f"{name}=True needs a namespace, which macOS does not have")
    return PROFILE + UNIX_SOCKETS if isolation.unix_sockets else PROFILE
