"""What a child would inherit is classified: the kinds that lead outside are refused, by any way."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

import netless
from netless import PIPE, InheritedSocketError, Isolation
from support import open_descriptors

pytestmark = pytest.mark.isolated
IS_ROOT = os.geteuid() == 0
LIBC = ctypes.CDLL(None, use_errno=True)
# On every architecture since Linux 5.1; the others are x86_64's.
IO_URING_SETUP, LANDLOCK_CREATE_RULESET = 425, 444
USERFAULTFD, PERF_EVENT_OPEN, BPF = 323, 298, 321
SQPOLL = 2


def syscall(number: int, *arguments: object) -> int:
    fd = LIBC.syscall(number, *arguments)
    if fd < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return fd


def io_uring(flags: int = 0) -> int:
    parameters = ctypes.create_string_buffer(120)
    struct.pack_into("I", parameters, 8, flags)
    return syscall(IO_URING_SETUP, 4, parameters)


def perf_event() -> int:
    attributes = ctypes.create_string_buffer(128)  # a software clock of this process
    struct.pack_into("IIQ", attributes, 0, 1, 128, 0)
    struct.pack_into("Q", attributes, 40, 1 << 5)  # exclude_kernel
    return syscall(PERF_EVENT_OPEN, attributes, 0, -1, -1, 0)


def bpf_map() -> int:
    attributes = ctypes.create_string_buffer(128)
    struct.pack_into("IIII", attributes, 0, 2, 4, 4, 1)
    return syscall(BPF, 0, attributes, 128)


def detached(make: Callable[[], socket.socket]) -> Callable[[], int]:
    return lambda: make().detach()


def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


REFUSED = {
    "tcp": (detached(socket.socket), socket.AF_INET),
    "tcp6": (detached(lambda: socket.socket(socket.AF_INET6)), socket.AF_INET6),
    "udp": (detached(lambda: socket.socket(type=socket.SOCK_DGRAM)), socket.AF_INET),
    "listening": (detached(listening), socket.AF_INET),
    "netlink": (
        detached(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)),
        socket.AF_NETLINK,
    ),
    "vsock": (detached(lambda: socket.socket(socket.AF_VSOCK)), socket.AF_VSOCK),
    "pidfd": (lambda: os.pidfd_open(os.getpid()), None),
    "network namespace": (lambda: os.open("/proc/self/ns/net", os.O_RDONLY), None),
    "user namespace": (lambda: os.open("/proc/self/ns/user", os.O_RDONLY), None),
    "proc directory": (lambda: os.open("/proc", os.O_RDONLY), None),
    "proc path": (lambda: os.open("/proc/self/fd", os.O_PATH), None),
    "memory": (lambda: os.open("/proc/self/mem", os.O_RDWR), None),
    "memory to read": (lambda: os.open("/proc/self/mem", os.O_RDONLY), None),
    "io_uring": (io_uring, None),
    "io_uring with a polling thread": (lambda: io_uring(SQPOLL), None),
}
if IS_ROOT:
    REFUSED |= {
        "packet": (
            detached(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
            socket.AF_PACKET,
        ),
        "raw": (detached(lambda: socket.socket(type=socket.SOCK_RAW, proto=1)), socket.AF_INET),
        "tun": (lambda: os.open("/dev/net/tun", os.O_RDWR), None),
        "kvm": (lambda: os.open("/dev/kvm", os.O_RDWR), None),
        "block device": (lambda: os.open("/dev/loop0", os.O_RDONLY), None),
        "kernel log": (lambda: os.open("/dev/kmsg", os.O_RDONLY), None),
        "userfaultfd": (lambda: syscall(USERFAULTFD, 0), None),
        "perf": (perf_event, None),
        "bpf": (bpf_map, None),
    }


def signal_descriptor() -> int:
    mask = struct.pack("Q", 1 << (signal.SIGUSR2 - 1))
    return LIBC.signalfd(-1, mask, 0)


def epoll() -> int:
    with select.epoll() as poll:
        return os.dup(poll.fileno())


PASSED = {
    "file": lambda: os.open(__file__, os.O_RDONLY),
    "directory": lambda: os.open("/tmp", os.O_RDONLY),
    "path": lambda: os.open("/tmp", os.O_PATH),
    "proc file to read": lambda: os.open("/proc/cpuinfo", os.O_RDONLY),
    "memfd": lambda: os.memfd_create("test"),
    "eventfd": lambda: LIBC.eventfd(0, 0),
    "timerfd": lambda: LIBC.timerfd_create(1, 0),
    "signalfd": signal_descriptor,
    "inotify": LIBC.inotify_init,
    "epoll": epoll,
    "pipe": lambda: os.pipe()[0],
    "null": lambda: os.open("/dev/null", os.O_RDWR),
    "zero": lambda: os.open("/dev/zero", os.O_RDWR),
    "full": lambda: os.open("/dev/full", os.O_RDWR),
    "random": lambda: os.open("/dev/random", os.O_RDONLY),
    "urandom": lambda: os.open("/dev/urandom", os.O_RDONLY),
    "terminal": lambda: os.openpty()[1],
    "terminal's other end": lambda: os.openpty()[0],
    "unix stream": detached(lambda: socket.socket(socket.AF_UNIX)),
    "unix datagram": detached(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)),
    "unix pair": detached(lambda: socket.socketpair()[0]),
    "unix packets": detached(lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)[0]),
}


def by_pass_fds(module, fd: int, isolation: dict) -> int:
    return module.run(["true"], pass_fds=[fd], **isolation).returncode


def by_open_descriptors(module, fd: int, isolation: dict) -> int:
    os.set_inheritable(fd, True)
    return module.run(["true"], close_fds=False, **isolation).returncode


def by_stdin(module, fd: int, isolation: dict) -> int:
    return module.run(["true"], stdin=fd, **isolation).returncode


def by_stderr(module, fd: int, isolation: dict) -> int:
    return module.run(["true"], stderr=fd, **isolation).returncode


def by_preexec(module, fd: int, isolation: dict) -> int:
    return module.run(["true"], pass_fds=[fd], preexec_fn=lambda: None, **isolation).returncode


WAYS = [by_pass_fds, by_open_descriptors, by_stdin, by_stderr, by_preexec]


@pytest.fixture
def descriptors():
    """Closes what a test made, pairs and all."""
    netless.require()  # its descriptors come to stay
    before = open_descriptors()
    yield
    for fd in open_descriptors() - before:
        with contextlib.suppress(OSError):
            os.close(fd)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("kind", REFUSED)
def test_refuses(kind: str, way, descriptors) -> None:
    make, family = REFUSED[kind]
    fd = make()
    assert way(subprocess, fd, {}) == 0
    with pytest.raises(InheritedSocketError) as caught:
        way(netless, fd, {})
    assert caught.value.fd in (fd, 0, 2)
    assert caught.value.family == family
    assert way(netless, fd, {"isolation": Isolation(inherit_sockets=True)}) == 0


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("kind", PASSED)
def test_passes(kind: str, way, descriptors) -> None:
    fd = PASSED[kind]()
    assert fd >= 0
    assert way(netless, fd, {}) == 0


def test_refusal_comes_before_anything_runs(marker) -> None:
    with socket.socket() as inherited:
        with pytest.raises(InheritedSocketError):
            netless.Popen(marker.command, stdin=inherited)
        called = []
        with pytest.raises(InheritedSocketError):
            netless.Popen(marker.command, stdin=inherited, preexec_fn=lambda: called.append(1))
    assert not marker.written()


def test_inherited_socket_would_have_worked(listener4) -> None:
    """Why it is refused: a connected socket keeps the network namespace that it was made in."""
    command = [sys.executable, "-c", "import os; os.write(0, b'GET /'); print(os.read(0, 4))"]
    for isolation in (None, Isolation(inherit_sockets=True), Isolation()):
        with socket.create_connection(("127.0.0.1", listener4.port)) as connected:
            if isolation is None:
                done = subprocess.run(command, stdin=connected, stdout=PIPE)
            elif isolation.inherit_sockets:
                done = netless.run(command, stdin=connected, stdout=PIPE, isolation=isolation)
            else:
                with pytest.raises(InheritedSocketError):
                    netless.run(command, stdin=connected, stdout=PIPE)
                continue
            assert done.stdout.strip() == b"b'HTTP'"


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_seccomp_notifier_is_refused(script) -> None:
    done = script(
        """
        import ctypes, struct
        import netless
        netless.require()
        libc = ctypes.CDLL(None, use_errno=True)
        allow = struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)  # return ALLOW
        code = ctypes.create_string_buffer(allow, 8)
        program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 1, ctypes.addressof(code)))
        assert libc.prctl(38, 1, 0, 0, 0) == 0
        notifier = libc.syscall(317, 1, 8, program)  # SECCOMP_FILTER_FLAG_NEW_LISTENER
        assert notifier > 2, ctypes.get_errno()
        try:
            netless.run(["true"], pass_fds=[notifier])
        except netless.InheritedSocketError as error:
            print(error.fd == notifier)
        """
    )
    assert done.stdout == "True\n", done.stderr


def test_descriptor_opened_meanwhile_does_not_slip_through() -> None:
    """Another thread opens inheritable sockets while children with close_fds=True start."""
    stop = threading.Event()

    def open_and_close() -> None:
        while not stop.is_set():
            with socket.socket() as opened:
                opened.set_inheritable(True)

    openers = [threading.Thread(target=open_and_close) for _ in range(3)]
    for opener in openers:
        opener.start()
    try:
        for _ in range(300):
            shown = netless.check_output(["ls", "/proc/self/fd"], stdin=subprocess.DEVNULL)
            assert shown.split() == [b"0", b"1", b"2", b"3"]
    finally:
        stop.set()
        for opener in openers:
            opener.join()


def test_closed_standard_streams_are_fine() -> None:
    source = (
        "import os, netless; netless.require(); os.close(0);"
        "raise SystemExit(netless.call(['/bin/sh', '-c', 'test ! -e /proc/self/fd/0']))"
    )
    assert subprocess.call([sys.executable, "-c", source]) == 0


def test_no_proc_for_anonymous_files_is_a_refusal() -> None:
    """A descriptor that cannot be told is not passed. /proc is hidden in a mount namespace."""
    hide = 'mount -t tmpfs none /proc && exec "$@"'
    source = (
        "import os, select, sys, netless\n"
        "poll = select.epoll()\n"
        "try:\n"
        "    netless.run(['true'], pass_fds=[poll.fileno()])\n"
        "except netless.NetworkIsolationUnavailable as error:\n"
        "    print(error.cause)\n"
    )
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", hide, "sh"]
        + [sys.executable, "-c", source],
        capture_output=True,
        text=True,
    )
    assert done.stdout == "proc-missing\n", done.stderr


# ---- files of /proc, under whatever name they were mounted ----

BOUND = """
import os, sys
import netless

path, where, way = sys.argv[1:]
victim = netless.Popen(["cat"], stdin=netless.PIPE)
fd = os.open(path.replace("PID", str(os.getpid())), os.O_RDONLY)
if way == "isolate":
    attempt = lambda: netless.isolate()
else:
    attempt = lambda: netless.check_call(
        ["true"], isolation=netless.Isolation(), **{way: [fd]} if way == "pass_fds" else {way: fd})
try:
    attempt()
    print("passed")
except netless.InheritedSocketError as error:
    print(error.kind)
victim.kill()
victim.communicate()
"""
LONG = "/".join(["a-folder-of-some-length"] * 6)
PLACES = {
    "bound proc": (f"mkdir -p {LONG} && mount --bind /proc {LONG}", f"{LONG}/PID/mem", "proc"),
    "bound file": ("touch x && mount --bind /proc/$$/mem x", "x", "proc"),
    "other proc": (f"mkdir -p {LONG} && mount -t proc proc {LONG}", f"{LONG}/self/mem", "proc"),
    "namespace": ("touch x && mount --bind /proc/$$/ns/net x", "x", "namespace"),
    "an ordinary one": (f"mkdir -p {LONG} && mount --bind /proc {LONG}", f"{LONG}/uptime", None),
}


@pytest.mark.native
@pytest.mark.parametrize("way", ["pass_fds", "stdin", "isolate"])
@pytest.mark.parametrize("place", PLACES)
def test_files_of_proc_are_known_by_what_they_are(place: str, way: str, script, tmp_path) -> None:
    mount, path, kind = PLACES[place]
    if place == "other proc" and not IS_ROOT:
        mount = mount.replace("mount -t proc proc", "mount --rbind /proc")
    users = () if IS_ROOT else ("--user", "--map-root-user")
    prefix = ("unshare", *users, "--mount", "sh", "-ec", f'{mount}; exec "$@"', "sh")
    done = script(BOUND, path, tmp_path, way, prefix=prefix, cwd=tmp_path)
    assert done.stdout == f"{kind or 'passed'}\n", done.stderr
