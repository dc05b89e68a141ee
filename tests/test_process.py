"""netless.isolate(): the calling process itself."""

from __future__ import annotations

import os

import pytest

pytestmark = [pytest.mark.isolated, pytest.mark.native]

CONNECT = """
    import os, socket, subprocess, sys, threading
    import netless
    from netless import Isolation

    def connect(port, address="127.0.0.1"):
        try:
            socket.create_connection((address, int(port)), 5).close()
        except OSError as error:
            return type(error).__name__
        return "reached"
"""


def test_process_loses_its_network_with_all_that_it_starts(script, listener4) -> None:
    before = listener4.reached
    done = script(
        CONNECT
        + """
    child = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5)"

    def attempts():
        print(connect(sys.argv[1]))
        command = [sys.executable, "-c", child, sys.argv[1]]
        print(subprocess.run(command, stderr=subprocess.DEVNULL).returncode)

    attempts()
    outside = os.readlink("/proc/self/ns/net")
    netless.isolate()
    attempts()
    assert os.readlink("/proc/self/ns/net") != outside
    """,
        listener4.port,
    )
    assert done.stdout.split() == ["reached", "0", "OSError", "1"], done.stderr
    assert listener4.reached == before + 2


def test_loopback_of_its_own(script, listener4) -> None:
    done = script(
        CONNECT
        + """
    netless.isolate(Isolation(loopback=True))
    with socket.create_server(("127.0.0.1", 0)) as four, socket.create_server(
        ("::1", 0), family=socket.AF_INET6
    ) as six:
        print(connect(four.getsockname()[1]), connect(six.getsockname()[1], "::1"))
    print(connect(sys.argv[1]))
    """,
        listener4.port,
    )
    assert done.stdout.split() == ["reached", "reached", "ConnectionRefusedError"], done.stderr


@pytest.mark.parametrize("isolation", ["", "loopback=True", "private=True", "unix_sockets=False"])
def test_children_and_pools_still_work_inside(isolation, script) -> None:
    done = script(
        CONNECT
        + f"""
    if __name__ == "__main__":
        isolation = Isolation({isolation})
        netless.run(["true"], check=True)  # what is kept from before is of no use afterwards
        netless.isolate(isolation)
        netless.run(["true"], check=True)
        netless.run(["true"], isolation=isolation, check=True)
        with netless.ProcessPoolExecutor(1, isolation=isolation) as pool:
            print(pool.submit(int, "7").result())
        assert netless.probe(isolation).available
        netless.isolate(isolation)  # once more, deeper
        print(threading.active_count())
    """
    )
    assert done.stdout.split() == ["7", "1"], done.stderr


def test_threads_are_a_reason_to_refuse(script) -> None:
    done = script(
        CONNECT
        + """
    before = os.readlink("/proc/self/ns/net")
    leave = threading.Event()
    threads = [threading.Thread(target=leave.wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        netless.isolate()
    except netless.NetworkIsolationUnavailable as error:
        print(error.cause, error.step, "3 threads" in str(error))
    leave.set()
    for thread in threads:
        thread.join()
    assert os.readlink("/proc/self/ns/net") == before
    netless.isolate()
    """
    )
    assert done.stdout.split() == ["process-has-threads", "None", "True"], done.stderr


@pytest.mark.parametrize("inheritable", [False, True])
def test_open_sockets_are_a_reason_to_refuse(inheritable, script, listener4) -> None:
    """Close-on-exec or not: this process does not execute."""
    done = script(
        CONNECT
        + f"""
    before = os.readlink("/proc/self/ns/net")
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    connection.set_inheritable({inheritable})
    try:
        netless.isolate()
    except netless.InheritedSocketError as error:
        print(error.fd == connection.fileno(), error.family == socket.AF_INET)
    assert os.readlink("/proc/self/ns/net") == before
    netless.isolate(Isolation(inherit_sockets=True))
    print(connection.send(b"x"), connect(sys.argv[1]))
    """,
        listener4.port,
    )
    assert done.stdout.split() == ["True", "True", "1", "OSError"], done.stderr


def test_seal_is_that_of_a_program(script) -> None:
    done = script(
        """
    import os
    import netless

    def fields():
        lines = open("/proc/self/status").read().splitlines()
        return dict(line.split(":\\t", 1) for line in lines)

    netless.isolate()
    found = fields()
    print(found["Seccomp"], int(found["CapEff"], 16) & (1 << 12 | 1 << 13 | 1 << 19 | 1 << 21))
    print(int(found["CapPrm"], 16) == 0 or os.geteuid() == 0)
    assert os.getuid() == os.stat("/proc/self").st_uid
    print(len([fd for fd in os.listdir("/proc/self/fd") if "net:" in os.path.realpath(
        f"/proc/self/fd/{fd}")]))
    """
    )
    assert done.stdout.split() == ["2", "0", "True", "0"], done.stderr


def test_refused(script, programs, listener4) -> None:
    """Nothing was changed where the system has no namespace to give."""
    done = script(
        CONNECT
        + """
    for isolation in (Isolation(), Isolation(mechanism="wrapper")):
        try:
            netless.isolate(isolation)
        except netless.NetworkIsolationUnavailable as error:
            print(error.cause, error.step)
    print(connect(sys.argv[1]))
    """,
        listener4.port,
        prefix=(programs("deny.c"), "unshare=EPERM", "--"),
    )
    expected = ["blocked-by-seccomp", "unshare", "mechanism-unavailable", "None", "reached"]
    assert done.stdout.split() == expected, done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="no filter holds back root")
def test_filter(script, listener4) -> None:
    done = script(
        CONNECT
        + """
    print(connect(sys.argv[1]))
    netless.isolate(Isolation(mechanism="filter"))
    print(connect(sys.argv[1]))
    """,
        listener4.port,
    )
    assert done.stdout.split() == ["reached", "OSError"], done.stderr


def test_map_root(script) -> None:
    done = script(
        """
    import os
    import netless
    netless.isolate(netless.Isolation(map_root=True))
    print(os.getuid(), os.getgid())
    """
    )
    assert done.stdout.split() == ["0", "0"], done.stderr
