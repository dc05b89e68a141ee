"""What the tests share: patience, programs that must be there, listeners that count."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest

import netless
from netless import Isolation, _launcher, _native

WITHOUT_EXTENSION = os.environ.get("NETLESS_TEST_WITHOUT_EXTENSION") == "1"
MUST_ISOLATE = os.environ.get("NETLESS_MUST_ISOLATE") == "1"
DEFAULT = Isolation()
OTHERS = 25  # network namespaces that other test processes may make meanwhile
PATIENCE = 60  # seconds after which a command counts as hanging


def need(program: str) -> str:
    """The program's path; a missing one is a failure in CI and a skip elsewhere."""
    path = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if path is None:
        if MUST_ISOLATE:
            pytest.fail(f"{program} is not installed")
        pytest.skip(f"{program} is not installed")
    return path


def need_module(name: str) -> None:
    """As :func:`need`, for what Python imports."""
    if importlib.util.find_spec(name) is None:
        (pytest.fail if MUST_ISOLATE else pytest.skip)(f"{name} is not installed")


def need_uvloop() -> None:
    """There is one for CPython alone."""
    if sys.implementation.name != "cpython":
        pytest.skip("there is no uvloop for this Python")
    need_module("uvloop")


def launcher() -> str:
    """The path of netless-exec."""
    path = _launcher.find()
    if path is None:
        (pytest.fail if MUST_ISOLATE else pytest.skip)(f"{_launcher.NAME} is not installed")
    return path


def build_launcher() -> types.ModuleType:
    """The module that builds netless-exec, of the checkout."""
    source = Path(__file__).resolve().parent.parent / "csrc" / "build_launcher.py"
    spec = importlib.util.spec_from_file_location("build_launcher", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_plain(text: str) -> bool:
    """One sentence for people: no token, nothing that a log's redaction takes for a secret."""
    is_sentence = re.fullmatch(r"[A-Z][A-Za-z0-9 ,;'.]*[a-z0-9]\.", text) and ". " not in text
    return bool(is_sentence) and not re.search(r"\w{24,}", text)


class ByLauncher:
    """netless's functions as a caller would write them that has nothing but netless-exec."""

    def __getattr__(self, name: str):
        return getattr(netless, name)

    def Popen(self, args, *, isolation=DEFAULT, shell=False, pass_fds=(), **options):
        argv = ["/bin/sh", "-c", args] if shell else [args] if isinstance(args, str) else args
        read, write = os.pipe()
        command = _launcher.command(launcher(), list(map(os.fspath, argv)), isolation)
        command[1:1] = ["--fd-report", str(write)]
        with open(read) as report:
            try:
                process = subprocess.Popen(command, pass_fds=[*pass_fds, write], **options)
            finally:
                os.close(write)
            line = report.read()
        if line:
            with process:
                raise reported(line, argv[0])
        return process

    def run(self, *args, timeout=None, input=None, capture_output=False, check=False, **options):
        if input is not None:
            options["stdin"] = subprocess.PIPE
        if capture_output:
            options["stdout"] = options["stderr"] = subprocess.PIPE
        with self.Popen(*args, **options) as process:
            out, err = process.communicate(input, timeout=timeout)
        done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
        if check:
            done.check_returncode()
        return done

    def call(self, *args, **options):
        return self.run(*args, **options).returncode

    def check_call(self, *args, **options):
        return self.run(*args, check=True, **options).returncode

    def check_output(self, *args, **options):
        return self.run(*args, check=True, stdout=subprocess.PIPE, **options).stdout


def reported(line: str, program: str) -> Exception:
    """What one line of --fd-report means in Python."""
    step, number, cause, *descriptor = line.split()
    if step == "exec":
        return OSError(int(number), os.strerror(int(number)), program)
    if descriptor:
        fd, family = map(int, descriptor)
        kind = cause.removeprefix("inherited-")
        return netless.InheritedSocketError(fd, None if family < 0 else family, kind)
    return netless.NetworkIsolationUnavailable(
        cause, step=None if step == "-" else step, errno=int(number) or None
    )


class Listener:
    """A TCP and a UDP socket on one loopback address; counts what reaches them."""

    def __init__(self, family: socket.AddressFamily, address: str) -> None:
        self.family, self.address = family, address
        self.tcp = socket.create_server((address, 0), family=family, backlog=256)
        self.port = self.tcp.getsockname()[1]
        self.udp = socket.socket(family, socket.SOCK_DGRAM)
        self.udp.bind((address, self.port))
        self.connections = self.datagrams = 0
        self.arrived = threading.Condition()
        self.threads = [
            threading.Thread(target=loop, daemon=True) for loop in (self._accept, self._receive)
        ]
        for thread in self.threads:
            thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.tcp.accept()
            except OSError:
                return
            with self.arrived:
                self.connections += 1
                self.arrived.notify_all()
            with connection:
                connection.settimeout(5)
                try:
                    connection.recv(4096)
                    connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nyes")
                except OSError:
                    pass

    def _receive(self) -> None:
        while True:
            try:
                data, _ = self.udp.recvfrom(4096)
            except OSError:
                return
            if data == b"stop":
                return
            with self.arrived:
                self.datagrams += 1
                self.arrived.notify_all()

    @property
    def reached(self) -> int:
        return self.connections + self.datagrams

    def wait_until_reached(self, before: int) -> bool:
        with self.arrived:
            return self.arrived.wait_for(lambda: self.reached > before, timeout=10)

    def close(self) -> None:
        with socket.socket(self.family, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"stop", (self.address, self.port))
        self.tcp.shutdown(socket.SHUT_RDWR)
        self.tcp.close()
        for thread in self.threads:
            thread.join(10)
        self.udp.close()


@contextlib.contextmanager
def victim(module):
    """A child that has started for good, so that its memory no longer changes: ``cat``."""
    pipe = subprocess.PIPE
    with module.Popen(["cat"], stdin=pipe, stdout=pipe) as process:
        process.stdin.write(b"x\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"x\n"
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def without_layer(name: str, isolation: Isolation = DEFAULT):
    """The control of a layer of the seal: the same launch with that one layer left out."""
    netless.require(isolation)
    plan = _native._cache.plans[isolation]
    weak = _native.ffi.new("struct netless_plan *")
    weak[0] = plan.c[0]
    weak.layers = plan.c.layers & ~getattr(_native.lib, f"NETLESS_LAYER_{name}")
    assert weak.layers != plan.c.layers
    _native._cache.plans[isolation] = _native.Plan(
        plan.isolation, plan.mechanism, plan.guarantees, weak, plan.sealed
    )
    _native._cache.latest = None
    try:
        yield
    finally:
        _native._cache.plans[isolation] = plan
        _native._cache.latest = None


def children() -> list[str]:
    """The stat lines of this process's children, zombies included."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, fields = (entry / "stat").read_text().rsplit(")", 1)
            except OSError:  # it has just ended
                continue
            if int(fields.split()[1]) == os.getpid():
                found.append(name)
    return found


def open_descriptors() -> set[int]:
    """Without the one that lists them."""
    return {
        int(name) for name in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{name}")
    }


def snapshot() -> dict[str, object]:
    """What a process must not leave behind: descriptors and children."""
    return {"descriptors": open_descriptors(), "children": children()}


def network_namespaces_settle(before: int | None) -> bool:
    """Is their number what it was, but for a few that other tests on this machine hold?

    The kernel frees them a moment after their last process.
    """
    for _ in range(200):
        if before is None or (live_network_namespaces() or 0) <= before + OTHERS:
            return True
        time.sleep(0.1)
    return False


def live_network_namespaces() -> int | None:
    """How many the kernel holds, or None where it does not say (it tells root only)."""
    try:
        slab = Path("/proc/slabinfo").read_text()
    except OSError:
        return None
    for line in slab.splitlines():
        if line.startswith("net_namespace"):
            return int(line.split()[1])
    return None
