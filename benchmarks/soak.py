"""Many spawns with a mix of outcomes: does anything grow?"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import netless

from .programs import Programs


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _namespaces() -> int | None:
    """Live network namespaces of the whole system; the kernel tells root only."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/slabinfo").read_text().splitlines():
            if line.startswith("net_namespace"):
                return int(line.split()[1])
    return None


def _settled_namespaces() -> int | None:
    """The kernel takes them down a while after their last process: the least of two seconds."""
    counts = []
    for _ in range(20):
        counts.append(_namespaces())
        if counts[-1] is None:
            return None
        time.sleep(0.1)
    return min(count for count in counts if count is not None)


def _state(spawned: int) -> dict[str, Any]:
    return {
        "spawned": spawned,
        "resident": _resident(),
        "descriptors": len(os.listdir("/proc/self/fd")) - 1,
        "namespaces": _settled_namespaces(),
        "children": len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
    }


def _outcomes(programs: Programs, network: socket.socket) -> list[Callable[[], object]]:
    noop = [programs.noop]

    def killed() -> None:
        with netless.Popen([programs.noop, "wait"], stdin=subprocess.PIPE) as process:
            process.send_signal(signal.SIGKILL)

    def refuse() -> None:
        raise ValueError("on purpose")

    def raising(error: type[BaseException], *args: Any, **options: Any) -> Callable[[], None]:
        def run() -> None:
            with contextlib.suppress(error):
                netless.run(*args, **options)
                raise RuntimeError(f"{args} did not raise {error.__name__}")

        return run

    return [
        *[lambda: netless.run(noop, check=True)] * 6,
        lambda: netless.check_output(["/bin/echo", "hello"]),
        lambda: netless.run(noop, check=True, isolation=netless.Isolation(private=True)),
        killed,
        raising(subprocess.CalledProcessError, ["/bin/false"], check=True),
        raising(FileNotFoundError, ["/does/not/exist"]),
        raising(FileNotFoundError, noop, cwd="/does/not/exist"),
        raising(netless.InheritedSocketError, noop, pass_fds=[network.fileno()]),
        raising(subprocess.TimeoutExpired, ["/bin/sleep", "60"], timeout=0.001),
        raising(netless.SubprocessError, noop, preexec_fn=refuse),
    ]


def soak(programs: Programs, total: int) -> list[dict[str, Any]]:
    """The state of this process after the first hundredth, half and all of the spawns."""
    stops = sorted({max(total // 100, 1), max(total // 2, 1), total})
    states = []
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as network:
        outcomes = _outcomes(programs, network)
        for outcome in outcomes:
            outcome()
        for spawned in range(1, total + 1):
            random.choice(outcomes)()
            if spawned in stops:
                states.append(_state(spawned))
    return states
