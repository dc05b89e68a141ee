"""The machine that the numbers belong to."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import netless


def describe() -> dict[str, str]:
    """Kernel, processor, interpreter, and how busy it was at the start."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory:.0f} GB",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "netless": f"{netless.__version__} {_commit()}".strip(),
        "user": "root" if os.geteuid() == 0 else "unprivileged",
        "load at the start": "{:.2f} {:.2f} {:.2f}".format(*os.getloadavg()),
        "command": " ".join(["python -m benchmarks", *sys.argv[1:]]),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _commit() -> str:
    """Of the checkout, as far as there is one."""
    try:
        return subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
