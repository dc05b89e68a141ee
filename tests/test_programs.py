"""What ordinary programs need still works inside, with the defaults."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import netless
from netless import Isolation
from support import PATIENCE, need

pytestmark = pytest.mark.isolated


def inside(*command: str, **options) -> str:
    done = netless.run(list(command), capture_output=True, text=True, timeout=PATIENCE, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_name_service_of_this_machine() -> None:
    source = (
        "import grp, pwd, socket;"
        "pwd.getpwnam('root'); grp.getgrnam('root');"
        "print(sorted({found[4][0] for found in socket.getaddrinfo('localhost', 80)}))"
    )
    assert "127.0.0.1" in inside(sys.executable, "-c", source)


def test_netlink_tells_the_addresses() -> None:
    assert "lo" in inside(need("ip"), "addr")


def test_syslog() -> None:
    inside(sys.executable, "-c", "import syslog; syslog.syslog('x')")


MULTIPROCESSING = """
import multiprocessing, sys
from multiprocessing import shared_memory

def work(n):
    return n * n

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with context.Pool(2) as pool:
        assert pool.map(work, range(5)) == [0, 1, 4, 9, 16]
    with context.Manager() as manager:
        shared = manager.dict(a=1)
        assert shared["a"] == 1
    queue = context.Queue()
    process = context.Process(target=queue.put, args=(7,))
    process.start()
    assert queue.get() == 7
    process.join()
    block = shared_memory.SharedMemory(create=True, size=10)
    block.close()
    block.unlink()
    print("ok")
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(method: str, tmp_path: Path) -> None:
    file = tmp_path / "work.py"
    file.write_text(MULTIPROCESSING)
    assert inside(sys.executable, str(file), method) == "ok\n"


def test_asyncio_with_subprocesses_and_threads() -> None:
    source = """
import asyncio, time
async def main():
    process = await asyncio.create_subprocess_exec("echo", "x", stdout=asyncio.subprocess.PIPE)
    slow = asyncio.to_thread(time.sleep, 0.3)
    (out, _), _ = await asyncio.gather(process.communicate(), slow)
    assert out == b"x\\n"
asyncio.run(main())
"""
    inside(sys.executable, "-c", source)


def test_git_clones_a_local_path(tmp_path: Path) -> None:
    git = need("git")
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.invalid")
    subprocess.check_call([git, "init", "-q", str(tmp_path / "a")])
    commit = [*identity, "commit", "-q", "--allow-empty", "-m", "x"]
    subprocess.check_call([git, "-C", str(tmp_path / "a"), *commit])
    inside(git, "clone", "-q", str(tmp_path / "a"), str(tmp_path / "b"))
    assert (tmp_path / "b" / ".git").exists()


def test_node_and_bash() -> None:
    work = "require('child_process').execSync('true'); setTimeout(() => console.log('ok'), 10)"
    assert inside(need("node"), "-e", work) == "ok\n"
    assert inside(need("bash"), "-c", "diff <(echo a) <(echo a) && echo ok") == "ok\n"


def test_compiler(tmp_path: Path) -> None:
    source = tmp_path / "a.c"
    source.write_text("int main(void) { return 0; }\n")
    inside(need("gcc"), str(source), "-o", str(tmp_path / "a"))


NESTED = """
import sys
import netless
depth = int(sys.argv[1])
if depth == 0:
    print("inside")
else:
    raise SystemExit(netless.call([sys.executable, __file__, str(depth - 1)]))
"""


def test_netless_in_netless_three_levels_deep(tmp_path: Path) -> None:
    file = tmp_path / "nested.py"
    file.write_text(NESTED)
    assert inside(sys.executable, str(file), "3") == "inside\n"


def test_twenty_levels_deep_landlock_gives_out_and_isolation_stays(tmp_path: Path) -> None:
    """Landlock stops at 16 layers: a user namespace for each child stands in for `siblings`."""
    file = tmp_path / "nested.py"
    file.write_text(NESTED.replace('print("inside")', "print(*sorted(netless.probe().guarantees))"))
    held = inside(sys.executable, str(file), "18").split()
    assert {"ip", "siblings", "no-way-back", "vm-sockets"} <= set(held)


def test_other_sandboxes_inside() -> None:
    assert inside(need("unshare"), "-Ur", "id", "-u") == "0\n"
    # As root, bwrap takes its capabilities for granted unless it is told to make a namespace.
    bwrap = [need("bwrap"), "--unshare-user", "--unshare-net", "--dev-bind", "/", "/"]
    assert inside(*bwrap, "echo", "ok") == "ok\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="what root's children keep")
def test_roots_children_change_users(tmp_path: Path) -> None:
    assert inside("setpriv", "--reuid=65534", "--clear-groups", "id", "-u") == "65534\n"
    assert inside("su", "-s", "/bin/sh", "nobody", "-c", "id -u") == "65534\n"


def test_loopback_gives_servers_and_low_ports_to_root_inside() -> None:
    serve = "import socket; socket.create_server(('127.0.0.1', 80)).close(); print('ok')"
    isolation = Isolation(loopback=True, map_root=True)
    assert inside(sys.executable, "-c", serve, isolation=isolation) == "ok\n"
