"""Start child processes without any network, enforced by the operating system.

``import netless as subprocess`` gives every public POSIX name of
:mod:`subprocess`; each child that it starts is isolated, or not started at all.
"""

# The only place that has it; before the imports, since _native compares the extension with it.
__version__ = "0.1.0"

from subprocess import (
    DEVNULL,
    PIPE,
    STDOUT,
    CalledProcessError,
    CompletedProcess,
    SubprocessError,
    TimeoutExpired,
    list2cmdline,
)

from ._errors import InheritedSocketError, NetworkIsolationUnavailable
from ._isolation import Isolation
from ._popen import (
    Popen,
    call,
    check_call,
    check_output,
    getoutput,
    getstatusoutput,
    run,
)
from ._probe import Probe, probe, require

__all__ = [
    "DEVNULL",
    "PIPE",
    "STDOUT",
    "CalledProcessError",
    "CompletedProcess",
    "InheritedSocketError",
    "Isolation",
    "NetworkIsolationUnavailable",
    "Popen",
    "Probe",
    "ProcessPoolExecutor",
    "SubprocessError",
    "TimeoutExpired",
    "call",
    "check_call",
    "check_output",
    "get_context",
    "getoutput",
    "getstatusoutput",
    "isolate",
    "list2cmdline",
    "probe",
    "require",
    "run",
    "wrapper_command",
]


_LAZY = {
    "ProcessPoolExecutor": "pool",
    "get_context": "_contexts",
    "isolate": "_process",
    "wrapper_command": "_wrapper",
}


def __getattr__(name: str) -> object:
    """What few programs use is imported when it is asked for (PEP 562)."""
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f".{_LAZY[name]}", __name__), name)
    if name == "aio":
        from importlib import import_module

        return import_module(".aio", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
