"""What leads out of a child or not: local daemons, devices, other processes; and what is said.

What is open is shown to be open, so that the documents cannot promise more than there is.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import netless
from netless import Isolation, _native
from support import PATIENCE, need

pytestmark = pytest.mark.isolated

IS_ROOT = os.geteuid() == 0
NO_UNIX = Isolation(unix_sockets=False)
DOCTOR = [sys.executable, "-m", "netless", "doctor", "--json"]
INSIDE = ("unshare", "--user", "--map-root-user", "--mount", "--net", "--", "sh", "-ec")


# ---- names, by the daemons of this machine ----

NAMES = """
    import json, os, socket, subprocess, sys, threading
    import netless
    from netless import Isolation, _launcher

    path, way = sys.argv[1:]
    os.makedirs(os.path.dirname(path), exist_ok=True)
    seen = []

    def serve():
        while True:
            connection, _ = server.accept()
            with connection:
                seen.append(connection.recv(4096).decode(errors="replace"))

    def ask(isolation):
        source = (
            "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
            "s.sendall(b'a-name.example'); s.recv(1)"  # the end, after it was seen
        )
        by_path = [sys.executable, "-c", source, path]
        by_library = ["getent", "ahosts", "a-name.example"]
        command = by_library if way == "getent" else by_path
        seen.clear()
        if isolation is None:
            subprocess.call(command, stderr=subprocess.DEVNULL)
        elif way == "netless-exec":
            command = _launcher.command(_launcher.find(), command, isolation)
            subprocess.call(command, stderr=subprocess.DEVNULL)
        else:
            netless.call(command, stderr=subprocess.DEVNULL, isolation=isolation)
        return any("name.example" in text for text in seen)

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        threading.Thread(target=serve, daemon=True).start()
        doctor = {}
        for flags in ((), ("--no-unix-sockets",)):
            command = [sys.executable, "-m", "netless", "doctor", "--json", *flags]
            doctor[" ".join(flags)] = json.loads(subprocess.check_output(command))
        closed = Isolation(unix_sockets=False)
        print(json.dumps({
            "outside": ask(None), "default": ask(Isolation()), "closed": ask(closed),
            "claims": ["names" in netless.probe(i).guarantees for i in (Isolation(), closed)],
            "doctor": doctor,
        }), flush=True)
        os._exit(0)
"""
RESOLVERS = [
    "/run/nscd/socket",
    "/run/systemd/resolve/io.systemd.Resolve",
    "/run/dbus/system_bus_socket",
    "/run/avahi-daemon/socket",
]


def asked(script, path: str, way: str) -> dict:
    """What reached a server of the test's own at that path, in a /run of the test's own."""
    need("unshare")
    prefix = (*INSIDE, 'mount -t tmpfs none /run; exec "$@"', "sh")
    done = script(NAMES, path, way, prefix=prefix, timeout=PATIENCE)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.mark.native
@pytest.mark.parametrize("way", ["Popen", "netless-exec"])
@pytest.mark.parametrize("path", RESOLVERS)
def test_names_are_open_by_default_and_closed_without_unix_sockets(path, way, script) -> None:
    found = asked(script, path, way)
    assert (found["outside"], found["default"], found["closed"]) == (True, True, False)
    assert found["claims"] == [False, True]


@pytest.mark.native
def test_the_c_library_asks_nscd_by_itself(script) -> None:
    found = asked(script, "/run/nscd/socket", "getent")
    if not found["outside"]:
        pytest.skip("this C library has no nscd client")  # the control: there is nothing to show
    assert (found["default"], found["closed"]) == (True, False)


@pytest.mark.native
@pytest.mark.parametrize("path", [*RESOLVERS, "/run/docker.sock"])
def test_doctor_names_the_sockets_that_are_there(path: str, script) -> None:
    told = asked(script, path, "Popen")["doctor"]
    assert told[""]["facts"]["local_sockets"] == [path]
    (warning,) = [text for text in told[""]["warnings"] if path in text]
    assert "unix_sockets=False" in warning
    assert ("names" in warning) == (path in RESOLVERS)
    assert not [text for text in told["--no-unix-sockets"]["warnings"] if path in text]


@pytest.mark.native
def test_doctor_names_no_socket_that_is_not_there(script) -> None:
    told = asked(script, "/run/something/else", "Popen")["doctor"][""]
    assert told["facts"]["local_sockets"] == []
    assert not [text for text in told["warnings"] if "socket" in text]


def test_wrapper_promises_nothing_about_names() -> None:
    assert "names" not in netless.probe(Isolation(mechanism="wrapper")).guarantees


@pytest.mark.native
@pytest.mark.skipif(IS_ROOT, reason="the filter is refused to root")
def test_filter_promises_names_without_unix_sockets() -> None:
    for unix_sockets in (True, False):
        wanted = Isolation(mechanism="filter", unix_sockets=unix_sockets)
        assert ("names" in netless.require(wanted).guarantees) == (not unix_sockets)


@pytest.mark.native
def test_names_are_not_promised_where_the_kernel_can_be_made_to_ask(programs) -> None:
    """Without seccomp the sockets may be Landlock's, but request_key(2) stays."""
    prefix = (programs("deny.c", "-static"), "seccomp=EPERM", "prctl@22=EPERM", "--")
    done = subprocess.run([*prefix, *DOCTOR, "--no-unix-sockets"], stdout=subprocess.PIPE)
    told = json.loads(done.stdout)
    assert "key-upcalls" not in told["guarantees"]
    assert "names" not in told["guarantees"]


# ---- device nodes ----

DEVICES = """
    mount --rbind /dev /mnt
    mount -t tmpfs none /dev
    mkdir -p /dev/infiniband
    for name in null zero urandom; do touch /dev/$name; mount --bind /mnt/$name /dev/$name; done
    for name in tap7 vhost-vsock infiniband/uverbs0; do
        touch /dev/$name; mount --bind /mnt/null /dev/$name
    done
    touch /dev/tap8
    exec "$@"
"""


def test_doctor_names_the_devices_that_the_user_may_open() -> None:
    """Nodes of those names; what is behind them here is /dev/null."""
    need("unshare")
    done = subprocess.run([*INSIDE, DEVICES, "sh", *DOCTOR], stdout=subprocess.PIPE)
    told = json.loads(done.stdout)
    expected = ["/dev/infiniband/uverbs0", "/dev/tap7", "/dev/vhost-vsock"]
    assert told["facts"]["device_nodes"] == expected  # tap8 is no device
    (warning,) = [text for text in told["warnings"] if "/dev/tap7" in text]
    assert all(path in warning for path in expected)


TUN = """
import fcntl, os, struct
with open("/dev/net/tun", "r+b", buffering=0) as tun:
    fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH22x", b"try%d", 1))  # TUNSETIFF
"""


@pytest.mark.native
@pytest.mark.skipif(not os.access("/dev/net/tun", os.W_OK), reason="no tun device for this user")
def test_tun_is_none_of_them() -> None:
    """What it makes or attaches to is in the child's own namespace, and takes CAP_NET_ADMIN."""
    command = [sys.executable, "-c", TUN]
    inside = ["unshare", "--user", "--map-root-user", "--net", "--"]
    assert subprocess.call([*inside, *command]) == 0
    assert netless.run(command, stderr=netless.PIPE).stderr.endswith(
        b"PermissionError: [Errno 1] Operation not permitted\n"
    )


# ---- what is shared with other processes, and said to be ----

IPC_CREAT, IPC_RMID, IPC_PRIVATE = 0o1000, 0, 0
libc = ctypes.CDLL(None, use_errno=True)
ATTACH = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
at = libc.shmat(int(sys.argv[1]), None, 0)
print(ctypes.string_at(at).decode() if at not in (None, 2**64 - 1) else "refused")
"""
READ_QUEUE = """
import ctypes, os, sys
rt = ctypes.CDLL(None, use_errno=True)
queue = rt.mq_open(sys.argv[1].encode(), os.O_RDONLY | os.O_NONBLOCK)
room = ctypes.create_string_buffer(64)
size = rt.mq_receive(queue, room, 64, None)
print(room.raw[:size].decode() if size >= 0 else "refused")
"""


def test_shared_memory_of_the_same_user_is_open() -> None:
    """As files and FIFOs are: not promised, and said."""
    libc.shmat.restype = ctypes.c_void_p
    segment = libc.shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0o600)
    assert segment >= 0, os.strerror(ctypes.get_errno())
    try:
        at = libc.shmat(segment, None, 0)
        ctypes.memmove(at, b"told\0", 5)
        told = netless.check_output([sys.executable, "-c", ATTACH, str(segment)])
        libc.shmdt(ctypes.c_void_p(at))
    finally:
        libc.shmctl(segment, IPC_RMID, None)
    assert told == b"told\n"


class QueueShape(ctypes.Structure):
    """struct mq_attr."""

    _fields_ = [(name, ctypes.c_long) for name in ("flags", "maxmsg", "msgsize", "curmsgs")] + [
        ("reserved", ctypes.c_long * 4)
    ]


def test_message_queues_of_the_same_user_are_open() -> None:
    name = f"/netless-{os.getpid()}"
    shape = QueueShape(0, 2, 64, 0)
    queue = libc.mq_open(name.encode(), os.O_CREAT | os.O_WRONLY, 0o600, ctypes.byref(shape))
    if queue < 0:
        pytest.skip(f"no message queues here: {os.strerror(ctypes.get_errno())}")
    try:
        assert libc.mq_send(queue, b"told", 4, 0) == 0
        told = netless.check_output([sys.executable, "-c", READ_QUEUE, name])
    finally:
        libc.mq_close(queue)
        libc.mq_unlink(name.encode())
    assert told == b"told\n"


BIND = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind('\\0netless-seen'); input()"


@pytest.mark.native
@pytest.mark.parametrize(("private", "is_seen"), [(False, True), (True, False)])
def test_names_of_sockets_are_seen_in_a_shared_namespace(private: bool, is_seen: bool) -> None:
    isolation = Isolation(private=private)
    options = {"stdin": netless.PIPE, "isolation": isolation}
    with netless.Popen([sys.executable, "-uc", f"{BIND}"], **options) as binder:
        for _ in range(200):
            seen = netless.check_output(["cat", "/proc/self/net/unix"], isolation=isolation)
            own = Path(f"/proc/{binder.pid}/net/unix").read_bytes()
            if b"netless-seen" in own:
                seen = netless.check_output(["cat", "/proc/self/net/unix"], isolation=isolation)
                break
        else:
            pytest.fail("the child did not bind its socket")
        binder.communicate(b"\n", timeout=PATIENCE)
    assert (b"netless-seen" in seen) == is_seen


NUISANCE = """
    import resource, subprocess, sys
    import netless

    with subprocess.Popen(["sleep", "60"]) as other:
        lower = "import resource, sys; resource.prlimit(int(sys.argv[1]), 7, (9, 9))"
        netless.check_call([sys.executable, "-c", lower, str(other.pid)])
        print(resource.prlimit(other.pid, resource.RLIMIT_NOFILE)[0])
        netless.check_call(["sh", "-c", f"kill -KILL {other.pid}"])
        print(other.wait())
"""


def test_signals_and_limits_of_other_processes_are_open(script) -> None:
    """Programs signal their parents, and set limits of others; said in the threat model."""
    prefix = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")
    done = script(NUISANCE, prefix=(*prefix, "--kill-child", "--"))
    assert done.stdout.split() == ["9", "-9"], done.stderr


# ---- what stops working, and is said to ----

ROOTS = {
    "mount": "mount -t tmpfs none /mnt",
    "mknod": "mknod {} c 1 3",
    "nice": "renice -n -1 -p $$",
    "chrt": "chrt -f 1 true",
    "ionice": "ionice -c 1 true",
}


@pytest.mark.skipif(not IS_ROOT, reason="what root's children lose")
@pytest.mark.native
@pytest.mark.parametrize("name", ROOTS)
def test_what_the_children_of_root_lose(name: str, tmp_path: Path) -> None:
    command = ["sh", "-c", ROOTS[name].format(tmp_path / "node")]
    mounts = [need("unshare"), "--mount"]
    assert subprocess.call([*mounts, *command], stdout=subprocess.DEVNULL) == 0
    (tmp_path / "node").unlink(missing_ok=True)
    done = netless.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert "ermi" in done.stderr  # not permitted, permission denied


@pytest.mark.skipif(not IS_ROOT, reason="bubblewrap believes in uid 0")
@pytest.mark.native
def test_bubblewrap_as_root_needs_a_user_namespace() -> None:
    bwrap, everything = need("bwrap"), ["--dev-bind", "/", "/", "true"]
    assert subprocess.call([bwrap, *everything]) == 0
    assert netless.run([bwrap, *everything], stderr=netless.PIPE).returncode != 0
    assert netless.call([bwrap, "--unshare-user", *everything]) == 0


@pytest.mark.native
def test_bubblewrap_as_anybody_else() -> None:
    options = {"user": 65534, "group": 65534, "extra_groups": []} if IS_ROOT else {}
    assert netless.call([need("bwrap"), "--dev-bind", "/", "/", "true"], **options) == 0


CONFINE = """
import ctypes, errno, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
create, add, restrict, everything = 444, 445, 446, (1 << 14) - 1  # REFER is among them
folder = sys.argv[1]
attribute = struct.pack("Q", everything)
rules = libc.syscall(create, attribute, len(attribute), 0)
root = os.open("/", os.O_PATH)
assert libc.syscall(add, rules, 1, struct.pack("<Qi", everything, root), 0) == 0
libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
assert libc.syscall(restrict, rules, 0) == 0
open(f"{folder}/a/file", "w").close()
try:
    os.rename(f"{folder}/a/file", f"{folder}/b/file")
except OSError as error:
    print(errno.errorcode[error.errno])
else:
    print("renamed")
"""


@pytest.mark.native
@pytest.mark.skipif(_native.landlock_abi() < 6, reason="no domain of netless's own (Linux 6.12)")
def test_a_child_that_confines_itself_by_landlock_cannot_rename_across_directories(
    tmp_path: Path,
) -> None:
    """And the way out that the threat model gives."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    command = [sys.executable, "-c", CONFINE, str(tmp_path)]
    assert subprocess.check_output(command) == b"renamed\n"
    assert netless.check_output(command) == b"EXDEV\n"
    wrapper = Isolation(mechanism="wrapper")
    assert netless.check_output(command, isolation=wrapper) == b"renamed\n"


@pytest.mark.native
def test_32_bit_programs_by_socketcall_have_no_sockets(programs) -> None:
    """As the i386 glibc of Debian makes them; a C library that calls socket(2) has them."""
    program = [programs("socketcall.c", "-m32")]
    assert subprocess.check_output(program) == b"open open\n"
    assert netless.check_output(program) == b"ENOSYS open\n"
