"""Capabilities: a child never has more of them than one of subprocess, whatever it entered."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import netless
from netless import Isolation
from support import need

pytestmark = [pytest.mark.isolated, pytest.mark.native]
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="what root has and others have not")
FILTER = Isolation(mechanism="filter")

# What the program at hand can do with a file that only uid 1 may read, and its capabilities.
READS = """
import sys
try:
    print("read", open(sys.argv[1]).read())
except PermissionError:
    print("refused")
"""
WAYS = {
    "Popen": "netless.check_call([sys.executable, '-c', reads, file])",
    "private": "netless.check_call([sys.executable, '-c', reads, file],"
    " isolation=netless.Isolation(private=True))",
    "preexec": "netless.check_call([sys.executable, '-c', reads, file], preexec_fn=int)",
    "user": "netless.check_call([sys.executable, '-c', reads, file], group=0)",
    "netless-exec": "subprocess.check_call([launcher, '--', sys.executable, '-c', reads, file])",
    "isolate": "netless.isolate(); exec(reads)",
    "worker": "worker = netless.get_context('fork').Process(target=exec, args=(reads, {}))\n"
    "worker.start(); worker.join()",
    "workers program": "worker = netless.get_context('fork').Process(target=subprocess.check_call,"
    " args=([sys.executable, '-c', reads, file],))\nworker.start(); worker.join()",
}
SCRIPT = """
import subprocess, sys
import netless
from netless import _launcher
file, reads = sys.argv[1:]
launcher = _launcher.find()
{first}
subprocess.check_call([sys.executable, "-c", reads, file])  # the control: nothing of netless
sys.stdout.flush()
{way}
"""
PRCTL = "import ctypes; prctl = ctypes.CDLL(None, use_errno=True).prctl\n"
# In the caller itself, which keeps its permitted set, as what goes on without execve does.
GIVEN_UP = {
    "bounding set": PRCTL + "assert not any(prctl(24, n, 0, 0, 0) for n in range(38))",
    "noroot": PRCTL + "assert prctl(28, 3, 0, 0, 0) == 0  # SECBIT_NOROOT and its lock",
}
NO_CHILDREN_OF_IT = ("isolate", "worker", "netless-exec")
# By a program before it, so that no set has more.
FEW = (
    *("setpriv", "--inh-caps=-all"),
    "--bounding-set=-all,+setuid,+setgid,+setfcap,+setpcap",
)


@pytest.fixture
def others_file(tmp_path: Path) -> str:
    """Of uid 1, which nobody else may read but by a capability."""
    tmp_path.chmod(0o755)
    file = tmp_path / "secret"
    file.write_text("secret")
    file.chmod(0o400)
    os.chown(file, 1, 1)
    return str(file)


@only_root
@pytest.mark.parametrize("way", [way for way in WAYS if way not in NO_CHILDREN_OF_IT])
@pytest.mark.parametrize("given_up", GIVEN_UP)
def test_what_a_caller_gave_up_does_not_come_back(
    way: str, given_up: str, others_file: str, script
) -> None:
    done = script(SCRIPT.format(first=GIVEN_UP[given_up], way=WAYS[way]), others_file, READS)
    assert done.stdout.split() == ["refused", "refused"], done.stderr


@only_root
@pytest.mark.parametrize("way", WAYS)
def test_nor_what_it_never_had(way: str, others_file: str, script) -> None:
    need("setpriv")
    done = script(SCRIPT.format(first="", way=WAYS[way]), others_file, READS, prefix=FEW)
    assert done.stdout.split() == ["refused", "refused"], done.stderr


@only_root
@pytest.mark.parametrize("way", ["Popen", "private", "preexec", "user", "worker"])
def test_nor_what_it_gives_up_after_the_first_launch(way: str, others_file: str, script) -> None:
    """The bounding set alone, which changes no other set."""
    first = """
netless.check_call([sys.executable, "-c", reads, file])
sys.stdout.flush()
import ctypes
prctl = ctypes.CDLL(None, use_errno=True).prctl
assert not any(prctl(24, number, 0, 0, 0) for number in (1, 2))  # CAP_DAC_*
"""
    done = script(SCRIPT.format(first=first, way=WAYS[way]), others_file, READS)
    expected = ["read", "secret", "refused"]
    # What goes on without execve keeps its permitted set, as after os.fork.
    expected += ["read", "secret"] if way == "worker" else ["refused"]
    assert done.stdout.split() == expected, done.stderr


@only_root
@pytest.mark.parametrize("way", WAYS)
def test_what_a_caller_kept_stays(way: str, others_file: str, script) -> None:
    """The control: root's children read everything, as those of subprocess do."""
    done = script(SCRIPT.format(first="", way=WAYS[way]), others_file, READS)
    assert done.stdout.split() == ["read", "secret"] * 2, done.stderr


# ---- the limits of the namespace that all share ----

LIMIT = "/proc/sys/user/max_net_namespaces"
LOWER = ["sh", "-c", f"echo 0 > {LIMIT} && cat {LIMIT}"]


@pytest.mark.parametrize("isolation", [Isolation(), Isolation(map_root=True)], ids=["", "map-root"])
def test_a_child_cannot_lower_the_limits_of_others(isolation: Isolation) -> None:
    if isolation == Isolation() and os.geteuid() != 0:
        isolation = Isolation(map_root=True)
    control = subprocess.run([need("unshare"), "-Ur", *LOWER], capture_output=True, text=True)
    assert control.stdout == "0\n", control.stderr  # in a user namespace of its own
    done = netless.run(LOWER, capture_output=True, text=True, isolation=isolation)
    assert (done.returncode != 0, done.stdout) == (True, "")
    for wanted in ({"private": True}, {"loopback": True}):
        own = Isolation(map_root=isolation.map_root, **wanted)
        assert netless.run(["true"], isolation=own).returncode == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root has the caller's limit to raise")
def test_a_limit_that_is_reached_is_waited_for(script) -> None:
    """One after the other, where no two namespaces are allowed at a time."""
    source = """
        import netless
        netless.require(netless.Isolation(private=True))
        for _ in range(8):
            netless.check_call(["true"], isolation=netless.Isolation(private=True))
        print("ok")
    """
    inner = f'echo 4 > {LIMIT} && exec "$@"'
    prefix = (need("unshare"), "-Ur", "--", "sh", "-ec", inner, "sh")
    done = script(source, prefix=prefix)
    assert done.stdout == "ok\n", done.stderr


# ---- the filter mechanism ----

TAKES_BACK = {
    "effective ids": "os.seteuid(1500)",
    "effective and real ids": "os.setresuid(1500, 1500, 0)",
    "effective capabilities": """
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
header = struct.pack("Ii", 0x20080522, 0)
data = ctypes.create_string_buffer(24)
assert libc.capget(header, data) == 0
sets = list(struct.unpack("6I", data.raw))
sets[0] = sets[3] = 0
assert libc.capset(header, struct.pack("6I", *sets)) == 0
""",
}


@only_root
@pytest.mark.parametrize("lowered", TAKES_BACK)
def test_the_filter_is_refused_to_who_can_take_powers_back(lowered: str, script) -> None:
    source = f"import os, netless\n{TAKES_BACK[lowered]}\n" + (
        "found = netless.probe(netless.Isolation(mechanism='filter'))\n"
        "print(found.available, found.error and found.error.cause)\n"
        "os.setresuid(0, 0, 0)\n"  # the control: it does come back
        "print(open('/proc/self/status').read().split('CapPrm:')[1].split()[0].strip('0') != '')\n"
    )
    done = script(source)
    assert done.stdout.split() == ["False", "privileged-caller", "True"], done.stderr


@only_root
def test_the_filter_is_given_to_who_gave_them_up(script) -> None:
    """The control: the same ids and sets, for good."""
    source = """
        import netless
        with netless.Popen(["true"], isolation=netless.Isolation(mechanism="filter")) as process:
            print(process.mechanism)
    """
    prefix = (*("setpriv", "--reuid=1500", "--regid=1500", "--clear-groups"), "--inh-caps=-all")
    readable = ("env", f"PYTHONPATH={Path(netless.__file__).parent.parent}")
    done = script(source, prefix=(*prefix, *readable))
    if "Permission denied" in done.stderr:
        pytest.skip("this interpreter is not for other users")
    assert done.stdout == "filter\n", done.stderr


DOCKER = "chown,dac_override,fowner,fsetid,kill,setgid,setuid,setpcap,net_bind_service,net_raw"
DOCKER += ",sys_chroot,mknod,audit_write,setfcap"


@only_root
def test_dockers_root_may_use_the_filter_without_making_devices(script, tmp_path: Path) -> None:
    source = """
        import os, subprocess, sys
        import netless
        make = "import os, stat, sys; os.mknod(sys.argv[1], 0o600 | stat.S_IFCHR, os.makedev(1, 3))"
        def attempt(run, name, **options):
            command = [sys.executable, "-c", make, f"{sys.argv[1]}/{name}"]
            return run(command, stderr=subprocess.PIPE, **options).returncode
        print(attempt(subprocess.run, "control"))
        print(attempt(netless.run, "inside", isolation=netless.Isolation(mechanism="filter")))
    """
    kept = "".join(f",+{name}" for name in DOCKER.split(","))
    prefix = (need("setpriv"), f"--bounding-set=-all{kept}", "--inh-caps=-all")
    done = script(source, tmp_path, prefix=prefix)
    assert done.stdout.split() == ["0", "1"], done.stderr
