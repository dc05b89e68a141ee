"""One test per hole that a network namespace leaves open.

The attempt succeeds from a child under plain ``unshare --user --net`` (or under
netless with that one layer left out) and fails from a netless child.
"""

from __future__ import annotations

import ctypes
import os
import pty
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import netless
from netless import PIPE, Isolation
from support import PATIENCE, need, victim, without_layer

pytestmark = pytest.mark.isolated
IS_ROOT = os.geteuid() == 0
PLAIN = ["unshare", "--user", "--map-current-user", "--net", "--"]
FILTER = Isolation(mechanism="filter")
ISOLATIONS = [Isolation(), Isolation(map_root=True), Isolation(loopback=True)]
if not IS_ROOT:
    ISOLATIONS.append(FILTER)


def label(isolation: object) -> str:
    if not isinstance(isolation, Isolation):
        return str(isolation)
    flags = ("loopback", "private", "map_root", "inherit_sockets")
    changed = [name for name in flags if getattr(isolation, name)]
    changed += [isolation.mechanism] * (isolation.mechanism != "auto")
    changed += ["no-unix"] * (not isolation.unix_sockets)
    return ",".join(changed) or "default"


@pytest.fixture(scope="session")
def holes(programs):
    return programs("holes.c", "-static")


def is_open(command: list[str], **options) -> bool:
    """Exit status 0: open, 1: shut. Anything else is a broken test."""
    done = subprocess.run(command, stderr=PIPE, timeout=PATIENCE, **options)
    assert done.returncode in (0, 1), done
    return done.returncode == 0


def is_open_isolated(command: list[str], isolation: Isolation, **options) -> bool:
    done = netless.run(command, stderr=PIPE, timeout=PATIENCE, isolation=isolation, **options)
    assert done.returncode in (0, 1), done
    return done.returncode == 0


SIMPLE = ["vsock", "vsock-high", "families", "int80-vsock", "io-uring", "keys", "usersock"]


@pytest.mark.usefixtures("way_in")
@pytest.mark.parametrize("isolation", ISOLATIONS, ids=label)
@pytest.mark.parametrize("hole", SIMPLE)
def test_shuts(hole: str, isolation: Isolation, holes: str) -> None:
    plain = [] if isolation is FILTER else PLAIN
    assert is_open([*plain, holes, hole])
    assert not is_open_isolated([holes, hole], isolation)


@pytest.mark.usefixtures("way_in")
@pytest.mark.parametrize("isolation", ISOLATIONS, ids=label)
@pytest.mark.parametrize("hole", ["vsock", "socketcall-vsock"])
def test_shuts_for_32_bit_programs(hole: str, isolation: Isolation, programs) -> None:
    program = programs("holes.c", "-static", "-m32")
    plain = [] if isolation is FILTER else PLAIN
    assert is_open([*plain, program, hole])
    assert not is_open_isolated([program, hole], isolation)


@pytest.mark.usefixtures("way_in")
@pytest.mark.parametrize("isolation", ISOLATIONS, ids=label)
@pytest.mark.parametrize("hole", ["tiocsti", "tiocsti-high"])
def test_shuts_typing_into_the_terminal(hole: str, isolation: Isolation, holes: str) -> None:
    master, slave = pty.openpty()
    try:
        typing = ["setsid", "--ctty", "--wait", holes, hole]
        assert is_open([*PLAIN, *typing], stdin=slave)
        assert not is_open_isolated(typing, isolation, stdin=slave)
    finally:
        os.close(master)
        os.close(slave)


@pytest.mark.usefixtures("way_in")
@pytest.mark.parametrize("isolation", ISOLATIONS, ids=label)
def test_shuts_the_console_selection_ioctl(isolation: Isolation, holes: str) -> None:
    """No console here: the control is that the kernel, not the filter, answers."""
    assert is_open([*PLAIN, holes, "tioclinux"], stdin=subprocess.DEVNULL)
    assert not is_open_isolated([holes, "tioclinux"], isolation, stdin=subprocess.DEVNULL)


@pytest.mark.usefixtures("way_in")
def test_map_root_alone_could_sniff(holes: str) -> None:
    plain = ["unshare", "--user", "--map-root-user", "--net", "--"]
    assert is_open([*plain, holes, "packet"])
    for isolation in ISOLATIONS:
        assert not is_open_isolated([holes, "packet"], isolation)


@pytest.mark.usefixtures("way_in")
@pytest.mark.parametrize("isolation", [Isolation(), Isolation(map_root=True)], ids=label)
def test_no_child_changes_the_shared_namespace(isolation: Isolation) -> None:
    """Root's and map_root's children have no power over it: lo stays down."""
    raise_lo = [need("ip"), "link", "set", "lo", "up"]
    plain = ["unshare", "--user", "--map-root-user", "--net", "--"]
    assert subprocess.call([*plain, *raise_lo]) == 0
    assert netless.run(raise_lo, stderr=PIPE, isolation=isolation).returncode != 0
    assert b"UP" not in netless.check_output(["ip", "link", "show", "lo"], isolation=isolation)


@pytest.mark.usefixtures("way_in")
@pytest.mark.skipif(not IS_ROOT, reason="the helper is configured in /etc by root")
def test_shuts_the_kernels_key_helper(holes: str, tmp_path: Path) -> None:
    """/sbin/request-key runs a helper of the test's own, outside, for keys of type "user"."""
    need("keyctl")
    marker, helper = tmp_path / "where", tmp_path / "helper"
    helper.write_text(f'#!/bin/sh\nreadlink /proc/self/ns/net > "{marker}"\n')
    helper.chmod(0o755)
    folder = Path("/etc/request-key.d")
    configuration = folder / "netless-test.conf"
    configuration.write_text(f"create user netless:upcall:* * {helper} %k\n")
    try:
        subprocess.check_call([*PLAIN, holes, "upcall", f"netless:upcall:{os.getpid()}"])
        assert marker.read_text().strip() == os.readlink("/proc/self/ns/net")
        marker.unlink()
        netless.check_call([holes, "upcall", f"netless:upcall:{os.getpid()}:2"])
        time.sleep(0.2)
        assert not marker.exists()
    finally:
        configuration.unlink()


# ---- siblings: two children of one shared namespace ----

LISTEN = """
import socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.bind("\\0" + sys.argv[1])
    server.listen()
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_siblings_share_no_abstract_socket(holes: str) -> None:
    name = f"netless-{os.getpid()}"
    listen = [sys.executable, "-c", LISTEN, name]
    reach = [holes, "unix", "@" + name]
    for protected in (False, True):
        if protected:
            with netless.Popen(listen, stdin=PIPE, stdout=PIPE) as server:
                assert server.stdout.readline() == b"ready\n"
                assert not is_open_isolated(reach, Isolation())
                server.communicate(timeout=PATIENCE)
        else:
            with (
                without_layer("LANDLOCK"),
                netless.Popen(listen, stdin=PIPE, stdout=PIPE) as server,
            ):
                assert server.stdout.readline() == b"ready\n"
                assert is_open_isolated(reach, Isolation())
                server.communicate(timeout=PATIENCE)


@pytest.mark.usefixtures("way_in")
@pytest.mark.parametrize("isolation", [Isolation(), *([] if IS_ROOT else [FILTER])], ids=label)
def test_no_abstract_socket_outside_is_reached(isolation: Isolation, holes: str) -> None:
    name = f"netless-outside-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + name)
        server.listen()
        reach = [holes, "unix", "@" + name]
        assert is_open(reach)
        assert not is_open_isolated(reach, isolation)


@pytest.mark.parametrize("way", ["ptrace", "writev", "mem", "getfd"])
def test_siblings_do_not_reach_each_others_memory(way: str, programs) -> None:
    reach = programs("reach.c", "-static")
    for protected in (False, True):
        with victim(netless) as target:
            command = [reach, way, str(target.pid)]
            if protected:
                assert not is_open_isolated(command, Isolation())
            else:
                with without_layer("LANDLOCK"):
                    assert is_open_isolated(command, Isolation())


@pytest.mark.usefixtures("way_in")
@pytest.mark.parametrize("isolation", ISOLATIONS, ids=label)
@pytest.mark.parametrize("way", ["ptrace", "writev", "mem", "getfd", "setns", "pidfd-setns"])
def test_processes_outside_are_out_of_reach(way: str, isolation: Isolation, programs) -> None:
    """The control is a process with the same ids and powers that is not isolated."""
    reach = programs("reach.c", "-static")
    with victim(subprocess) as target:
        command = [reach, way, str(target.pid)]
        if IS_ROOT or "setns" not in way:
            assert is_open(command)
        assert not is_open_isolated(command, isolation)


@pytest.mark.usefixtures("way_in")
def test_namespace_handles_lead_nowhere() -> None:
    """A namespace descriptor that the caller vouched for cannot be entered."""
    with open("/proc/self/ns/net") as handle:
        fd = handle.fileno()
        command = ["nsenter", f"--net=/proc/self/fd/{fd}", "true"]
        if IS_ROOT:
            assert subprocess.call(command, pass_fds=[fd]) == 0
        vouched = Isolation(inherit_sockets=True)
        assert netless.run(command, pass_fds=[fd], isolation=vouched, stderr=PIPE).returncode != 0


CANARY_ATTACKERS = 2


def attack(programs, spawn, spawn_attacker, count: int) -> tuple[int, int, int, bytes]:
    """Attackers hammer every new pid while ``count`` children start."""
    hammer = programs("hammer.c", "-static")
    canary = ctypes.create_string_buffer(b"safe")
    command = [hammer, f"{ctypes.addressof(canary):x}", os.path.realpath("/proc/self/exe")]
    attackers = [spawn_attacker(command) for _ in range(CANARY_ATTACKERS)]
    for attacker in attackers:
        assert attacker.stdout.readline() == b"ready\n"
    for attacker in attackers:
        attacker.stdin.write(b"g")
        attacker.stdin.flush()
    for _ in range(count):
        spawn()
    totals = [0, 0, 0]
    for attacker in attackers:
        out, _ = attacker.communicate(timeout=PATIENCE)
        totals = [a + int(b) for a, b in zip(totals, out.split(), strict=True)]
    return *totals, canary.raw


@pytest.mark.parametrize("layer", ["with_landlock", "without_landlock"])
def test_hostile_siblings_never_reach_the_parents_memory(layer: str, programs) -> None:
    """5,000 children start, sharing the parent's memory until execve, under attack."""

    def spawn_attacker(command):
        return netless.Popen(command, stdin=PIPE, stdout=PIPE)

    def spawn() -> None:
        assert netless.call(["/bin/true"]) == 0

    if layer == "with_landlock":
        attempts, successes, early, canary = attack(programs, spawn, spawn_attacker, 5000)
        assert successes == 0
    else:
        with without_layer("LANDLOCK"):
            attempts, _, early, canary = attack(programs, spawn, spawn_attacker, 5000)
    assert attempts > 0
    assert early == 0
    assert canary == b"safe\0"


def test_the_attack_works_without_isolation(programs) -> None:
    """Control: the same attackers, not isolated, do write into the parent's memory."""

    def spawn_attacker(command):
        return subprocess.Popen(command, stdin=PIPE, stdout=PIPE)

    def spawn() -> None:
        subprocess.call(["/bin/true"])

    attempts, successes, _, canary = attack(programs, spawn, spawn_attacker, 500)
    assert attempts > 100
    assert successes > 0
    assert canary[:1] == b"X"


# ---- unix_sockets=False ----

NO_UNIX = Isolation(unix_sockets=False)
NO_UNIX_KINDS = [NO_UNIX, Isolation(unix_sockets=False, loopback=True)]
if not IS_ROOT:
    NO_UNIX_KINDS.append(Isolation(unix_sockets=False, mechanism="filter"))


@pytest.fixture
def path_socket(tmp_path: Path):
    with (
        socket.socket(socket.AF_UNIX) as stream,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram,
    ):
        stream.bind(str(tmp_path / "s"))
        stream.listen()
        datagram.bind(str(tmp_path / "d"))
        datagram.settimeout(5)
        yield str(tmp_path / "s"), str(tmp_path / "d")


@pytest.mark.usefixtures("way_in")
@pytest.mark.parametrize("isolation", NO_UNIX_KINDS, ids=label)
@pytest.mark.parametrize("way", ["unix", "dgram-pair", "raw-pair", "dgram-pair-high"])
def test_no_unix_sockets_means_no_path_socket(
    way: str, isolation: Isolation, holes: str, path_socket
) -> None:
    target = path_socket[0] if way == "unix" else path_socket[1]
    assert is_open([*PLAIN, holes, way, target])
    assert is_open_isolated([holes, way, target], Isolation())
    assert not is_open_isolated([holes, way, target], isolation)


@pytest.mark.usefixtures("way_in")
@pytest.mark.parametrize("isolation", NO_UNIX_KINDS, ids=label)
def test_no_unix_sockets_refuses_an_inherited_one_that_can_be_pointed(
    isolation: Isolation, holes: str, path_socket
) -> None:
    unconnected = socket.socket(socket.AF_UNIX)
    datagram, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with unconnected, datagram, other:
        sending = [holes, "fd-sendto", f"{datagram.fileno()}:{path_socket[1]}"]
        assert is_open_isolated(sending, Isolation(), pass_fds=[datagram.fileno()])
        for refused in (unconnected, datagram):
            with pytest.raises(netless.InheritedSocketError) as caught:
                netless.run(["true"], pass_fds=[refused.fileno()], isolation=isolation)
            assert caught.value.family == socket.AF_UNIX


@pytest.mark.usefixtures("way_in")
@pytest.mark.parametrize("isolation", NO_UNIX_KINDS, ids=label)
def test_no_unix_sockets_leaves_pipes_pairs_and_pools(isolation: Isolation) -> None:
    source = (
        "import asyncio, multiprocessing, pwd, socket, subprocess, os;"
        "a, b = socket.socketpair(); a.send(b'x'); assert b.recv(1) == b'x';"
        "pwd.getpwuid(0);"
        "multiprocessing.set_start_method('fork');"
        "assert multiprocessing.Pool(2).map(abs, [-1, 2]) == [1, 2];"
        "p = asyncio.run(asyncio.create_subprocess_exec('true'));"
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        netless.check_call([sys.executable, "-c", source], stdin=theirs, isolation=isolation)


# ---- the filter mechanism ----


@pytest.mark.usefixtures("way_in")
@pytest.mark.skipif(not IS_ROOT, reason="what a caller with the powers of root is told")
def test_filter_is_refused_to_root() -> None:
    with pytest.raises(netless.NetworkIsolationUnavailable) as caught:
        netless.run(["true"], isolation=FILTER)
    assert caught.value.cause == "privileged-caller"
    assert not netless.probe(FILTER).available


@pytest.mark.skipif(IS_ROOT, reason="root is refused")
def test_filter_refuses_every_network_family_and_says_that_it_was_used(holes: str) -> None:
    assert is_open([holes, "inet"])
    assert not is_open_isolated([holes, "inet"], FILTER)
    with netless.Popen(["true"], isolation=FILTER) as process:
        assert process.mechanism == "filter"
    found = netless.probe(FILTER)
    assert found.mechanism == "filter"
    assert {"ip", "no-way-back", "vm-sockets", "inherited-sockets"} <= found.guarantees
    assert "unix-path" not in found.guarantees


def test_fallback_is_not_used_where_namespaces_work() -> None:
    with netless.Popen(["true"], isolation=Isolation(fallback="filter")) as process:
        assert process.mechanism == "namespace"


def test_guarantees_are_what_was_installed() -> None:
    usual = {"ip", "inherited-sockets", "vm-sockets", "unix-abstract", "key-upcalls"}
    usual |= {"tty-injection", "no-way-back"}
    alone = usual | {"siblings"}
    shared = usual if os.geteuid() == 0 else alone  # root writes /proc/sys/net of all of them
    assert netless.probe().guarantees == shared
    assert netless.probe(Isolation(private=True)).guarantees == alone
    assert netless.probe(Isolation(map_root=True)).guarantees == usual
    assert netless.probe(NO_UNIX).guarantees == shared | {"unix-path", "names"}
    vouched = netless.probe(Isolation(inherit_sockets=True)).guarantees
    assert vouched == shared - {"inherited-sockets"}
