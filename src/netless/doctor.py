"""Does isolation work here, and if not, why: for people and as JSON."""

from __future__ import annotations

import json
import os
import platform
import sys
from dataclasses import replace
from typing import Any

from . import __version__, _diagnosis, _launcher, _native
from ._errors import without_hint
from ._isolation import Isolation
from ._popen import uses_wrapper
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
        "launcher": _launcher.find() is not None,
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
            "unprivileged_userns_clone": _diagnosis.sysctl("kernel.unprivileged_userns_clone"),
            "container": _diagnosis.container() or "none",
            "chroot": _diagnosis.is_chroot(),
            "wsl": "Microsoft" in platform.release() or "microsoft" in platform.release(),
            "infiniband": os.path.isdir("/dev/infiniband"),
        }
    return found


def steps(isolation: Isolation, found: Probe) -> list[tuple[str, str]]:
    """Each isolation step of the launch and its result; none where netless does not take them."""
    failed = None if found.error is None else found.error.step
    nothing_tried = found.error is not None and failed is None
    if nothing_tried or uses_wrapper(isolation) or found.mechanism == "seatbelt":
        return []
    if found.mechanism == "filter":
        isolation = replace(isolation, mechanism="filter", private=False)
    return _native.launch_steps(isolation, failed)


def warnings(found: Probe, known: dict[str, Any]) -> list[str]:
    """What does not stop isolation but should be known."""
    told = []
    if known.get("infiniband"):
        told.append("RDMA devices in /dev/infiniband are shared across network namespaces")
    if known.get("uid") == 0 and found.available:
        told.append("children of root can write root-owned files, such as /proc/sys and /etc")
    if found.mechanism == "wrapper":
        told.append("the native extension is missing: slower, and no seccomp filter or Landlock")
    return told


def report(isolation: Isolation) -> tuple[Probe, dict[str, Any]]:
    """The probe, and everything that ``--json`` prints."""
    found = probe(isolation)
    error = found.error
    known = facts()
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
            "message": without_hint(error),
            "summary": error.summary,
            "hint": error.hint,
        },
        "steps": [{"step": name, "result": result} for name, result in steps(isolation, found)],
        "warnings": warnings(found, known),
        "facts": known,
    }


def main(isolation: Isolation, *, as_json: bool) -> int:
    """Print the report. 0 when isolation works here, 1 when not."""
    found, everything = report(isolation)
    if as_json:
        print(json.dumps(everything, indent=2))
    else:
        print("\n".join(_text(found, everything)))
    return 0 if found.available else 1


def _text(found: Probe, everything: dict[str, Any]) -> list[str]:
    if found.error is None:
        lines = [f"netless {__version__}: ready ({found.mechanism})"]
    else:
        lines = [f"netless {__version__}: not available here", ""]
        lines.append(f"error: {without_hint(found.error)}")
        lines += [f"hint: {found.error.hint}"] * bool(found.error.hint)
    lines += [f"warning: {told}" for told in everything["warnings"]]
    if found.error is None:
        lines += ["", "What a child can reach:"]
        lines += [
            f"  {'closed' if name in found.guarantees else 'open  '}  {name}"
            for name in ALL_GUARANTEES
        ]
    if everything["steps"]:
        lines += ["", "Launch steps:"]
        lines += [f"  {entry['result']:<11}  {entry['step']}" for entry in everything["steps"]]
    lines += ["", "This system:"]
    known = everything["facts"].items()
    return lines + [f"  {name.replace('_', ' ')}: {_shown(value)}" for name, value in known]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "unknown" if value is None else str(value)
