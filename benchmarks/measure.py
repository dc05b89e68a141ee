"""How it is measured: all contenders in every round, in random order; medians."""

from __future__ import annotations

import random
import statistics
import subprocess
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from .contenders import Start

Name = TypeVar("Name", bound=Hashable)
Turn = Callable[[], Sequence[float]]
LEAST_ROUNDS = 2


def interleave(turns: Mapping[Name, Turn], seconds: float) -> dict[Name, list[float]]:
    """All samples of every contender, from rounds until the time is up.

    The order is drawn anew for each round: a private namespace is taken down by
    the kernel after its child was reaped, at the cost of whoever comes next.
    """
    samples: dict[Name, list[float]] = {name: [] for name in turns}
    for turn in turns.values():  # caches and plans
        turn()
    end = time.monotonic() + seconds
    rounds = 0
    while rounds < LEAST_ROUNDS or time.monotonic() < end:
        for name in random.sample(list(turns), len(turns)):
            samples[name] += turns[name]()
        rounds += 1
    return samples


def summary(samples: Sequence[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, median, high = statistics.quantiles(samples, n=4)
    return {"median": median, "low": low, "high": high, "samples": len(samples)}


def summaries(samples: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """As :func:`summary`, for each."""
    return {name: summary(values) for name, values in samples.items()}


def time_children(start: Start, command: Sequence[str], count: int, **options: Any) -> list[float]:
    """Seconds of each child, start to reaped. One more goes first, untimed."""
    times = []
    for _ in range(count + 1):
        before = time.perf_counter()
        process = start(command, **options)
        process.wait()
        times.append(time.perf_counter() - before)
        check(process)
    return times[1:]


def time_captures(start: Start, command: Sequence[str], count: int) -> list[float]:
    """As :func:`time_children`, with the output read through a pipe."""
    times = []
    for _ in range(count + 1):
        before = time.perf_counter()
        with start(command, stdout=subprocess.PIPE) as process:
            output, _ = process.communicate()
        times.append(time.perf_counter() - before)
        check(process)
        if not output:
            raise RuntimeError(f"no output of {command}")
    return times[1:]


def check(process: subprocess.Popen[bytes]) -> None:
    """A child that failed would be a measurement of something else."""
    if process.returncode:
        raise RuntimeError(f"{process.args!r} ended with status {process.returncode}")
