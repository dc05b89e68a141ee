"""Does isolation work here, and if not, why: for people and as JSON."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import platform
import stat
import sys
from collections.abc import Iterable
from typing import Any

from . import __version__, _diagnosis, _launcher, _native
from ._errors import without_hint
from ._isolation import Isolation
from ._popen import uses_wrapper
from ._probe import Probe, probe

SCHEMA = 2
"""Version of the JSON; raised when a key changes its meaning or goes away."""

ALL_GUARANTEES = (
    "ip",
    "names",
    "inherited-sockets",
    "vm-sockets",
    "unix-abstract",
    "unix-path",
    "key-upcalls",
    "tty-injection",
    "no-way-back",
    "siblings",
)

# Sockets of daemons that look names up outside for whoever asks.
RESOLVERS = (
    "/run/nscd/socket",
    "/var/run/nscd/socket",
    "/run/systemd/resolve/io.systemd.Resolve",
    "/run/dbus/system_bus_socket",  # systemd-resolved and Avahi
    "/run/avahi-daemon/socket",
)
# Sockets of daemons that do other things outside.
DAEMONS = (
    "/run/docker.sock",
    "/run/podman/podman.sock",
    "/run/containerd/containerd.sock",
    "/run/libvirt/libvirt-sock",
    "$XDG_RUNTIME_DIR/bus",
    "$SSH_AUTH_SOCK",
)
# Devices that lead out of every namespace; only examples of the kind. Not /dev/net/tun: what
# it makes is in the opener's own namespace.
DEVICES = (
    "/dev/infiniband/uverbs*",
    "/dev/tap[0-9]*",  # macvtap
    "/dev/ttyACM*",  # modems
    "/dev/ttyUSB*",
    "/dev/vhost-vsock",
    "/dev/vport*",  # to the host of a virtual machine
)


def _usable_sockets(paths: Iterable[str]) -> list[str]:
    """Those that are there for this user, each once whatever its names."""
    found: dict[tuple[int, int], str] = {}
    for path in map(os.path.expandvars, paths):
        try:
            status = os.stat(path)
        except OSError:
            continue
        if stat.S_ISSOCK(status.st_mode) and os.access(path, os.W_OK):
            found.setdefault((status.st_dev, status.st_ino), path)
    return list(found.values())


def _usable_devices() -> list[str]:
    found = []
    for path in sorted(path for pattern in DEVICES for path in glob.glob(pattern)):
        with contextlib.suppress(OSError):
            is_device = stat.S_ISCHR(os.stat(path).st_mode)
            if is_device and (os.access(path, os.R_OK) or os.access(path, os.W_OK)):
                found.append(path)
    return found


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
            "local_sockets": _usable_sockets((*RESOLVERS, *DAEMONS)),
            "device_nodes": _usable_devices(),
        }
    return found


def steps(isolation: Isolation, found: Probe) -> list[tuple[str, str]]:
    """The launch step that failed, or else what became of each layer of the seal."""
    if found.error is not None:
        return [] if found.error.step is None else [(found.error.step, "failed")]
    if uses_wrapper(isolation) or found.mechanism == "seatbelt":
        return []  # without a seal
    return _native.launch_layers(isolation)


def warnings(found: Probe, known: dict[str, Any]) -> list[str]:
    """What does not stop isolation but should be known."""
    told = []
    told += _warnings_of_sockets(found, known.get("local_sockets", ()))
    if known.get("device_nodes") and found.available:
        devices = ", ".join(known["device_nodes"])
        told.append(f"devices lead outside, and this user may open them: {devices}")
    if known.get("uid") == 0 and found.available:
        told.append(
            "children of root can write root-owned files, such as /proc/sys and /etc; user= gives "
            "them another user"
        )
        if "siblings" not in found.guarantees and found.mechanism == "namespace":
            told.append(
                "children of root write the settings of the network namespace that they share; "
                "private=True or user= closes that"
            )
    if found.mechanism == "wrapper":
        told.append("the native extension is missing: slower, and no seccomp filter or Landlock")
    return told


def _warnings_of_sockets(found: Probe, paths: Iterable[str]) -> list[str]:
    """What the child reaches by path, as far as it is well known."""
    resolvers = [path for path in paths if path in RESOLVERS]
    daemons = [path for path in paths if path not in RESOLVERS]
    remedy = "" if found.mechanism == "wrapper" else "; unix_sockets=False closes that"
    told = []
    if found.available and resolvers and "names" not in found.guarantees:
        told.append(f"names are looked up outside through the socket {_listed(resolvers)}{remedy}")
    if found.available and daemons and "unix-path" not in found.guarantees:
        told.append(f"a child reaches the socket of a daemon, {_listed(daemons)}{remedy}")
    return told


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


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
        lines += ["", "Launch step:" if found.error else "Layers of the seal:"]
        lines += [f"  {entry['result']:<9}  {entry['step']}" for entry in everything["steps"]]
    lines += ["", "This system:"]
    known = everything["facts"].items()
    return lines + [f"  {name.replace('_', ' ')}: {_shown(value)}" for name, value in known]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return "unknown" if value is None else str(value)
