"""Parents in a condition that could make a spawn slow, each a process of its own."""

from __future__ import annotations

import contextlib
import functools
import mmap
import multiprocessing
import os
import resource
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor

import netless

from . import contenders, measure

PAGE = mmap.PAGESIZE
_kept: list[object] = []


def fill_memory(megabytes: int) -> None:
    """Private memory, every page of it touched. Huge pages would make its copy cheap."""
    memory = mmap.mmap(-1, megabytes << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    memory[::PAGE] = b"\1" * (len(memory) // PAGE)
    _kept.append(memory)


def open_descriptors(count: int) -> None:
    """As many as the limit allows."""
    count = most_descriptors(count)
    first = os.open(os.devnull, os.O_RDONLY)
    _kept.append([first, *(os.dup(first) for _ in range(count - 1))])


def most_descriptors(count: int) -> int:
    """Raises the limit as far as this user may; how many descriptors there can be."""
    wanted = count + 100
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, wanted))
            hard = wanted
    soft = max(soft, min(hard, wanted))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(count, soft - 100)


def grow_environment(kilobytes: int) -> None:
    """Variables of 1 KB."""
    for number in range(kilobytes):
        name = f"BENCHMARK_{number}"
        os.environ[name] = "x" * (1022 - len(name))


def start_children(count: int, noop: str) -> None:
    """Isolated ones; they end with this process, whose end of the pipe they read."""
    reading, writing = os.pipe()
    _kept.append(writing)
    _kept.append([netless.Popen([noop, "wait"], stdin=reading) for _ in range(count)])
    os.close(reading)


def nothing() -> None:
    """The condition to compare with."""


def _turn(name: str, command: Sequence[str], count: int) -> list[float]:
    usable, _ = contenders.find()
    return measure.time_children(usable[name], command, count)


def _asking(executor: ProcessPoolExecutor, name: str, command: Sequence[str]) -> measure.Turn:
    return lambda: executor.submit(_turn, name, command, 3).result()


Prepare = functools.partial


@contextlib.contextmanager
def parents(prepare: Mapping[str, Prepare[None]]) -> Iterator[dict[str, ProcessPoolExecutor]]:
    """One process per condition, started afresh and ended afterwards."""
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(ProcessPoolExecutor(1, context, initializer=function))
            for name, function in prepare.items()
        }


def compare(
    prepare: Mapping[str, Prepare[None]],
    groups: Mapping[tuple[str, ...], float],
    command: Sequence[str],
) -> dict[str, dict[str, dict[str, float]]]:
    """Condition, contender: its time for a child.

    All conditions and contenders of one group are interleaved, for so many seconds.
    """
    samples: dict[tuple[str, str], list[float]] = {}
    with parents(prepare) as executors:
        for names, seconds in groups.items():
            turns = {
                (condition, name): _asking(executor, name, command)
                for condition, executor in executors.items()
                for name in names
            }
            samples |= measure.interleave(turns, seconds)
    results: dict[str, dict[str, dict[str, float]]] = {condition: {} for condition in prepare}
    for (condition, name), times in samples.items():
        results[condition][name] = measure.summary(times)
    return results
