"""How many system calls one spawn takes, by ``strace -c``."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from .contenders import POPEN, SHARED
from .programs import Programs

LOOP = "import sys, {} as m\nfor _ in range({}): m.Popen(sys.argv[1:]).wait()"
MODULES = {POPEN: "subprocess", SHARED: "netless"}
FEW, MANY = 10, 60


def _count(module: str, spawns: int, command: list[str], *options: str) -> Counter[str]:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "counts"
        subprocess.run(
            ["strace", "-c", *options, "-o", str(output)]
            + [sys.executable, "-c", LOOP.format(module, spawns), *command],
            check=True,
        )
        counts: Counter[str] = Counter()
        for line in output.read_text().splitlines():
            words = line.split()
            if len(words) >= 5 and words[3].isdigit() and words[-1] != "total":
                counts[words[-1]] = int(words[3])
        return counts


def _per_spawn(module: str, command: list[str], *options: str) -> dict[str, float]:
    """The difference of two runs: what the interpreter does besides cancels out."""
    few = _count(module, FEW, command, *options)
    many = _count(module, MANY, command, *options)
    calls = {name: (many[name] - few[name]) / (MANY - FEW) for name in many}
    return {name: count for name, count in sorted(calls.items()) if count >= 0.1}


def syscalls(programs: Programs) -> dict[str, dict[str, dict[str, float]]]:
    """Contender, process, system call: how many for one child.

    The child's own are what is left of both processes' without the parent's; the
    few of the static program itself are among them, the same for all.
    """
    results = {}
    for name, module in MODULES.items():
        parent = _per_spawn(module, [programs.noop])
        both = _per_spawn(module, [programs.noop], "-f")
        child = {call: both[call] - parent.get(call, 0) for call in both}
        results[name] = {
            "parent": parent,
            "child": {call: count for call, count in child.items() if count >= 0.1},
        }
    return results
