"""What works inside unix_sockets=False: prints "works" or "refused" for each user of AF_UNIX.

Each runs in a child of its own; run as ``unix_inside.py NAME`` that is the child.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import tempfile

import netless
from netless import Isolation


def double(number: int) -> int:
    return 2 * number


def forkserver() -> None:
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=double, args=(1,))
    process.start()
    process.join()
    assert process.exitcode == 0


def manager() -> None:
    with multiprocessing.get_context("fork").Manager() as shared:
        numbers = shared.list([1])
        numbers.append(2)
        assert list(numbers) == [1, 2]


def pool() -> None:
    with multiprocessing.get_context("fork").Pool(2) as workers:
        assert workers.map(double, [1, 2]) == [2, 4]


async def talk() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(1))
        writer.close()

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "s")
        async with await asyncio.start_unix_server(answer, path):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            writer.close()


def asyncio_server() -> None:
    asyncio.run(talk())


USERS = {
    "forkserver": forkserver,
    "manager": manager,
    "pool": pool,
    "asyncio-server": asyncio_server,
}

if __name__ == "__main__":
    if len(sys.argv) > 1:
        USERS[sys.argv[1]]()
        sys.exit()
    isolation = Isolation(unix_sockets=False)
    assert "unix-path" in netless.require(isolation).guarantees
    for name in USERS:
        done = netless.run(
            [sys.executable, __file__, name], isolation=isolation, capture_output=True, timeout=120
        )
        is_refusal = done.returncode != 0 and b"PermissionError" in done.stderr
        print(name, "works" if done.returncode == 0 else "refused" if is_refusal else done.stderr)
