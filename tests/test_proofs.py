"""Where a child is, is proved: by what is never used twice, and by an answer that must come."""

from __future__ import annotations

import os
import sys

import pytest

import netless
from netless import Isolation, _native
from support import need

pytestmark = [pytest.mark.isolated, pytest.mark.native]

# A server in a user and network namespace of its own, on a loopback device that is up.
SERVER = """
import fcntl, socket, struct
with socket.socket() as control:
    fcntl.ioctl(control, 0x8914, struct.pack("16sh14x", b"lo", 1))
server = socket.create_server(("127.0.0.1", 0))
port = server.getsockname()[1]
socket.create_connection(("127.0.0.1", port)).close()  # the control: there is a way from inside
server.accept()
print(port, flush=True)
server.settimeout(20)
while True:
    server.accept()
"""
CLIENT = """
import socket, sys
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5)
    print("reached")
except OSError as error:
    print(type(error).__name__)
"""
REPLACED = """
import fcntl, json, os, subprocess, sys
import netless
from netless import Isolation

server, client, options = sys.argv[1:]
isolation = Isolation(**json.loads(options))

def handles():
    found = {{}}
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            name = os.readlink(f"/proc/self/fd/{{fd}}")
        except OSError:
            continue
        if name.startswith(("user:[", "net:[")):
            found[name.partition(":")[0]] = (fd, name)
    return found

netless.require(isolation)
kept = handles()
assert set(kept) == {{"user", "net"}}
os.closerange(3, 64)
# The kernel gives out the numbers of namespaces that are gone again at once, as a rule.
for attempt in range(40):
    command = ["unshare", "--user", "--map-root-user", "--net", sys.executable, "-c", server]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    port = other.stdout.readline().strip()
    names = {{which: os.readlink(f"/proc/{{other.pid}}/ns/{{which}}") for which in kept}}
    recycled = all(names[which] == kept[which][1] for which in kept)
    if recycled or attempt == 39:
        break
    other.kill()
    other.communicate()
for which in kept:
    found = os.open(f"/proc/{{other.pid}}/ns/{{which}}", os.O_RDONLY)
    high = fcntl.fcntl(found, fcntl.F_DUPFD_CLOEXEC, 100)
    os.close(found)
    os.dup2(high, kept[which][0], inheritable=False)
{launch}
other.kill()
other.communicate()
"""
ONCE = """
print(recycled, netless.check_output([sys.executable, "-c", client, port], text=True,
                                     isolation=isolation, **{options}).strip())
# What the caller opened under those numbers is the caller's still.
print(all(os.readlink(f"/proc/self/fd/{{fd}}") == names[which] for which, (fd, _) in kept.items()))
# ... and the next launch is not troubled by it.
print(netless.check_output(["readlink", "/proc/self/ns/net"], text=True).strip() != names["net"])
"""


@pytest.mark.parametrize("isolation", ["{}", '{"private": true}', '{"loopback": true}'])
@pytest.mark.parametrize("options", ["{}", '{"preexec_fn": int}'], ids=["plain", "preexec"])
def test_handles_that_were_replaced_lead_nowhere(isolation: str, options: str, script) -> None:
    """By others, of a namespace with a listener, under the same descriptors and inodes."""
    need("unshare")
    source = REPLACED.format(launch=ONCE.format(options=options))
    done = script(source, SERVER, CLIENT, isolation)
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    # What was reached, had the inode alone been looked at; its own 127.0.0.1 has no such port.
    expected = "ConnectionRefusedError" if "loopback" in isolation else "OSError"
    assert first.split()[1] in (expected, "ConnectionRefusedError")
    assert rest == ["True", "True"]


def test_the_proof_of_this_kernel_is_the_cookie() -> None:
    """Which every kernel from 5.14 on has (socket(7), SO_NETNS_COOKIE)."""
    report = _native._probe(_native.plan_for(Isolation()).c)
    assert (report.step, report.proof) == (0, _native.lib.NETLESS_PROOF_COOKIE)
    sealed = _native.plan_for(Isolation()).sealed
    assert sealed.net.id != 0
    inside = (
        "import socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM);"
        "print(int.from_bytes(s.getsockopt(socket.SOL_SOCKET, 71, 8), __import__('sys').byteorder))"
    )
    own = netless.check_output([sys.executable, "-c", inside], text=True)
    assert int(own) == sealed.net.id


@pytest.mark.parametrize(
    ("rules", "proof"),
    [
        (("getsockopt=EPERM",), "ID" if os.uname().release >= "6.18" else "CONTENTS"),
        (("getsockopt=EPERM", "ioctl%0x894c=EPERM"), "CONTENTS"),
    ],
    ids=["no cookie", "no id either"],
)
def test_a_filter_around_the_caller_leaves_another_proof(
    rules, proof: str, programs, script
) -> None:
    deny = programs("deny.c")
    source = """
        import sys
        from netless import Isolation, _native
        for wanted in ({}, {"private": True}, {"loopback": True}):
            report = _native._probe(_native.plan_for(Isolation(**wanted)).c)
            print(report.step, _native.ffi.typeof("enum netless_proof").elements[report.proof])
    """
    done = script(source, prefix=(deny, *rules, "--"))
    assert done.stdout.splitlines() == [f"0 NETLESS_PROOF_{proof}"] * 3, done.stderr
