"""Each attempt to reach a listener fails from an isolated child and succeeds from a plain one."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
import textwrap

import pytest

import netless
from support import PATIENCE, Listener, need

pytestmark = pytest.mark.isolated

TCP = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 20).send(b'x')"
UDP = textwrap.dedent(
    """
    import socket, sys
    family, kind, protocol, _, address = socket.getaddrinfo(
        sys.argv[1], int(sys.argv[2]), type=socket.SOCK_DGRAM)[0]
    socket.socket(family, kind).sendto(b'x', address)
    """
)
NODE = (
    "const [host, port] = process.argv.slice(1);"
    "const s = require('net').connect(+port, host, () => { s.end('x'); });"
    "s.on('error', () => process.exit(1));"
)

COMMANDS = {
    "python_tcp": lambda h, p: [sys.executable, "-c", TCP, h, p],
    "python_udp": lambda h, p: [sys.executable, "-c", UDP, h, p],
    "curl": lambda h, p: ["curl", "-sS", "-g", "-m", "20", f"http://{bracketed(h)}:{p}/"],
    "curl_in_shell": lambda h, p: [
        "/bin/sh",
        "-c",
        f"true; curl -sSg -m 20 http://{bracketed(h)}:{p}/",
    ],
    "bash_tcp": lambda h, p: ["bash", "-c", f"echo x > /dev/tcp/{h}/{p}"],
    "nc": lambda h, p: ["nc", "-z", "-w", "20", h, p],
    "git": lambda h, p: ["git", "ls-remote", f"git://{bracketed(h)}:{p}/nothing"],
    "ssh": lambda h, p: [
        *("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-F", "none"),
        *("-p", p, h, "true"),
    ],
    "node": lambda h, p: ["node", "-e", NODE, h, p],
}
FAILS_EVEN_WHEN_CONNECTED = {"git", "ssh"}  # the listener speaks neither protocol


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def attempt(module, listener: Listener, command: list[str], **options) -> tuple[bool, int]:
    """Did the command reach the listener, and its exit status."""
    before = listener.reached
    done = module.run(command, capture_output=True, timeout=PATIENCE, **options)
    expected = module is subprocess
    reached = listener.wait_until_reached(before) if expected else listener.reached > before
    return reached, done.returncode


def check(listener: Listener, command: list[str], *, fails_anyway: bool = False, **options) -> None:
    reached, status = attempt(subprocess, listener, command, **options)
    assert reached, "the control did not reach the listener"
    assert fails_anyway or status == 0
    reached, status = attempt(netless, listener, command, **options)
    assert not reached
    assert status != 0


@pytest.mark.usefixtures("way_in")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("name", COMMANDS)
def test_blocks_over_ipv4(name: str, host: str, listener4: Listener) -> None:
    command = COMMANDS[name](host, str(listener4.port))
    need(command[0])
    check(listener4, command, fails_anyway=name in FAILS_EVEN_WHEN_CONNECTED)


@pytest.mark.usefixtures("way_in")
@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "bash_tcp"])
def test_blocks_over_ipv6(name: str, listener6: Listener) -> None:
    command = COMMANDS[name]("::1", str(listener6.port))
    need(command[0])
    check(listener6, command, fails_anyway=name in FAILS_EVEN_WHEN_CONNECTED)


@pytest.mark.usefixtures("way_in")
@pytest.mark.parametrize("flags", [(), ("-static",), ("-m32", "-static")], ids=lambda f: "".join(f))
def test_blocks_compiled_programs(
    flags, programs, listener4: Listener, listener6: Listener
) -> None:
    program = programs("connect.c", *flags)
    check(listener4, [program, "127.0.0.1", str(listener4.port)])
    check(listener6, [program, "::1", str(listener6.port)])


@pytest.mark.usefixtures("way_in")
def test_blocks_ping() -> None:
    """ICMP has no listener to count: the control is the echo's answer."""
    command = [need("ping"), "-c1", "-W5", "127.0.0.1"]
    control = subprocess.run(command, capture_output=True, timeout=PATIENCE)
    assert control.returncode == 0, control.stderr
    try:
        isolated = netless.run(command, capture_output=True, timeout=PATIENCE)
    except PermissionError as error:
        # Its file capability CAP_NET_RAW is not in the child's bounding set (execve(2), EPERM).
        blocked = error.errno == errno.EPERM
    else:
        blocked = isolated.returncode != 0
    assert blocked


@pytest.mark.parametrize("way", ["list", "string", "env", "preexec", "own_env_path", "stdin"])
def test_blocks_however_it_is_started(way: str, listener4: Listener) -> None:
    command = [sys.executable, "-c", TCP, "127.0.0.1", str(listener4.port)]
    options: dict = {}
    if way == "string":
        command = " ".join(f"'{part}'" for part in command[:2]) + (
            f' "{TCP}" 127.0.0.1 {listener4.port}'
        )
        options = {"shell": True}
    elif way == "env":
        options = {"env": {"A": "B"}}
    elif way == "preexec":
        options = {"preexec_fn": lambda: None}
    elif way == "own_env_path":
        command[0] = "python3"
        options = {"env": {"PATH": "/usr/bin:/bin"}}
    elif way == "stdin":
        command = [sys.executable, "-", *command[3:]]
        options = {"input": TCP.encode()}
    check(listener4, command, **options)


def test_preexec_fn_itself_is_isolated(listener4: Listener) -> None:
    def connect() -> None:
        socket.create_connection(("127.0.0.1", listener4.port), 20).send(b"x")

    before = listener4.reached
    assert subprocess.run(["true"], preexec_fn=connect).returncode == 0
    assert listener4.wait_until_reached(before)
    before = listener4.reached
    with pytest.raises(netless.SubprocessError):
        netless.run(["true"], preexec_fn=connect)
    assert listener4.reached == before


@pytest.mark.usefixtures("way_in")
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_grandchildren_stay_isolated(depth: int, listener4: Listener) -> None:
    command = [sys.executable, "-c", TCP, "127.0.0.1", str(listener4.port)]
    relay = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"
    for _ in range(depth):
        command = [sys.executable, "-c", relay, *command]
    check(listener4, command)


@pytest.mark.usefixtures("way_in")
def test_grandchild_in_a_session_of_its_own_stays_isolated(listener4: Listener) -> None:
    command = ["setsid", "--wait", sys.executable, "-c", TCP, "127.0.0.1", str(listener4.port)]
    check(listener4, command, start_new_session=True)


@pytest.mark.usefixtures("way_in")
@pytest.mark.parametrize("isolation", [{"private": True}, {"map_root": True}, {"loopback": True}])
def test_every_kind_of_namespace_blocks(isolation: dict, listener4: Listener) -> None:
    command = [sys.executable, "-c", TCP, "127.0.0.1", str(listener4.port)]
    assert attempt(subprocess, listener4, command) == (True, 0)
    before = listener4.reached
    done = netless.run(
        command, capture_output=True, timeout=PATIENCE, isolation=netless.Isolation(**isolation)
    )
    assert done.returncode != 0
    assert listener4.reached == before


OWN_NETWORK = """
import socket, subprocess, sys, threading
import netless
address, family = sys.argv[1], socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
subprocess.run(["ip", "link", "add", "peer0", "type", "veth",
                "peer", "name", "peer1"], check=True)
prefix = "/64" if family == socket.AF_INET6 else "/24"
flags = ["nodad"] if family == socket.AF_INET6 else []
subprocess.run(["ip", "address", "add", address + prefix, "dev", "peer0", *flags], check=True)
for link in ("lo", "peer0", "peer1"):
    subprocess.run(["ip", "link", "set", link, "up"], check=True)
with socket.create_server((address, 0), family=family) as server:
    attempt = [sys.executable, "-c", "import socket, sys;"
               "socket.create_connection((sys.argv[1], int(sys.argv[2])), 20)",
               address, str(server.getsockname()[1])]
    quiet = {"stderr": subprocess.DEVNULL, "timeout": 60}
    print(subprocess.call(attempt, **quiet), netless.call(attempt, **quiet))
"""


@pytest.mark.parametrize("address", ["192.0.2.1", "2001:db8::1"])
def test_blocks_a_listener_that_is_not_loopback(address: str, script) -> None:
    """In a network of the test's own: the plain child reaches it, the isolated one does not."""
    need("ip")
    prefix = (need("unshare"), "--user", "--map-root-user", "--net", "--")
    done = script(OWN_NETWORK, address, prefix=prefix)
    assert done.stdout.split() == ["0", "1"], done.stderr
