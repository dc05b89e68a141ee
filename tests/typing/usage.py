"""What a type checker must know about the public names; checked by mypy, never run."""

from asyncio.subprocess import Process
from subprocess import CompletedProcess
from typing import Any

from typing_extensions import assert_type

import netless as subprocess
from netless import Isolation, NetworkIsolationUnavailable, Probe

assert_type(subprocess.run(["ls"]), CompletedProcess[bytes])
assert_type(subprocess.run(["ls"], text=True), CompletedProcess[str])
assert_type(subprocess.run("ls", shell=True, encoding="utf-8").returncode, int)
assert_type(subprocess.check_output(["ls"]), bytes)
assert_type(subprocess.check_output(["ls"], text=True), str)
assert_type(subprocess.call(["ls"], timeout=3.0), int)
assert_type(subprocess.Popen(["ls"], isolation=Isolation(private=True)), subprocess.Popen[bytes])
assert_type(subprocess.Popen(["ls"], text=True, stdout=subprocess.PIPE), subprocess.Popen[str])
assert_type(subprocess.getstatusoutput("ls"), tuple[int, str])
assert_type(subprocess.probe(), Probe)
assert_type(subprocess.wrapper_command(["ls"]), list[str])
assert_type(subprocess.wrapper_command(("ls",), check=True, path="/bin"), list[str])
assert_type(NetworkIsolationUnavailable.code, str)
assert_type(subprocess.get_context("spawn").Process(target=print).exitcode, int | None)
assert_type(subprocess.ProcessPoolExecutor(2, isolation=Isolation()).isolation, Isolation)


def choose(text: bool) -> None:
    """A flag that is not known beforehand."""
    assert_type(subprocess.run(["ls"], text=text), CompletedProcess[Any])
    subprocess.run(["ls"], isolation="private")  # type: ignore[call-overload]
    Isolation(True)  # type: ignore[call-arg]


async def start() -> None:
    """asyncio's own Process."""
    process = await subprocess.aio.create_subprocess_exec("ls", "-l", stdout=subprocess.PIPE)
    assert_type(process, Process)
    assert_type(await process.communicate(), tuple[bytes, bytes])
    isolation = Isolation(loopback=True)
    assert_type(
        await subprocess.aio.create_subprocess_shell("ls", isolation=isolation, cwd="/"), Process
    )
    await subprocess.aio.create_subprocess_exec("ls", text=True)  # type: ignore[call-arg]
