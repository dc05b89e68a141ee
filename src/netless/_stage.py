"""Runs between the external wrapper and the program: proves, then becomes the program.

Started as a script by an interpreter without site-packages, so it imports nothing
of netless.  Its orders come as one marshalled tuple from an inherited file; what
came of them goes through a pipe that closes when the program is executed.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import marshal
import os
import signal
import socket
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    Namespace = tuple[int, int]
    Outside = tuple[Namespace, Namespace, tuple[int, ...]]

PROVED = b"proved\n"
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
SIOCGIFCONF, SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8912, 0x8913, 0x8914, 1
IFREQ = struct.calcsize("16sLLHBBB0L")  # struct ifreq: a name, and at most a struct ifmap
SO_NETNS_COOKIE = 71  # asm-generic/socket.h
NS_GET_USERNS = 0xB701  # linux/nsfs.h

# The devices of a network namespace that is new, each of them down: the loopback, and what
# loaded modules add on some systems (net.core.fb_tunnels_only_for_init_net).
DEVICES = frozenset(("lo", "tunl0", "gre0", "gretap0", "erspan0", "sit0", "ip6tnl0", "ip6gre0"))
DEVICES |= {"ip_vti0", "ip6_vti0"}
# What raising lo adds; without the last where IPv6 is off.
LOOPBACK = frozenset(("lo is up", "127.0.0.1", "::1"))


class Failed(Exception):
    """A step that did not hold, with its errno."""


# ---- where this process is, asked of the kernel ----


def namespace(kind: str, process: str = "self") -> Namespace:
    """Device and inode of a namespace, which tell it from others that exist at the same time."""
    found = os.stat(f"/proc/{process}/ns/{kind}")
    return found.st_dev, found.st_ino


def network_id() -> int:
    """The calling thread's network namespace, by a number that is never used twice.

    0 where the kernel does not tell (before Linux 5.14), or a sandbox around this
    process does not let it.
    """
    try:
        with _control() as asked:
            found = asked.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8)
    except OSError:
        return 0
    return int.from_bytes(found, sys.byteorder) if len(found) == 8 else 0


def network_owner() -> Namespace:
    """The user namespace that has power over this process's network namespace.

    Raises:
        OSError: EPERM where that is one further out.
    """
    network = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        handle = fcntl.ioctl(network, NS_GET_USERNS)
    finally:
        os.close(network)
    try:
        found = os.fstat(handle)
    finally:
        os.close(handle)
    return found.st_dev, found.st_ino


def holds() -> set[str]:
    """What makes this process's network namespace more than a new one."""
    found = set()
    with open("/proc/self/net/dev") as file:
        devices = [line.partition(":")[0].strip() for line in file if ":" in line]
    with _control() as asked:
        for device in devices:
            if _flags(asked, device) & IFF_UP:
                found.add(f"{device} is up")
            elif device not in DEVICES:
                found.add(device)
        found.update(_addresses(asked))
    return found


def _control() -> socket.socket:
    """A socket to ask by; a sandbox around this process may refuse either family."""
    with contextlib.suppress(OSError):
        return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def _flags(asked: socket.socket, device: str) -> int:
    answer = fcntl.ioctl(asked, SIOCGIFFLAGS, _request(device))
    return int(struct.unpack_from("h", answer, 16)[0])


def _request(device: str, flags: int = 0) -> bytes:
    return struct.pack(f"16sh{IFREQ - 18}x", device.encode(), flags)


def _addresses(asked: socket.socket) -> list[str]:
    """Every address of every device, up or not."""
    room = array.array("B", bytes(64 * IFREQ))
    request = struct.pack("iP", len(room), room.buffer_info()[0])
    (size,) = struct.unpack_from("i", fcntl.ioctl(asked, SIOCGIFCONF, request))
    found = [socket.inet_ntoa(room[at + 20 : at + 24]) for at in range(0, size, IFREQ)]
    if os.path.exists("/proc/self/net/if_inet6"):
        with open("/proc/self/net/if_inet6") as file:
            numbers = [bytes.fromhex(line.split()[0]) for line in file]
        found += [socket.inet_ntop(socket.AF_INET6, number) for number in numbers]
    return found


# ---- the proofs ----


def prove(outside: Outside | None) -> None:
    """Raise unless this process is cut off from the network.

    Args:
        outside: the caller's user and network namespace, and the ids of network namespaces
            that this one must not be; None on macOS.
    """
    if outside is None:
        _prove_by_refusal()
        return
    user, network, ids = outside
    if namespace("net") == network or network_id() in ids:
        raise Failed("verify-net", errno.EEXIST)
    if namespace("user") == user or not _owns_its_network():
        raise Failed("verify-user", errno.EEXIST)
    if holds():
        raise Failed("verify-net", errno.ENOTEMPTY)


def _owns_its_network() -> bool:
    try:
        return network_owner() == namespace("user")
    except PermissionError:
        return False


def _prove_by_refusal() -> None:
    """Nothing listens there; the sandbox answers EPERM first."""
    with socket.socket() as attempt:
        try:
            attempt.connect(("127.0.0.1", 1))
        except PermissionError:
            return
        except OSError:
            pass
    raise Failed("verify-net", errno.EEXIST)


# ---- what comes then ----


def raise_loopback() -> None:
    """Bring lo up, and see that nothing else came; then give the kept capabilities back."""
    import ctypes

    with _control() as asked:
        fcntl.ioctl(asked, SIOCSIFFLAGS, _request("lo", _flags(asked, "lo") | IFF_UP))
    found = holds()
    if "lo is up" not in found or found - LOOPBACK:
        raise Failed("loopback", errno.ENOTEMPTY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0:
        raise Failed("ambient-set", ctypes.get_errno())


def restore(stdin: int, stderr: int, restore_signals: bool) -> None:
    """The standard streams and the signal dispositions that the program is to have."""
    for source, target in ((stdin, 0), (stderr, 2)):
        if source >= 0:
            os.dup2(source, target, inheritable=True)
            os.close(source)
        else:
            os.close(target)
    if restore_signals:
        for name in ("SIGPIPE", "SIGXFSZ"):
            signal.signal(getattr(signal, name), signal.SIG_DFL)


def own_environment(has_locale: bool) -> dict[bytes, bytes]:
    """What this process was started with, without what the interpreter adds (PEP 538)."""
    env = dict(os.environb)
    if not has_locale:
        env.pop(b"LC_CTYPE", None)
    return env


def execute(candidates: list[bytes], argv: list[bytes], env: dict[bytes, bytes]) -> int:
    """Come back on failure only: the first error that is not "not found" wins."""
    first = last = 2
    found = False
    for path in candidates:
        try:
            os.execve(path, argv, env)
        except OSError as error:
            last = error.errno or last
            if not found and not isinstance(error, (FileNotFoundError, NotADirectoryError)):
                first, found = last, True
    return first if found else last


class Report:
    """Where the outcome goes: a pipe to the parent, or the user's terminal."""

    def __init__(self, fd: int, program: str) -> None:
        self.fd = fd
        self.program = program

    def proved(self, more: str = "") -> None:
        """Tell the parent, if there is one that waits for it."""
        if not self.program:
            os.write(self.fd, PROVED + more.encode())

    def fail(self, step: str, error: int) -> None:
        """Say which step failed, and end this process."""
        if not self.program:
            os.write(self.fd, f"{step} {error}\n".encode())
            os._exit(127)
        what = self.program if step == "exec" else f"launch step {step!r} failed"
        os.write(self.fd, f"netless: error: {what}: {os.strerror(error)}\n".encode())
        not_found = isinstance(OSError(error, ""), (FileNotFoundError, NotADirectoryError))
        os._exit(125 if step != "exec" else 127 if not_found else 126)


def main() -> None:
    """Follow the orders in descriptor argv[1], report through descriptor argv[2].

    With argv[3], the program's name, there is no parent: the report is for a person.
    """
    orders_fd, report_fd = int(sys.argv[1]), int(sys.argv[2])
    report = Report(report_fd, sys.argv[3] if len(sys.argv) > 3 else "")
    with open(orders_fd, "rb") as file:
        argv, candidates, env, has_locale, outside, loopback, *rest = marshal.load(file)
    if report_fd > 2:
        os.set_inheritable(report_fd, False)
    step = "verify-net"
    try:
        prove(outside)
        if loopback:
            step = "loopback"
            raise_loopback()
    except Failed as failed:
        report.fail(*failed.args)
    except OSError as error:
        report.fail(step, error.errno or 0)
    if not argv:  # a trial
        report.proved("" if outside is None else f"{network_id()}\n")
    else:
        report.proved()
        restore(*rest)
        environment = own_environment(has_locale) if env is None else dict(env)
        report.fail("exec", execute(candidates, argv, environment))


if __name__ == "__main__":
    main()
