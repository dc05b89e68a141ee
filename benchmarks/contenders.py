"""Who is measured: every way of starting a child, as one function like ``subprocess.Popen``."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import subprocess
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import netless
from netless import Isolation, _launcher, _native

Start = Callable[..., "subprocess.Popen[Any]"]

POPEN = "subprocess.Popen"
SHARED = "netless shared"
PRIVATE = "netless private"
PREEXEC = "preexec_fn + unshare"
UNSHARE = "unshare"
BWRAP = "bwrap"
LAUNCHER = "netless-exec"

PREFIXES = {
    LAUNCHER: [_launcher.find() or LAUNCHER, "--"],
    UNSHARE: ["unshare", "--user", "--map-current-user", "--net", "--"],
    BWRAP: ["bwrap", "--dev-bind", "/", "/", "--unshare-user", "--unshare-net", "--"],
    "firejail": ["firejail", "--quiet", "--noprofile", "--net=none", "--"],
}
ISOLATIONS = {
    SHARED: Isolation(),
    PRIVATE: Isolation(private=True),
    "netless loopback": Isolation(loopback=True),
    "netless unix_sockets=False": Isolation(unix_sockets=False),
    "netless filter": Isolation(mechanism="filter"),
    "netless wrapper": Isolation(mechanism="wrapper"),
}
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
LAYERS = ("NO_NEW_PRIVS", "BOUNDING_SET", "LANDLOCK", "SECCOMP")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weakened(Isolation):
    """The key of a plan with layers of the seal left out; for measuring only."""

    without: tuple[str, ...] = ()


def _weakened(without: tuple[str, ...]) -> Isolation:
    """Registers such a plan, made from the settled one of the default isolation."""
    netless.require()
    plan = _native.plan_for(Isolation())
    bits = sum(getattr(_native.lib, f"NETLESS_LAYER_{name}") for name in without)
    if not plan.c.layers & bits:
        raise LookupError("not a layer of the seal here")
    weak = _native.ffi.new("struct netless_plan *")
    weak[0] = plan.c[0]
    weak.layers = plan.c.layers & ~bits
    key = Weakened(without=without)
    _native._cache.plans[key] = _native.Plan(
        plan.isolation, plan.mechanism, plan.guarantees, weak, plan.sealed
    )
    return key


_libc = ctypes.CDLL(None, use_errno=True)


def _unshare() -> None:
    if _libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0:
        raise OSError(ctypes.get_errno(), "unshare")


def _prefixed(prefix: Sequence[str], command: Sequence[str], **options: Any) -> Any:
    return subprocess.Popen([*prefix, *command], **options)


def prefixing(prefix: Sequence[str]) -> Start:
    """As ``subprocess.Popen``, with another command in front."""
    return partial(_prefixed, prefix)


def _isolated(isolation: Isolation) -> Start:
    netless.require(isolation)
    return partial(netless.Popen, isolation=isolation)


def _leaving_out(*layers: str) -> Start:
    return _isolated(_weakened(layers))


def _makers() -> dict[str, Callable[[], Start]]:
    return {
        POPEN: lambda: subprocess.Popen,
        **{name: partial(_isolated, isolation) for name, isolation in ISOLATIONS.items()},
        **{
            f"netless without {layer.lower().replace('_', '-')}": partial(_leaving_out, layer)
            for layer in LAYERS
        },
        "netless without any layer": partial(_leaving_out, *LAYERS),
        PREEXEC: lambda: partial(subprocess.Popen, preexec_fn=_unshare),
        **{name: partial(prefixing, prefix) for name, prefix in PREFIXES.items()},
    }


def _tried(start: Start) -> Start:
    with start(["/bin/true"], stderr=subprocess.PIPE) as process:
        _, complaint = process.communicate()
    if process.returncode:
        raise OSError(os.fsdecode(complaint).strip() or f"status {process.returncode}")
    return start


@lru_cache(maxsize=1)
def find() -> tuple[dict[str, Start], dict[str, str]]:
    """The contenders that work here by name, and why the others do not."""
    usable, skipped = {}, {}
    for name, make in _makers().items():
        try:
            usable[name] = _tried(make())
        except netless.NetworkIsolationUnavailable as error:
            skipped[name] = error.cause
        except FileNotFoundError:
            skipped[name] = "not installed"
        except (OSError, LookupError) as error:
            skipped[name] = str(error.args[-1])
    return usable, skipped
