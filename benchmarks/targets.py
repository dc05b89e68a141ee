"""The ratios that were promised, next to what was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .contenders import BWRAP, LAUNCHER, POPEN, PRIVATE, SHARED, UNSHARE
from .loops import AIO, ASYNCIO, AT_ONCE, IN_TURN
from .parts import FLOOR_OF_LAUNCHERS, FLOOR_OF_THREADS, ONE_INSTRUCTION

Results = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """One row: ``ratio`` raises KeyError where its part or contender was left out."""

    what: str
    limit: float | None
    ratio: Callable[[Results], float]
    is_least: bool = False

    def row(self, results: Results) -> dict[str, Any]:
        """The measured ratio, the limit, and whether it holds."""
        try:
            ratio = self.ratio(results)
        except KeyError:
            ratio = None
        holds = None
        if ratio is not None and self.limit is not None:
            holds = ratio >= self.limit if self.is_least else ratio <= self.limit
        return {
            "what": self.what,
            "ratio": ratio,
            "limit": self.limit,
            "is_least": self.is_least,
            "holds": holds,
        }


def _median(table: Results, *path: str) -> float:
    for name in path:
        table = table[name]
    return float(table["median"])


def _noop(name: str, other: str) -> Callable[[Results], float]:
    return lambda r: (
        _median(r, "spawn", "static no-op", name) / _median(r, "spawn", "static no-op", other)
    )


def _true(name: str, other: str) -> Callable[[Results], float]:
    return lambda r: (
        _median(r, "spawn", "/bin/true", name) / _median(r, "spawn", "/bin/true", other)
    )


def _pair(part: str) -> Callable[[Results], float]:
    return lambda r: _median(r, part, SHARED) / _median(r, part, POPEN)


def _rate(name: str, threads: str) -> Callable[[Results], float]:
    return lambda r: _median(r, "threads", name, threads) / _median(r, "threads", POPEN, threads)


def _growth(part: str, last: int, name: str) -> Callable[[Results], float]:
    """A condition, by its place in the part, against the first one."""

    def ratio(results: Results) -> float:
        conditions = list(results[part])
        if len(conditions) < 2 or not conditions[last:]:
            raise KeyError(last)
        return _median(results, part, conditions[last], name) / _median(
            results, part, conditions[0], name
        )

    return ratio


def _pause(how: str) -> Callable[[Results], float]:
    return lambda r: _median(r, "loop", how, AIO) / _median(r, "loop", how, ASYNCIO)


def _import_cost(results: Results) -> float:
    bare = _median(results, "imports", "pass")
    return (_median(results, "imports", "import netless") - bare) / (
        _median(results, "imports", "import subprocess") - bare
    )


TARGETS = [
    Target("netless shared / subprocess.Popen, static no-op", 1.05, _noop(SHARED, POPEN)),
    Target(
        "netless shared / C floor: vfork + setns + exec + the same seal",
        1.15,
        _noop(SHARED, "C: the same + seal"),
    ),
    Target(
        "netless private / C floor of the same steps", 1.15, _noop(PRIVATE, "C: private + seal")
    ),
    Target("netless, largest parent / 50 MB", 1.10, _growth("memory", -1, SHARED)),
    Target("children per second in 8 threads / subprocess.Popen", 1.0, _rate(SHARED, "8"), True),
    Target("... the C floor of vfork + exec", None, _rate(FLOOR_OF_THREADS, "8"), True),
    Target("longest stall of another thread / subprocess.Popen", 0.3, _pair("stall")),
    Target(
        "... of a thread that only sleeps",
        None,
        lambda r: _median(r, "stall", "nothing") / _median(r, "stall", POPEN),
    ),
    Target("longest pause of an asyncio loop, children at once / asyncio", 1.0, _pause(AT_ONCE)),
    Target("... children in turn", 1.0, _pause(IN_TURN)),
    Target("unshare / netless shared", 3.0, _noop(UNSHARE, SHARED), True),
    Target("bwrap / netless shared", 4.3, _noop(BWRAP, SHARED), True),
    Target("netless-exec / unshare, /bin/true", 0.65, _true(LAUNCHER, UNSHARE)),
    Target("... the floor: unshare, map, exec", None, _true(FLOOR_OF_LAUNCHERS, UNSHARE)),
    Target("netless-exec / bwrap, /bin/true", 0.45, _true(LAUNCHER, BWRAP)),
    Target("... the floor: unshare, map, exec", None, _true(FLOOR_OF_LAUNCHERS, BWRAP)),
    Target("CPU time of the parent per child / subprocess.Popen", 1.0, _pair("cpu")),
    Target("getppid in the child / under subprocess.Popen", 1.15, _pair("getppid")),
    Target(
        "... under a filter of one instruction",
        None,
        lambda r: _median(r, "getppid", ONE_INSTRUCTION) / _median(r, "getppid", POPEN),
    ),
    Target("import netless / import subprocess, each over bare", 3.0, _import_cost),
    Target("many open descriptors / few", None, _growth("scale", 1, SHARED)),
    Target("... subprocess.Popen", None, _growth("scale", 1, POPEN)),
    Target("environment of 100 KB / small", None, _growth("scale", 2, SHARED)),
    Target("... subprocess.Popen", None, _growth("scale", 2, POPEN)),
    Target("many live children / none", None, _growth("scale", 3, SHARED)),
    Target("... subprocess.Popen", None, _growth("scale", 3, POPEN)),
]


def rows(results: Results) -> list[dict[str, Any]]:
    """Every target with what these results say of it."""
    return [target.row(results) for target in TARGETS]
