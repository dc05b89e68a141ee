"""The seccomp program of every architecture, run in an interpreter of the test's own."""

# ruff: noqa: C408  (the table reads better so)
from __future__ import annotations

import errno
import itertools
import socket
import struct

import pytest

from netless import _native

pytestmark = pytest.mark.isolated
ffi, lib = _native.ffi, _native.lib

ALLOW = 0x7FFF0000
ERRNO = 0x00050000
STRICT, BARE = lib.NETLESS_RULE_UNIX_STRICT, lib.NETLESS_RULE_BARE
HIGH = 1 << 32
TIOCSTI, TIOCLINUX, TUNSETIFF = 0x5412, 0x541C, 0x400454CA
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16

# Typed in from the kernel's own tables, apart from the one in seal.c.
NUMBERS = {
    "x86_64": (0xC000003E, dict(socket=41, socketpair=53, ioctl=16, add_key=248, request_key=249,
        keyctl=250, ptrace=101, setns=308, process_vm_readv=310, process_vm_writev=311, kcmp=312)),
    "i386": (0x40000003, dict(socket=359, socketpair=360, socketcall=102, ioctl=54, add_key=286,
        request_key=287, keyctl=288, ptrace=26, setns=346, process_vm_readv=347,
        process_vm_writev=348, kcmp=349)),
    "aarch64": (0xC00000B7, dict(socket=198, socketpair=199, ioctl=29, add_key=217,
        request_key=218, keyctl=219, ptrace=117, setns=268, process_vm_readv=270,
        process_vm_writev=271, kcmp=272)),
    "arm": (0x40000028, dict(socket=281, socketpair=288, socketcall=102, ioctl=54, add_key=309,
        request_key=310, keyctl=311, ptrace=26, setns=375, process_vm_readv=376,
        process_vm_writev=377, kcmp=378)),
    "riscv64": (0xC00000F3, dict(socket=198, socketpair=199, ioctl=29, add_key=217,
        request_key=218, keyctl=219, ptrace=117, setns=268, process_vm_readv=270,
        process_vm_writev=271, kcmp=272)),
    "loongarch64": (0xC0000102, dict(socket=198, socketpair=199, ioctl=29, add_key=217,
        request_key=218, keyctl=219, ptrace=117, setns=268, process_vm_readv=270,
        process_vm_writev=271, kcmp=272)),
    "ppc64le": (0xC0000015, dict(socket=326, socketpair=333, socketcall=102, ioctl=54,
        add_key=269, request_key=270, keyctl=271, ptrace=26, setns=350, process_vm_readv=351,
        process_vm_writev=352, kcmp=354)),
    "s390x": (0x80000016, dict(socket=359, socketpair=360, socketcall=102, ioctl=54, add_key=278,
        request_key=279, keyctl=280, ptrace=26, setns=339, process_vm_readv=340,
        process_vm_writev=341, kcmp=343)),
}  # fmt: skip
COMPAT = {"x86_64": "i386", "i386": "x86_64", "aarch64": "arm", "arm": "aarch64"}
IO_URING = (425, 426, 427)
PIDFD_GETFD = 438
TRACES = ("ptrace", "setns", "process_vm_readv", "process_vm_writev", "kcmp")


class Filter:
    def __init__(self, machine: str, rules: int) -> None:
        built = ffi.new("struct netless_filter *")
        lib.netless_filter_build(NUMBERS[machine][0], rules, built)
        assert 0 < built.length < 192
        self.code = [(code.code, code.jt, code.jf, code.k) for code in built.code[0 : built.length]]
        self.order = ">" if machine == "s390x" else "<"
        self.steps = 0

    def __call__(self, audit: int, number: int, *arguments: int) -> int:
        """Run the program over one struct seccomp_data, as the kernel would."""
        arguments = (*arguments, *[0] * (6 - len(arguments)))
        data = struct.pack(self.order + "IIQ6Q", number & 0xFFFFFFFF, audit, 0, *arguments)
        accumulator = at = self.steps = 0
        while True:
            code, if_true, if_false, k = self.code[at]
            at += 1
            self.steps += 1
            if code == 0x20:  # ld word, absolute
                (accumulator,) = struct.unpack_from(self.order + "I", data, k)
            elif code == 0x54:  # and
                accumulator &= k
            elif code in (0x15, 0x25, 0x35):  # jeq, jgt, jge
                taken = {0x15: accumulator == k, 0x25: accumulator > k, 0x35: accumulator >= k}
                at += if_true if taken[code] else if_false
            elif code == 0x06:  # ret
                return k
            else:
                raise AssertionError(f"instruction {code:#x}")


def refused(name: str) -> int:
    return ERRNO | getattr(errno, name)


def machines(machine: str):
    """The native machine and the one it can run as well."""
    yield NUMBERS[machine]
    if machine in COMPAT:
        yield NUMBERS[COMPAT[machine]]


RULES = [0, STRICT, BARE, STRICT | BARE]
every_machine = pytest.mark.parametrize("machine", NUMBERS)
every_rule = pytest.mark.parametrize("rules", RULES, ids=["plain", "strict", "bare", "strict-bare"])


@every_machine
@every_rule
def test_socket_families(machine: str, rules: int) -> None:
    run = Filter(machine, rules)
    for audit, numbers in machines(machine):
        for family, high in itertools.product(range(65), (0, HIGH, 0xFFFFFFFF << 32)):
            result = run(audit, numbers["socket"], family | high, 1, 0)
            if family == AF_UNIX:
                expected = refused("EACCES") if rules & STRICT else ALLOW
            elif family in (AF_INET, AF_INET6, AF_NETLINK) and not rules & BARE:
                expected = ALLOW
            else:
                expected = refused("EAFNOSUPPORT")
            assert result == expected, (hex(audit), family, hex(high))


@every_machine
def test_netlink_usersock(machine: str) -> None:
    run = Filter(machine, 0)
    for audit, numbers in machines(machine):
        for protocol, high in itertools.product(range(32), (0, HIGH)):
            result = run(audit, numbers["socket"], AF_NETLINK, 3, protocol | high)
            assert result == (refused("EPROTONOSUPPORT") if protocol == 2 else ALLOW)
            assert run(audit, numbers["socket"], AF_INET, 1, protocol) == ALLOW


@every_machine
@every_rule
def test_socketpair_types(machine: str, rules: int) -> None:
    run = Filter(machine, rules)
    for audit, numbers in machines(machine):
        for kind, flags, high in itertools.product(range(16), (0, 0x800, 0x80000), (0, HIGH)):
            result = run(audit, numbers["socketpair"], AF_UNIX, kind | flags | high, 0)
            harmless = kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)
            assert result == (ALLOW if harmless or not rules & STRICT else refused("EACCES"))
        for family, high in itertools.product(range(65), (0, HIGH)):
            result = run(audit, numbers["socketpair"], family | high, socket.SOCK_STREAM, 0)
            in_namespace = family in (AF_INET, AF_INET6, AF_NETLINK) and not rules & BARE
            fine = family == AF_UNIX or (in_namespace and not rules & STRICT)
            assert result == (ALLOW if fine else refused("EAFNOSUPPORT"))


@every_machine
@every_rule
def test_numbers_that_are_refused_whole(machine: str, rules: int) -> None:
    run = Filter(machine, rules)
    for audit, numbers in machines(machine):
        for name in ("add_key", "request_key", "keyctl", "socketcall"):
            if name in numbers:
                assert run(audit, numbers[name], 1) == refused("ENOSYS"), name
        for number in IO_URING:
            assert run(audit, number) == refused("ENOSYS")
        traced = refused("EPERM") if rules & BARE else ALLOW
        for name in TRACES:
            assert run(audit, numbers[name]) == traced, name
        assert run(audit, PIDFD_GETFD) == traced


@every_machine
@every_rule
def test_ioctl_requests(machine: str, rules: int) -> None:
    run = Filter(machine, rules)
    for audit, numbers in machines(machine):
        for high in (0, HIGH):
            for request in (TIOCSTI, TIOCLINUX):
                assert run(audit, numbers["ioctl"], 0, request | high) == refused("EPERM")
            # The proof that this filter is in force: an answer that nothing else gives.
            assert run(audit, numbers["ioctl"], 0, 0x6E6C7072 | high) == ERRNO | 2817
            tun = run(audit, numbers["ioctl"], 0, TUNSETIFF | high)
            assert tun == (refused("EPERM") if rules & BARE else ALLOW)
            for request in (0x5401, 0x5413, 0x5411, 0x541D):  # TCGETS, TIOCGWINSZ, ...
                assert run(audit, numbers["ioctl"], 0, request | high) == ALLOW


@every_machine
@every_rule
def test_every_other_number_is_allowed(machine: str, rules: int) -> None:
    run = Filter(machine, rules)
    for audit, numbers in machines(machine):
        special = {numbers[name] for name in ("socket", "socketpair", "ioctl")}
        special |= {
            numbers[name]
            for name in ("add_key", "request_key", "keyctl", "socketcall")
            if name in numbers
        }
        special |= set(IO_URING)
        if rules & BARE:
            special |= {numbers[name] for name in TRACES} | {PIDFD_GETFD}
        for number in range(600):
            if number not in special:
                assert run(audit, number, 16, TIOCSTI) == ALLOW, number


@every_machine
def test_unknown_architectures_and_x32_are_refused(machine: str) -> None:
    run = Filter(machine, 0)
    known = {audit for audit, _ in machines(machine)}
    for audit in (0, 0xFFFFFFFF, *(number for number, _ in NUMBERS.values())):
        if audit not in known:
            for number in (0, 1, 41, 359):
                assert run(audit, number, AF_UNIX) == refused("ENOSYS")
    if machine == "x86_64":
        for number in (0, 41, 512, 547, 0x3FFFFFFF):
            assert run(NUMBERS[machine][0], 0x40000000 + number) == refused("ENOSYS")
        assert run(NUMBERS[machine][0], -1) == refused("ENOSYS")


@every_machine
def test_allowing_takes_few_steps(machine: str) -> None:
    """The kernel walks the program for every number at installation."""
    run = Filter(machine, 0)
    for audit, _ in machines(machine):
        for number in (0, 1, 3, 9, 63, 64, 202, 231, 257):
            if run(audit, number) == ALLOW:
                assert run.steps <= 10


def test_this_machine_has_a_filter() -> None:
    assert lib.netless_native_architecture() in {audit for audit, _ in NUMBERS.values()}
