"""macOS without a Mac: compiled and linked for it, its control flow run against a stand-in.

The stand-in is a ``sandbox_init`` for Linux (programs/seatbelt.c), linked with the C files of
macOS into an extension that the Python side is run with.  What only macOS itself can show
is marked ``macos``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import shutil
import socket
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest

import netless
from netless import Isolation
from netless._profile import profile
from support import MUST_ISOLATE, build_launcher, need

HERE = Path(__file__).resolve().parent
CSRC = HERE.parent / "csrc"
PACKAGE = Path(netless.__file__).parent
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wmissing-prototypes", "-Werror"]

MACOS = ["spawn.c", "fork.c", "channels.c", "macos.c", "no_namespaces.c"]
LINUX = ["spawn.c", "fork.c", "channels.c", "linux.c", "proof.c", "seal.c", "descriptors.c"]
NOWHERE = ["unsupported.c", "no_namespaces.c"]


# ---- compiled and linked ----


def zig_cc(target: str, *arguments: object) -> subprocess.CompletedProcess:
    """Compile for another system; the first build for a target also makes its C library."""
    if importlib.util.find_spec("ziglang") is None:
        (pytest.fail if MUST_ISOLATE else pytest.skip)("ziglang is not installed")
    return subprocess.run(
        [
            *(sys.executable, "-m", "ziglang", "cc", "-target", target),
            *("-std=gnu11", "-O2", *WARNINGS, *arguments),
        ],
        capture_output=True,
        text=True,
        timeout=600,
    )


def link(target: str, *sources: Path, output: Path) -> subprocess.CompletedProcess:
    """A shared object in which nothing may be left undefined."""
    strict = [] if "macos" in target else ["-Wl,-z,defs"]
    return zig_cc(target, "-shared", *strict, *sources, "-o", output)


@pytest.mark.build
@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("aarch64-macos.11.0", MACOS),
        ("x86_64-macos.11.0", MACOS),
        ("aarch64-linux-gnu.2.17", LINUX),
        ("x86_64-linux-musl", LINUX),
        ("x86_64-freebsd", NOWHERE),
    ],
)
def test_links_for(target: str, names: list[str], tmp_path: Path) -> None:
    output = tmp_path / "netless.so"
    done = link(target, *(CSRC / name for name in names), output=output)
    assert done.returncode == 0, done.stderr
    assert output.exists()


@pytest.mark.build
@pytest.mark.parametrize("name", NOWHERE)
def test_compiles_for_windows(name: str, tmp_path: Path) -> None:
    done = zig_cc("x86_64-windows-gnu", "-c", CSRC / name, "-o", tmp_path / "netless.o")
    assert done.returncode == 0, done.stderr


@pytest.mark.build
@pytest.mark.parametrize("target", ["aarch64-macos.11.0", "aarch64-linux-gnu.2.17"])
def test_linking_finds_what_the_system_does_not_have(target: str, tmp_path: Path) -> None:
    """The control: a function that is nowhere fails the link."""
    source = tmp_path / "missing.c"
    source.write_text(
        "int sandbox_no_such(void);\nint f(void);\nint f(void)\n{ return sandbox_no_such(); }\n"
    )
    done = link(target, source, output=tmp_path / "missing.so")
    assert done.returncode != 0
    assert "sandbox_no_such" in done.stderr


def test_every_c_file_is_built_for_some_platform() -> None:
    built = {*MACOS, *LINUX, *NOWHERE, "cpython.c", "pypy.c", "launcher.c", "diagnosis.c"}
    assert built == {file.name for file in CSRC.glob("*.c")}


# ---- the profile ----


def test_profile_denies_the_network_last() -> None:
    """Whatever unix_sockets=True allows again is AF_UNIX."""
    text = profile(Isolation())
    assert text.startswith("(version 1)\n(allow default)\n(deny network*)\n")
    after = text.partition("(deny network*)")[2].splitlines()
    allowed = [line for line in after if line.startswith("(allow")]
    assert allowed
    assert all("unix-socket))" in line for line in allowed)
    assert "(allow" not in profile(Isolation(unix_sockets=False)).partition("(deny network*)")[2]


@pytest.mark.parametrize("isolation", [Isolation(), Isolation(unix_sockets=False)])
def test_profile_is_balanced_lisp(isolation: Isolation) -> None:
    text = profile(isolation)
    depth = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        assert depth >= 0
    assert depth == 0
    assert text.count('"') % 2 == 0


@pytest.mark.parametrize("option", ["loopback", "map_root"])
def test_what_needs_a_namespace_is_refused(option: str) -> None:
    with pytest.raises(ValueError, match="namespace"):
        profile(Isolation(**{option: True}))
    with pytest.raises(ValueError, match="namespace"):
        Isolation(mechanism="seatbelt", **{option: True})


# ---- the control flow, on Linux ----


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package whose extension is the one of macOS with a stand-in beneath."""
    if sys.platform != "linux":
        pytest.skip("the stand-in is for Linux")
    need("gcc")
    pytest.importorskip("cffi")
    builder = runpy.run_path(str(CSRC / "build.py"))
    root = tmp_path_factory.mktemp("macos")
    root.chmod(0o755)
    folder = root / "netless"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    builder["ffi"].emit_c_code(str(root / "_spawn.c"))
    subprocess.run(
        [
            *("gcc", "-std=gnu11", "-O1", "-fPIC", "-shared", f"-I{CSRC}"),
            f"-I{sysconfig.get_path('include')}",
            f'-DNETLESS_VERSION="{netless.__version__}"',
            *(root / "_spawn.c", HERE / "programs" / "seatbelt.c", CSRC / "cpython.c"),
            *(CSRC / name for name in MACOS),
            *(
                "-pthread",
                "-Wl,-Bsymbolic",
                "-o",
                folder / f"_spawn{sysconfig.get_config_var('EXT_SUFFIX')}",
            ),
        ],
        check=True,
    )
    launcher = root / "bin" / "netless-exec"
    launcher.parent.mkdir()
    stand_in = str(HERE / "programs" / "seatbelt.c")
    build_launcher().link(launcher, ["gcc", "-pthread", stand_in], "darwin")
    record = root / f"netless-{netless.__version__}.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("bin/netless-exec,,\n")
    return root


@pytest.fixture
def macos(package: Path, script):
    """Runs Python source with that package: what it printed as JSON."""
    prelude = """
        import errno, json, os, socket, subprocess, sys, threading, time
        import netless
        from netless import Isolation, NetworkIsolationUnavailable, _native
        assert _native.MECHANISM == "seatbelt"

        def snapshot():
            descriptors = sorted(os.listdir("/proc/self/fd"))
            try:
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                children = True
            except ChildProcessError:
                children = False
            return descriptors, children
    """

    def run(source: str, *arguments: object, seatbelt: str = "deny"):
        environment = {**os.environ, "PYTHONPATH": str(package), "SEATBELT": seatbelt}
        text = textwrap.dedent(prelude) + textwrap.dedent(source)
        done = script(text, *arguments, env=environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


CONNECT = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5)"


def test_child_is_isolated_before_it_runs(macos, listener4) -> None:
    result = macos(
        f"""
        command = [sys.executable, "-c", {CONNECT!r}, sys.argv[1]]
        hook = lambda: None
        print(json.dumps([
            subprocess.call(command),
            netless.call(command, stderr=subprocess.DEVNULL),
            netless.call(command, stderr=subprocess.DEVNULL, preexec_fn=hook),
            netless.Popen(["true"]).mechanism,
            sorted(netless.probe().guarantees),
            sorted(netless.probe(Isolation(unix_sockets=False, inherit_sockets=True)).guarantees),
        ]))
        """,
        listener4.port,
    )
    assert result == [0, 1, 1, "seatbelt", ["inherited-sockets", "ip"], ["ip", "unix-path"]]


def test_preexec_fn_runs_inside(macos, listener4) -> None:
    result = macos(
        """
        def hook():
            try:
                socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5)
            except PermissionError:
                os.write(1, b"denied ")
        hook_ran = netless.check_output(["echo", "executed"], preexec_fn=hook, text=True)
        print(json.dumps(hook_ran))
        """,
        listener4.port,
    )
    assert result == "denied executed\n"


# The stand-in's mode: step, errno and cause that the caller sees.
FAILURES = {
    "refuse": ("sandbox-init", "EPERM", "already-sandboxed"),
    "text": ("sandbox-init", "EPERM", "already-sandboxed"),
    "silent": ("sandbox-init", "EINVAL", "refused"),
    "lie": ("verify-net", "EEXIST", "refused"),
    "hang": ("sandbox-init", "ETIMEDOUT", "sandbox-timeout"),
    "die": ("channel", "EPIPE", "refused"),
}


@pytest.mark.parametrize("when", ["at the probe", "later"])
@pytest.mark.parametrize("hook", ["none", "preexec_fn"])
@pytest.mark.parametrize("mode", FAILURES)
def test_failed_isolation_runs_nothing(mode: str, hook: str, when: str, macos, marker) -> None:
    result = macos(
        """
        mode, hook, when, marker = sys.argv[1:]
        options = {"preexec_fn": lambda: open(marker, "w")} if hook == "preexec_fn" else {}
        if when == "later":
            netless.run(["true"], check=True)
        _native.TIME_LIMIT = 300
        for plan in _native._cache.plans.values():
            plan.c.time_limit = 300
        before = snapshot()
        os.environ["SEATBELT"] = mode
        try:
            netless.run(["/bin/sh", "-c", 'echo ran > "$0"', marker], **options)
        except NetworkIsolationUnavailable as error:
            found = [error.step, errno.errorcode[error.errno], error.cause, str(error)]
        print(json.dumps([found, before == snapshot()]))
        """,
        *(mode, hook, when, marker.path),
    )
    (*found, text), is_unchanged = result
    assert tuple(found) == FAILURES[mode]
    assert ("the stand-in refuses" in text) == (mode == "refuse")
    assert is_unchanged
    assert not marker.written()


def test_marker_is_written_where_nothing_fails(macos, marker) -> None:
    """The control of the test above."""
    assert macos(f"print(netless.call({marker.command!r}))") == 0
    assert marker.written()


def test_nested_sandbox_is_refused(macos, marker) -> None:
    result = macos(
        """
        inner = '''
        import netless
        try:
            netless.run(["touch", "MARKER"])
        except netless.NetworkIsolationUnavailable as error:
            print(error.cause)
        '''.replace("MARKER", sys.argv[1]).replace("\\n        ", "\\n")
        print(json.dumps(netless.check_output([sys.executable, "-c", inner], text=True)))
        """,
        marker.path,
    )
    assert result == "already-sandboxed\n"
    assert not marker.written()


def test_time_limit_covers_the_isolation_alone(macos) -> None:
    """preexec_fn may take longer than sandbox_init."""
    result = macos(
        """
        _native.TIME_LIMIT = 2000
        hook = lambda: time.sleep(3)
        print(json.dumps(netless.call(["true"], preexec_fn=hook)))
        """
    )
    assert result == 0


def test_ordinary_errors_are_those_of_subprocess(macos) -> None:
    result = macos(
        """
        found = []
        for options in ({}, {"preexec_fn": lambda: None}):
            for command, more in ((["/no/such"], {}), (["true"], {"cwd": "/no/such"})):
                try:
                    netless.run(command, **options, **more)
                except FileNotFoundError as error:
                    found.append(error.filename)
        print(json.dumps(found))
        """
    )
    assert result == ["/no/such"] * 4


REFUSED = {
    "tcp": ("socket.socket()", {}),
    "udp6": ("socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)", {}),
    "netlink": ("socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)", {}),
    "unix, not connected": ("socket.socket(socket.AF_UNIX)", {"unix_sockets": False}),
    "unix datagrams": (
        "socket.socketpair(type=socket.SOCK_DGRAM)[0]",
        {"unix_sockets": False},
    ),
    "device": ("open('/dev/full')", {}),
}
ALLOWED = {
    "unix": ("socket.socket(socket.AF_UNIX)", {}),
    "connected unix stream": ("pair[0]", {"unix_sockets": False}),
    "vouched for": ("socket.socket()", {"inherit_sockets": True}),
    "file": ("open('/etc/passwd')", {}),
    "null": ("open('/dev/null')", {}),
    "terminal": ("os.openpty()[1]", {}),
    "pipe": ("os.pipe()[0]", {}),
}


@pytest.mark.parametrize("close_fds", [True, False])
@pytest.mark.parametrize("kind", [*REFUSED, *ALLOWED])
def test_inherited_descriptor(kind: str, close_fds: bool, macos) -> None:
    make, isolation = {**REFUSED, **ALLOWED}[kind]
    result = macos(
        f"""
        pair = socket.socketpair()
        descriptor = {make}
        fd = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        os.set_inheritable(fd, True)
        options = {{"pass_fds": [fd]}} if {close_fds} else {{"close_fds": False}}
        try:
            command = ["test", "-e", f"/proc/self/fd/{{fd}}"]
            found = netless.call(command, isolation=Isolation(**{isolation}), **options)
        except netless.InheritedSocketError as error:
            found = error.fd == fd
        print(json.dumps([found]))
        """
    )
    assert result == [True if kind in REFUSED else 0]


def test_other_descriptors_are_closed(macos) -> None:
    result = macos(
        """
        fd = os.open("/etc/passwd", os.O_RDONLY)
        os.set_inheritable(fd, True)
        code = "import os; print(*sorted(map(int, os.listdir('/proc/self/fd'))))"
        print(json.dumps(netless.check_output([sys.executable, "-c", code], text=True)))
        """
    )
    assert result.split()[:4] == ["0", "1", "2", "3"]  # 3: the one that lists them
    assert len(result.split()) == 4


@pytest.mark.parametrize("way", ["netless run", "netless-exec", "without the launcher"])
def test_command_line_isolates_and_executes(way: str, package, listener4, marker) -> None:
    environment = {**os.environ, "PYTHONPATH": str(package)}
    command = [sys.executable, "-c", CONNECT, str(listener4.port)]
    assert subprocess.call(command) == 0
    netless_run = [sys.executable, "-m", "netless", "run", "--"]
    if way == "netless-exec":
        netless_run = [str(package / "bin" / "netless-exec"), "--"]
    elif way == "without the launcher":
        hide = "import sys, netless._launcher as l; l.find = lambda: None; import netless.cli as c;"
        netless_run = [sys.executable, "-c", f"{hide} sys.exit(c.main())", "run", "--"]
    inside = subprocess.run([*netless_run, *command], env=environment, capture_output=True)
    assert inside.returncode == 1
    assert b"PermissionError" in inside.stderr
    environment["SEATBELT"] = "refuse"
    refused = subprocess.run(
        [*netless_run, *marker.command], env=environment, capture_output=True, text=True
    )
    assert refused.returncode == 125
    assert "already-sandboxed" in refused.stderr
    assert not marker.written()


def test_threads_do_not_hand_each_other_their_channels(macos) -> None:
    """A child that lives on with another launch's channel would hold that launch up."""
    result = macos(
        """
        sleepers, ends = [], []
        def sleep():
            for _ in range(30):
                sleepers.append(netless.Popen(["sleep", "60"], close_fds=False))
        def launch():
            for _ in range(100):
                netless.call(["true"])
            ends.append(all(sleeper.poll() is None for sleeper in sleepers))
        threads = [threading.Thread(target=target) for target in (sleep, launch, launch)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()
        print(json.dumps([*ends, len(sleepers)]))
        """
    )
    assert result == [True, True, 30]


def test_another_mechanism_is_not_to_be_had(macos) -> None:
    result = macos(
        """
        causes = [netless.probe(Isolation(mechanism=name)).error.cause
                  for name in ("namespace", "filter")]
        for option in ("loopback", "map_root"):
            try:
                netless.probe(Isolation(**{option: True}))
            except ValueError as error:
                causes.append("namespace" in str(error))
        print(json.dumps(causes))
        """
    )
    assert result == ["mechanism-unavailable", "mechanism-unavailable", True, True]


# ---- macOS itself ----

on_macos = pytest.mark.skipif(sys.platform != "darwin", reason="needs macOS")


@pytest.mark.macos
@on_macos
@pytest.mark.parametrize("unix_sockets", [True, False])
def test_macos_blocks_tcp(unix_sockets: bool, listener4) -> None:
    command = [sys.executable, "-c", CONNECT, str(listener4.port)]
    isolation = Isolation(unix_sockets=unix_sockets)
    assert subprocess.call(command) == 0
    done = netless.run(command, isolation=isolation, capture_output=True, text=True)
    assert done.returncode == 1
    assert "Operation not permitted" in done.stderr


@pytest.mark.macos
@on_macos
@pytest.mark.parametrize("unix_sockets", [True, False])
def test_macos_blocks_unix_sockets_where_asked(unix_sockets: bool, tmp_path: Path) -> None:
    code = "import socket, sys; socket.socket(socket.AF_UNIX).connect('s')"
    command = [sys.executable, "-c", code]
    with socket.socket(socket.AF_UNIX) as listener:
        before = os.getcwd()
        os.chdir(tmp_path)  # the path must be short
        listener.bind("s")
        os.chdir(before)
        listener.listen()
        assert subprocess.call(command, cwd=tmp_path) == 0
        isolation = Isolation(unix_sockets=unix_sockets)
        status = netless.call(command, cwd=tmp_path, isolation=isolation, stderr=netless.DEVNULL)
    assert status == (0 if unix_sockets else 1)


@pytest.mark.macos
@on_macos
def test_macos_refuses_an_inherited_socket() -> None:
    with socket.socket() as inherited, pytest.raises(netless.InheritedSocketError):
        netless.call(["true"], pass_fds=[inherited.fileno()])


@pytest.mark.macos
@on_macos
def test_macos_refuses_a_nested_sandbox(marker) -> None:
    code = (
        "import netless, sys\n"
        "try:\n"
        "    netless.run(['touch', sys.argv[1]])\n"
        "except netless.NetworkIsolationUnavailable as error:\n"
        "    print(error.cause)\n"
    )
    command = [sys.executable, "-c", code, str(marker.path)]
    assert netless.check_output(command, text=True) == "already-sandboxed\n"
    assert not marker.written()
    assert subprocess.call(command) == 0  # the control
    assert marker.written()


@pytest.mark.macos
@on_macos
def test_macos_probe_tells_what_holds() -> None:
    found = netless.require()
    assert found.mechanism == "seatbelt"
    assert found.guarantees == {"ip", "inherited-sockets"}
