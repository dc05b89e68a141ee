"""How long an asyncio loop stands still while it starts children."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from typing import Any

from netless import aio

from . import measure

CHILDREN = 200
TICK = 0.001
ASYNCIO = "asyncio"
AIO = "netless.aio"
AT_ONCE = f"{CHILDREN} at once"
IN_TURN = f"{CHILDREN} in turn"

Create = Callable[..., Awaitable[asyncio.subprocess.Process]]
CREATES: dict[str, Create] = {
    ASYNCIO: asyncio.create_subprocess_exec,
    AIO: aio.create_subprocess_exec,
}


async def _tick(gaps: list[float]) -> None:
    last = time.perf_counter()
    while True:
        await asyncio.sleep(TICK)
        now = time.perf_counter()
        gaps.append(now - last)
        last = now


async def _child(create: Create, program: str) -> None:
    process = await create(program)
    if await process.wait() != 0:
        raise RuntimeError(f"{program} failed")


async def _longest_pause(create: Create, program: str, at_once: bool) -> float:
    gaps: list[float] = []
    ticker = asyncio.create_task(_tick(gaps))
    await asyncio.sleep(10 * TICK)
    if at_once:
        await asyncio.gather(*(_child(create, program) for _ in range(CHILDREN)))
    else:
        for _ in range(CHILDREN):
            await _child(create, program)
    await asyncio.sleep(TICK)
    ticker.cancel()
    return max(gaps)


def _pause(create: Create, program: str, at_once: bool) -> list[float]:
    return [asyncio.run(_longest_pause(create, program, at_once))]


def pauses(program: str, seconds: float) -> dict[str, Any]:
    """The longest pause of a ticker of 1 ms: children at once or in turn, contender."""
    turns: dict[tuple[str, str], measure.Turn] = {
        (how, name): functools.partial(_pause, create, program, how == AT_ONCE)
        for how in (AT_ONCE, IN_TURN)
        for name, create in CREATES.items()
    }
    samples = measure.interleave(turns, seconds)
    return {
        how: {name: measure.summary(samples[how, name]) for name in CREATES}
        for how in (AT_ONCE, IN_TURN)
    }
