"""docs/event-loops.md: its code as written, and what else trio and anyio promise."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import anyio
import pytest
import trio

import netless
from support import PATIENCE, snapshot

pytestmark = pytest.mark.isolated

DOCS = Path(__file__).resolve().parent.parent / "docs" / "event-loops.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
LOOPS = {
    "asyncio": lambda main, *command: asyncio.run(main(*command)),
    "trio": trio.run,
    "anyio": anyio.run,
    "anyio on trio": lambda main, *command: anyio.run(main, *command, backend="trio"),
}
CONNECT = (
    "import socket, sys; c = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5);"
    "c.send(b'x'); c.recv(9)"
)


def ways():
    """Each example on each loop that it is for."""
    found = []
    for number, source in enumerate(EXAMPLES):
        library = re.search(r"^import (\w+)", source.replace("import functools", ""), re.MULTILINE)
        for loop in LOOPS:
            if loop.split()[0] == library[1]:
                found.append(pytest.param(source, LOOPS[loop], id=f"{number} {loop}"))
    return found


def plain(source: str) -> str:
    """The control: the same code without netless."""
    changed = (
        source.replace("netless.wrapper_command(command)", "command")
        .replace("from netless import aio", "import asyncio.subprocess as aio")
        .replace("netless.run", "subprocess.run")
        .replace("import netless", "import subprocess")
    )
    assert "netless" not in changed
    return changed


def defined(source: str):
    names: dict[str, object] = {}
    exec(compile(source, str(DOCS), "exec"), names)
    return names["main"]


def test_every_library_has_its_examples() -> None:
    assert len(EXAMPLES) == 5
    assert len(ways()) == 7


@pytest.mark.parametrize(("source", "run"), ways())
def test_example_reaches_no_listener(source: str, run, listener4) -> None:
    command = [sys.executable, "-c", CONNECT, listener4.address, str(listener4.port)]
    before = listener4.reached
    assert run(defined(plain(source)), *command) == 0
    assert listener4.wait_until_reached(before)
    before = listener4.reached
    assert run(defined(source), *command) == 1
    assert listener4.reached == before


@pytest.mark.parametrize(("source", "run"), ways())
def test_example_gives_the_status_and_leaves_nothing(source: str, run) -> None:
    main = defined(source)
    run(main, "true")
    before = snapshot()
    assert run(main, "sh", "-c", "exit 7") == 7
    assert snapshot() == before


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_cancelled_anyio_process_ends(backend: str) -> None:
    async def main():
        with anyio.move_on_after(0.5) as scope:
            await anyio.run_process(netless.wrapper_command(["sleep", "600"]))
        return scope.cancelled_caught

    anyio.run(main, backend=backend)  # what the loops keep
    before = snapshot()
    assert anyio.run(main, backend=backend)
    assert snapshot() == before


def test_cancelled_trio_process_ends() -> None:
    async def main():
        with trio.move_on_after(0.5) as scope:
            await trio.run_process(netless.wrapper_command(["sleep", "600"]))
        return scope.cancelled_caught

    before = snapshot()
    assert trio.run(main)
    assert snapshot() == before


def test_streams_of_an_open_process() -> None:
    async def main():
        with trio.fail_after(PATIENCE):
            command = netless.wrapper_command(["cat"])
            process = await trio.lowlevel.open_process(command, stdin=-1, stdout=-1)
            async with process.stdin, process.stdout:
                await process.stdin.send_all(b"one")
                assert await process.stdout.receive_some() == b"one"
                await process.stdin.aclose()
                assert await process.wait() == 0
        async with await anyio.open_process(netless.wrapper_command(["cat"])) as process:
            await process.stdin.send(b"two")
            assert await process.stdout.receive() == b"two"
            await process.stdin.aclose()
            assert await process.wait() == 0

    trio.run(main)
