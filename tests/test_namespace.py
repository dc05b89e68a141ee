"""The sealed namespace: shared, kept, checked before each use, made anew when it must be."""

from __future__ import annotations

import os

import pytest

import netless
from netless import Isolation, _native
from support import live_network_namespaces

pytestmark = pytest.mark.isolated

SHARED = Isolation()
NETWORK = ["readlink", "/proc/self/ns/net"]


def network(isolation: Isolation = SHARED, **options) -> str:
    return netless.check_output(NETWORK, text=True, isolation=isolation, **options).strip()


def test_children_share_one_namespace_by_default() -> None:
    assert network() == network() != os.readlink("/proc/self/ns/net")


def test_private_children_have_one_each() -> None:
    private = Isolation(private=True)
    assert len({network(), network(private), network(private)}) == 3


def test_descriptors_are_made_anew_after_everything_was_closed(script) -> None:
    done = script(
        """
        import os
        import netless
        command = ["readlink", "/proc/self/ns/net"]
        first = netless.check_output(command)
        os.closerange(3, 256)
        second = netless.check_output(command)
        os.closerange(3, 256)
        taken = [os.open("/dev/null", os.O_RDWR) for _ in range(8)]  # their numbers too
        third = netless.check_output(command)
        own = os.readlink("/proc/self/ns/net").encode() + b"\\n"
        assert own not in (first, second, third)
        for fd in taken:
            os.fstat(fd)  # what took the numbers was not closed
        print("ok")
        """
    )
    assert done.stdout == "ok\n", done.stderr


def test_descriptors_of_another_namespace_are_not_joined(script) -> None:
    """Their numbers now lead to the caller's own namespaces: that must not be taken for it."""
    done = script(
        """
        import os
        import netless
        command = ["readlink", "/proc/self/ns/net"]
        netless.check_output(command)
        for fd in map(int, os.listdir("/proc/self/fd")):
            try:
                target = os.readlink(f"/proc/self/fd/{fd}")
            except OSError:
                continue
            for name in ("net", "user"):
                if target.startswith(name + ":["):
                    own = os.open(f"/proc/self/ns/{name}", os.O_RDONLY)
                    os.dup2(own, fd, inheritable=False)
                    os.close(own)
        assert netless.check_output(command, text=True).strip() != os.readlink("/proc/self/ns/net")
        print("ok")
        """
    )
    assert done.stdout == "ok\n", done.stderr


@pytest.mark.native
def test_a_forgotten_namespace_closes_nothing_later() -> None:
    """Its numbers, inodes included, may be those of the next one by then."""
    plan = _native.plan_for(SHARED)
    user_fd = plan.sealed.user_fd
    assert os.readlink(f"/proc/self/fd/{user_fd}").startswith("user:[")
    _native._cache.forget(plan)
    assert (plan.sealed.user_fd, plan.sealed.net_fd) == (-1, -1)
    assert not os.path.lexists(f"/proc/self/fd/{user_fd}")
    assert network() != os.readlink("/proc/self/ns/net")


def test_works_right_after_fork(script) -> None:
    done = script(
        """
        import os
        import netless
        command = ["readlink", "/proc/self/ns/net"]
        before = netless.check_output(command, text=True)
        for way in ("kept", "closed"):
            pid = os.fork()
            if pid == 0:
                if way == "closed":
                    os.closerange(3, 256)
                inside = netless.check_output(command, text=True)
                same = inside == before
                os._exit(0 if same == (way == "kept") else 1)
            assert os.waitpid(pid, 0)[1] == 0, way
        assert netless.check_output(command, text=True) == before
        print("ok")
        """
    )
    assert done.stdout == "ok\n", done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change its euid")
def test_follows_a_change_of_euid(script) -> None:
    done = script(
        """
        import os
        import netless
        command = ["sh", "-c", "id -u; cat /proc/self/uid_map"]
        as_root = netless.check_output(command, text=True).split()
        assert as_root == ["0", "0", "0", "4294967295"], as_root
        os.setegid(12)
        os.seteuid(12345)
        as_user = netless.check_output(command, text=True).split()
        assert as_user[1:] == ["12345", "12345", "1"], as_user
        os.seteuid(0)
        os.setegid(0)
        assert netless.check_output(command, text=True).split() == as_root
        print("ok")
        """,
        prefix=(),
    )
    assert done.stdout == "ok\n", done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
def test_works_for_a_daemon_that_dropped_root(script) -> None:
    """It is not dumpable, so its own /proc files belong to root."""
    done = script(
        """
        import ctypes, os
        import netless
        os.setgroups([])
        os.setresgid(12345, 12345, 12345)
        os.setresuid(12345, 12345, 12345)
        assert ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) != 1
        print(netless.check_output(["id", "-u"], text=True).strip(),
              netless.probe(netless.Isolation(loopback=True)).available)
        """,
        cwd="/",
    )
    assert done.stdout.split() == ["12345", "True"], done.stderr


def test_probe_is_kept_and_leaves_nothing(script) -> None:
    done = script(
        """
        import os, sys
        sys.path.insert(0, sys.argv[1])
        from support import snapshot
        import netless
        assert netless.probe().available
        before = snapshot()
        for isolation in (netless.Isolation(), netless.Isolation(private=True),
                          netless.Isolation(loopback=True)):
            found = netless.probe(isolation)
            assert found.available and found.mechanism == "namespace", found
            assert {"ip", "no-way-back"} <= found.guarantees
            assert netless.require(isolation) == found
        assert snapshot() == before, (before, snapshot())
        print("ok")
        """,
        os.path.dirname(__file__),
    )
    assert done.stdout == "ok\n", done.stderr


def test_a_maker_is_nobody_elses_child(script) -> None:
    """No SIGCHLD, and nothing for a parent that reaps every child it gets."""
    done = script(
        """
        import os, signal
        import netless
        seen = []
        signal.signal(signal.SIGCHLD, lambda *_: seen.append(1))
        netless.require()
        netless.require(netless.Isolation(map_root=True, private=True))
        assert seen == []
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            print("ok")
        """
    )
    assert done.stdout == "ok\n", done.stderr


def test_live_network_namespaces_can_be_counted_by_root() -> None:
    """What the soak test relies on must not go silently blind."""
    assert (live_network_namespaces() is not None) == (os.geteuid() == 0)
