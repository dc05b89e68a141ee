"""Runs between the external wrapper and the program: proves, then becomes the program.

Started as a script by an interpreter without site-packages, so it imports nothing
of netless.  Its orders come as one marshalled tuple from an inherited file; what
came of them goes through a pipe that closes when the program is executed.
"""

import marshal
import os
import signal
import sys

PROVED = b"proved\n"
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


class Failed(Exception):
    """A step that did not hold, with its errno."""


def prove(outside: tuple[int, int] | None) -> None:
    """Raise unless this process is cut off from the network."""
    if outside is not None:
        inside = os.stat("/proc/self/ns/net")
        if (inside.st_dev, inside.st_ino) == outside:
            raise Failed("verify-net", 17)
        return
    import socket

    with socket.socket() as attempt:  # nothing listens there; the sandbox answers EPERM first
        try:
            attempt.connect(("127.0.0.1", 1))
        except PermissionError:
            return
        except OSError:
            pass
    raise Failed("verify-net", 17)


def raise_loopback() -> None:
    """Bring lo up, then give the kept capabilities back."""
    import ctypes
    import fcntl
    import socket
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack_from("h", fcntl.ioctl(control, SIOCGIFFLAGS, request), 16)
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))
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

    def proved(self) -> None:
        """Tell the parent, if there is one that waits for it."""
        if not self.program:
            os.write(self.fd, PROVED)

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
    report.proved()
    if argv:
        restore(*rest)
        environment = own_environment(has_locale) if env is None else dict(env)
        report.fail("exec", execute(candidates, argv, environment))


if __name__ == "__main__":
    main()
