"""The C programs of the benchmarks, compiled into a temporary folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
CSRC = HERE.parent / "csrc"


class Programs(NamedTuple):
    """Paths: a static no-op, a loop of getppid, the C floor, the least of all launchers."""

    noop: str
    calls: str
    floor: str
    inside: str

    def commands(self) -> dict[str, list[str]]:
        """The sizes of child that every contender starts."""
        return {
            "static no-op": [self.noop],
            "/bin/true": ["/bin/true"],
            "python -c pass": [sys.executable, "-c", "pass"],
        }


def build(folder: Path) -> Programs:
    """Compile all of them; needs gcc and a static libc."""

    def compiled(name: str, *sources: Path | str) -> str:
        target = folder / name
        subprocess.run(["gcc", "-O2", "-std=gnu11", "-o", target, *sources], check=True)
        return str(target)

    # An unmapped user, such as a child of a bare unshare, has to get at them.
    os.chmod(folder, 0o755)
    names = ("spawn", "fork", "channels", "linux", "proof", "seal", "descriptors")
    library = [CSRC / f"{name}.c" for name in names]
    return Programs(
        noop=compiled("noop", "-static", HERE / "noop.c"),
        calls=compiled("calls", "-static", HERE / "calls.c"),
        floor=compiled("floor", "-pthread", f"-I{CSRC}", HERE / "floor.c", *library),
        inside=compiled("inside", "-static", HERE / "inside.c"),
    )


class Floor:
    """The running C floor: one process that takes commands over a pipe."""

    KINDS = {  # noqa: RUF012  # the labels of the tables, in their order
        "C: vfork + exec": "plain",
        "C: vfork + setns + exec": "shared",
        "C: the same + seal": "shared-seal",
        "C: private": "private",
        "C: private + seal": "private-seal",
    }

    def __init__(self, program: str) -> None:
        self.process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def _ask(self, *words: object) -> list[float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\t".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().split()
        if not answer:
            raise RuntimeError(f"the C floor ended with status {self.process.wait()}")
        return [int(number) / 1e9 for number in answer]

    def time(self, label: str, command: Sequence[str], count: int) -> list[float]:
        """Seconds of each of ``count`` children, start to reaped."""
        return self._ask("time", self.KINDS[label], count, *command)

    def rate(self, label: str, command: Sequence[str], count: int, threads: int) -> float:
        """Children per second from so many threads."""
        return count / self._ask("rate", self.KINDS[label], count, threads, *command)[0]

    def close(self) -> None:
        """End it; it lives as long as its standard input."""
        self.process.communicate()
