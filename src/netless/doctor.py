"""Does isolation work here, and if not, why: for people and as JSON."""

from __future__ import annotations

import json
import os
import platform
import sys
from typing import Any

from . import __version__, _diagnosis, _native
from ._isolation import Isolation
from ._probe import Probe, probe

SCHEMA = 1
"""Version of the JSON; raised when a key changes its meaning or goes away."""

ALL_GUARANTEES = (
    "ip",
    "inherited-sockets",
    "vm-sockets",
    "unix-abstract",
    "unix-path",
    "key-upcalls",
    "tty-injection",
    "no-way-back",
    "siblings",
)


def facts() -> dict[str, Any]:
    """What about this system bears on isolation."""
    found: dict[str, Any] = {
        "platform": sys.platform,
        "release": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "extension": _native.is_available(),
    }
    if sys.platform == "linux":
        found |= {
            "uid": os.geteuid(),
            "landlock_abi": _native.landlock_abi(),
            "user_namespaces": _diagnosis.sysctl("user.max_user_namespaces"),
            "network_namespaces": _diagnosis.sysctl("user.max_net_namespaces"),
            "apparmor_restricts_user_namespaces": _diagnosis.is_apparmor_restricted(),
            "selinux_enforcing": _diagnosis.is_selinux_enforcing(),
            "seccomp_filtered": _diagnosis.is_filtered(),
            "nested_user_namespace": _diagnosis.is_nested(),
            "chroot": _diagnosis.is_chroot(),
            "wsl1": _diagnosis.is_wsl1(),
        }
    return found


def report(isolation: Isolation) -> tuple[Probe, dict[str, Any]]:
    """The probe, and everything that ``--json`` prints."""
    found = probe(isolation)
    error = found.error
    return found, {
        "schema": SCHEMA,
        "netless": __version__,
        "available": found.available,
        "mechanism": found.mechanism,
        "guarantees": sorted(found.guarantees),
        "error": None
        if error is None
        else {
            "code": error.code,
            "cause": error.cause,
            "step": error.step,
            "errno": error.errno,
            "message": error.summary(),
            "hint": error.hint,
        },
        "facts": facts(),
    }


def main(isolation: Isolation, *, as_json: bool) -> int:
    """Print the report. 0 when isolation works here, 1 when not."""
    found, everything = report(isolation)
    if as_json:
        print(json.dumps(everything, indent=2))
    else:
        print("\n".join(_text(found, everything["facts"])))
    return 0 if found.available else 1


def _text(found: Probe, known: dict[str, Any]) -> list[str]:
    if found.error is None:
        lines = [f"netless {__version__}: ready ({found.mechanism})", "", "A child cannot use:"]
        lines += [
            f"  {'closed' if name in found.guarantees else 'open  '}  {name}"
            for name in ALL_GUARANTEES
        ]
    else:
        lines = [f"netless {__version__}: not available here", ""]
        lines.append(f"error: {found.error.summary()}")
        if found.error.hint:
            lines.append(f"hint: {found.error.hint}")
    lines += ["", "This system:"]
    lines += [f"  {name.replace('_', ' ')}: {_shown(value)}" for name, value in known.items()]
    return lines


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "unknown" if value is None else str(value)
