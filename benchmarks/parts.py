"""What is measured: one function per table. Times are in seconds, as the results hold them."""

from __future__ import annotations

import functools
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from . import conditions, contenders, loops, measure
from .contenders import POPEN, PREEXEC, PRIVATE, SHARED, UNSHARE, Start
from .measure import interleave, summaries
from .programs import Floor, Programs

CHILDREN_PER_TURN = 3
SHORTEST_GAP = 20e-6  # what a thread that runs takes for one round at most
ONE_INSTRUCTION = "C: a filter of one instruction"
FLOOR_OF_LAUNCHERS = "C: unshare, map, exec"
FLOOR_OF_THREADS = "C: vfork + exec"
CAPTURE = "captured output"


@dataclass
class Bench:
    """What every part needs."""

    programs: Programs
    floor: Floor
    quick: bool

    def seconds(self, full: float) -> float:
        """The time that a part gets in a full run, or less."""
        return full / 25 if self.quick else full

    def pair(self) -> dict[str, Start]:
        """netless and what it is compared with."""
        usable, _ = contenders.find()
        return {name: usable[name] for name in (POPEN, SHARED)}


def spawn(bench: Bench) -> dict[str, Any]:
    """Every contender, four kinds of child, start to reaped."""
    found, _ = contenders.find()
    usable = {**found, FLOOR_OF_LAUNCHERS: contenders.prefixing([bench.programs.inside])}
    shares = dict(zip(bench.programs.commands(), (50, 25, 30), strict=True))
    results = {}
    for label, command in bench.programs.commands().items():
        turns: dict[str, measure.Turn] = {
            name: functools.partial(measure.time_children, start, command, CHILDREN_PER_TURN)
            for name, start in usable.items()
        }
        for kind in Floor.KINDS:
            turns[kind] = functools.partial(bench.floor.time, kind, command, CHILDREN_PER_TURN)
        results[label] = summaries(interleave(turns, bench.seconds(shares[label])))
    command = ["/bin/echo", "hello"]
    turns = {
        name: functools.partial(measure.time_captures, start, command, CHILDREN_PER_TURN)
        for name, start in usable.items()
    }
    results[CAPTURE] = summaries(interleave(turns, bench.seconds(20)))
    return results


def memory(bench: Bench) -> dict[str, Any]:
    """The parent's memory, touched: megabytes, contender."""
    usable, _ = contenders.find()
    names = tuple(name for name in (POPEN, SHARED, PRIVATE, UNSHARE) if name in usable)
    sizes = (50, 200) if bench.quick else (50, 1024, 4096)
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    fitting = [size for size in sizes if sum(s for s in sizes if s <= size) + 512 < available]
    prepare = {str(size): functools.partial(conditions.fill_memory, size) for size in fitting}
    # Apart: copies of gigabytes of page tables slow down whoever comes next.
    groups = {names: bench.seconds(25), (PREEXEC,): bench.seconds(10)}
    return conditions.compare(prepare, groups, [bench.programs.noop])


def scale(bench: Bench) -> dict[str, Any]:
    """Descriptors, environment, live children."""
    shrink = 10 if bench.quick else 1
    descriptors = conditions.most_descriptors(100_000 // shrink)
    children = 2_000 // shrink
    prepare = {
        "nothing": functools.partial(conditions.nothing),
        f"{descriptors:,} open descriptors": functools.partial(
            conditions.open_descriptors, descriptors
        ),
        "environment of 100 KB": functools.partial(conditions.grow_environment, 100),
        f"{children:,} live children": functools.partial(
            conditions.start_children, children, bench.programs.noop
        ),
    }
    groups: dict[tuple[str, ...], float] = {(POPEN, SHARED): bench.seconds(25)}
    return conditions.compare(prepare, groups, [bench.programs.noop])


def threads(bench: Bench) -> dict[str, Any]:
    """Children per second: contender, number of threads."""
    command, total = [bench.programs.noop], 16 if bench.quick else 64
    turns: dict[tuple[str, int], measure.Turn] = {}
    for count in (1, 2, 4, 8):
        for name, start in bench.pair().items():
            turns[name, count] = functools.partial(_rates, start, command, total, count)
        turns[FLOOR_OF_THREADS, count] = functools.partial(
            _floor_rates, bench.floor, command, total, count
        )
    samples = interleave(turns, bench.seconds(30))
    return {
        name: {str(count): measure.summary(samples[name, count]) for count in (1, 2, 4, 8)}
        for name in (*bench.pair(), FLOOR_OF_THREADS)
    }


def _rates(start: Start, command: Sequence[str], total: int, count: int) -> list[float]:
    with ThreadPoolExecutor(count) as pool:
        before = time.perf_counter()
        list(pool.map(lambda _: _start_and_reap(start, command), range(total)))
        return [total / (time.perf_counter() - before)]


def _floor_rates(floor: Floor, command: Sequence[str], total: int, count: int) -> list[float]:
    return [floor.rate(FLOOR_OF_THREADS, command, total, count)]


class Ticker(threading.Thread):
    """Notes how long it could not run, each time.

    Without the time that it only waited for a processor: that is the fault of
    whatever else runs on the machine, not of the thread that starts children.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ended = False
        self.gaps: list[float] = []
        self.last = 0.0

    def run(self) -> None:
        queued = _seconds_queued()
        self.last = time.perf_counter()
        while not self.ended:
            now = time.perf_counter()
            if now - self.last > SHORTEST_GAP:
                before, queued = queued, _seconds_queued()
                self.gaps.append(now - self.last - (queued - before))
            self.last = now

    def wait_for_tick(self) -> None:
        """Until it has run once more, and so has noted what it missed."""
        before = self.last
        while self.last == before:
            time.sleep(0.001)


def _seconds_queued() -> float:
    """How long this thread was ready to run, and did not; 0 where the kernel does not say."""
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return int(file.read().split()[1]) / 1e9
    except FileNotFoundError:
        return 0.0


def _longest_stalls(action: Callable[[], object], count: int) -> list[float]:
    """The ticker's longest gap, for each of ``count`` actions."""
    ticker = Ticker()
    ticker.start()
    stalls = []
    try:
        for _ in range(count):
            ticker.wait_for_tick()
            gaps = ticker.gaps = [SHORTEST_GAP]
            action()
            ticker.wait_for_tick()
            stalls.append(max(gaps))
    finally:
        ticker.ended = True
        ticker.join()
    return stalls


def _start_and_reap(start: Start, command: Sequence[str]) -> None:
    process = start(command)
    process.wait()
    measure.check(process)


def stall(bench: Bench) -> dict[str, Any]:
    """The longest stall of another thread while one child is started and reaped."""
    turns: dict[str, measure.Turn] = {
        name: functools.partial(
            _longest_stalls, functools.partial(_start_and_reap, start, [bench.programs.noop]), 5
        )
        for name, start in bench.pair().items()
    }
    turns["nothing"] = functools.partial(_longest_stalls, functools.partial(time.sleep, 0.01), 5)
    return summaries(interleave(turns, bench.seconds(20)))


def loop(bench: Bench) -> dict[str, Any]:
    """The longest pause of an asyncio loop that starts children."""
    return loops.pauses(bench.programs.noop, bench.seconds(30))


def _cpu_times(start: Start, command: Sequence[str], count: int) -> list[float]:
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(count):
        _start_and_reap(start, command)
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return [used / count]


def cpu(bench: Bench) -> dict[str, Any]:
    """CPU time of the parent for one child."""
    turns: dict[str, measure.Turn] = {
        name: functools.partial(_cpu_times, start, [bench.programs.noop], 20)
        for name, start in bench.pair().items()
    }
    return summaries(interleave(turns, bench.seconds(15)))


def _cost_of_a_call(start: Start, command: Sequence[str]) -> list[float]:
    with start(command, stdout=subprocess.PIPE) as process:
        output, _ = process.communicate()
    measure.check(process)
    return [float(output) / 1e9]


def getppid(bench: Bench) -> dict[str, Any]:
    """What a system call costs the child: under the seal, and without."""
    usable, _ = contenders.find()
    names = [
        name
        for name in (POPEN, SHARED, "netless unix_sockets=False", "netless filter")
        if name in usable
    ]
    turns: dict[str, measure.Turn] = {
        name: functools.partial(_cost_of_a_call, usable[name], [bench.programs.calls])
        for name in names
    }
    turns[ONE_INSTRUCTION] = functools.partial(
        _cost_of_a_call, usable[POPEN], [bench.programs.calls, "filter"]
    )
    return summaries(interleave(turns, bench.seconds(10)))


def imports(bench: Bench) -> dict[str, Any]:
    """Whole interpreters that import, and end."""
    codes = {
        "pass": "pass",
        "import subprocess": "import subprocess",
        "import netless": "import netless",
    }
    turns: dict[str, measure.Turn] = {
        name: functools.partial(
            measure.time_children, subprocess.Popen, [sys.executable, "-c", code], 2
        )
        for name, code in codes.items()
    }
    return summaries(interleave(turns, bench.seconds(20)))


PARTS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    function.__name__: function
    for function in (spawn, memory, threads, stall, loop, cpu, getppid, imports, scale)
}
