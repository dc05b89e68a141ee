"""32-bit x86, natively on this kernel: netless-exec, and the launch path of csrc/ itself.

There libc speaks to sockets by socketcall, which the filter of the launch refuses: what the
child of a launch says of itself must not need it.
"""

from __future__ import annotations

import errno
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import MUST_ISOLATE, PATIENCE, Listener, build_launcher, need

if platform.machine() != "x86_64":
    pytest.skip("this machine runs no 32-bit x86 programs", allow_module_level=True)

pytestmark = [pytest.mark.isolated, pytest.mark.native]
ROOT = Path(__file__).resolve().parent.parent
IS_ROOT = os.geteuid() == 0
STATIC32 = ("-m32", "-static")

sys.path.insert(0, str(ROOT))
try:
    from tests.kernels import image
finally:
    sys.path.remove(str(ROOT))


@pytest.fixture(scope="module")
def place(programs) -> Iterator[Path]:
    """A directory that every user may enter, with the 32-bit programs."""
    folder = Path(tempfile.mkdtemp(prefix="i386-", dir="/tmp"))
    folder.chmod(0o755)
    shutil.copy(programs("connect.c", *STATIC32), folder / "connect")
    shutil.copy(programs("deny.c", *STATIC32), folder / "deny")
    try:
        build_launcher().link(folder / "netless-exec", [need("gcc"), *STATIC32])
    except subprocess.CalledProcessError:
        (pytest.fail if MUST_ISOLATE else pytest.skip)("gcc-multilib is not installed")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def launch(place: Path) -> str:
    """tests/kernels/launch.c: one child by the launch path, without Python."""
    names = ("launch.c", "opened.c", "around.c")
    own = [*(image.HERE / name for name in names), "-I", ROOT / "csrc", "-pthread"]
    sources = image.launch_sources(place, [])
    flags = ["-std=gnu11", "-O2", "-Wall", "-Werror", *STATIC32, f"-Wl,{image.WRAPPED}"]
    command = [need("gcc"), *flags, *sources, *own, "-o", place / "launch"]
    subprocess.run(command, check=True)
    return str(place / "launch")


def run(*command: str | Path, **options) -> subprocess.CompletedProcess:
    options = {"capture_output": True, "text": True, "timeout": PATIENCE, "cwd": "/", **options}
    return subprocess.run([*map(str, command)], **options)


def test_they_are_32_bit_programs(place: Path, launch: str) -> None:
    for program in ("netless-exec", "launch", "connect"):
        assert (place / program).read_bytes()[:5] == b"\x7fELF\x01"


WAYS = {
    "default": [],
    "private": ["--private"],
    "loopback": ["--loopback"],
    "no unix sockets": ["--no-unix-sockets"],
    "map root": ["--map-root"],
}
each_way = pytest.mark.parametrize("options", WAYS.values(), ids=list(WAYS))
# Where joining is refused the launcher makes its namespaces with a helper, by a channel.
AROUND = {"nothing around": (), "setns refused": ("setns=EPERM",)}
each_around = pytest.mark.parametrize("around", AROUND.values(), ids=list(AROUND))


def execute(place: Path, around: tuple[str, ...], *arguments: str | Path):
    prefix = [place / "deny", *around, "--"] if around else []
    return run(*prefix, place / "netless-exec", *arguments)


@each_way
@each_around
def test_launcher_isolates(around, options, place: Path, listener4: Listener) -> None:
    reach = [place / "connect", "127.0.0.1", str(listener4.port)]
    before = listener4.reached
    assert run(*reach).returncode == 0, "the control did not reach the listener"
    assert listener4.wait_until_reached(before)
    before = listener4.reached
    done = execute(place, around, *options, "--", *reach)
    # No 32-bit libc that has sockets by socketcall alone gets one at all.
    assert done.returncode in (1, 3), done.stderr
    assert listener4.reached == before


@each_way
@each_around
def test_launcher_tells_why_a_program_is_not_executed(around, options, place: Path) -> None:
    for program, status, number in (
        ("/no/such/program", 127, errno.ENOENT),
        ("/etc/passwd", 126, errno.EACCES),
    ):
        done = execute(place, around, *options, "--", program)
        said = f"netless-exec: error: {program}: {os.strerror(number)}\n"
        assert (done.returncode, done.stderr) == (status, said)


@each_around
def test_launcher_with_a_fallback_tries_in_a_child_first(around, place: Path) -> None:
    """That child's word comes by the channel, where it makes its own namespaces."""
    for program, status in (("true", 0), ("/no/such/program", 127)):
        done = execute(place, around, "--fallback", "filter", "--", program)
        assert done.returncode == status, done.stderr


def test_refusal_comes_back(place: Path) -> None:
    done = execute(place, ("unshare=EPERM", "clone&0x7e020000=EPERM", "clone3=ENOSYS"), "true")
    assert done.returncode == 125
    assert "blocked-by-seccomp: launch step 'unshare' failed with EPERM" in done.stderr


KINDS = ["shared", "private", "loopback", "map-root", "no-unix", "make", "make-loopback"]


def step(name: str) -> int:
    return build_launcher()._enum("step").index(name)


@pytest.mark.parametrize("ids", [[], ["--ids"]], ids=["shared memory", "memory of its own"])
@pytest.mark.parametrize("kind", KINDS)
def test_launch_of_a_child(kind: str, ids: list, launch: str, listener4: Listener) -> None:
    """With ids to take it has memory of its own, as for user=, and reports by a channel."""
    connect = [Path(launch).with_name("connect"), "127.0.0.1", str(listener4.port)]
    before = listener4.reached
    assert run(launch, "none", "--", *connect).returncode == 0
    assert listener4.wait_until_reached(before)
    before = listener4.reached
    if kind != "map-root" or not ids:  # the id it has outside is none inside
        done = run(launch, kind, *ids, "--", *connect)
        assert done.returncode in (1, 3), done.stdout + done.stderr
        assert listener4.reached == before
        assert run(launch, kind, *ids, "--dumpable", "--", "/bin/true").returncode == 0


@pytest.mark.parametrize("ids", [[], ["--ids"]], ids=["shared memory", "memory of its own"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "map-root"])
@pytest.mark.parametrize(
    ("program", "number"),
    [("/no/such/program", errno.ENOENT), ("/etc/passwd", errno.EACCES)],
)
def test_program_that_cannot_be_executed(
    program: str, number: int, kind: str, ids: list, launch: str
) -> None:
    """Not a child that ends with 127: the error, as for a program of 64 bits."""
    done = run(launch, kind, *ids, "--", program)
    assert (done.returncode, done.stdout) == (100, f"failed:{step('exec')}:{number}\n")
