"""netless-exec: the same seal for shells, make, node, asyncio; and whatever fails, nothing runs."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import netless
from netless import Isolation, _launcher, _native
from support import (
    PATIENCE,
    ByLauncher,
    Listener,
    build_launcher,
    launcher,
    need,
    need_module,
    need_uvloop,
)

pytestmark = [pytest.mark.isolated, pytest.mark.native]
IS_ROOT = os.geteuid() == 0
PIPE = subprocess.PIPE
CONNECT = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 20)"


def execute(*arguments: str, **options) -> subprocess.CompletedProcess:
    options = {"capture_output": True, "text": True, "timeout": PATIENCE, **options}
    return subprocess.run([launcher(), *arguments], **options)


def report_of(*arguments: str, prefix: tuple[str, ...] = (), **options):
    """As execute, with what came through --fd-report."""
    read, write = os.pipe()
    command = [*prefix, launcher(), "--fd-report", str(write), *arguments]
    options = {"capture_output": True, "text": True, "timeout": PATIENCE, **options}
    passed = [write, *options.pop("pass_fds", ())]
    with open(read) as report:
        try:
            done = subprocess.run(command, pass_fds=passed, **options)
        finally:
            os.close(write)
        return done, report.read()


# ---- started by those who are not netless ----


def by_bash(command: list[str], tmp_path: Path) -> int:
    return subprocess.call(["bash", "-c", shlex.join(command)], stderr=PIPE)


def by_make(command: list[str], tmp_path: Path) -> int:
    file = tmp_path / "Makefile"
    file.write_text("all:\n\t@" + shlex.join(command).replace("$", "$$") + "\n")
    status = subprocess.call([need("make"), "-s", "-f", str(file)], stderr=PIPE)
    assert status in (0, 2)
    return status


def by_node(command: list[str], tmp_path: Path) -> int:
    source = (
        "const [program, ...rest] = process.argv.slice(1);"
        "require('child_process').spawn(program, rest).on('exit', code => process.exit(code));"
    )
    return subprocess.call([need("node"), "-e", source, "--", *command])


async def _spawn(command: list[str]) -> int:
    process = await asyncio.create_subprocess_exec(*command, stderr=PIPE)
    await process.communicate()
    return process.returncode


def by_asyncio(command: list[str], tmp_path: Path) -> int:
    return asyncio.run(_spawn(command))


def by_uvloop(command: list[str], tmp_path: Path) -> int:
    need_uvloop()
    source = (
        "import asyncio, sys, uvloop\n"
        "async def main():\n"
        "    process = await asyncio.create_subprocess_exec(*sys.argv[1:])\n"
        "    return await process.wait()\n"
        "loop = uvloop.new_event_loop()\n"
        "sys.exit(loop.run_until_complete(main()))\n"
    )
    return subprocess.call([sys.executable, "-c", source, *command], stderr=PIPE)


def by_trio(command: list[str], tmp_path: Path) -> int:
    need_module("trio")
    source = (
        "import sys, trio\n"
        "async def main():\n"
        "    return (await trio.run_process(sys.argv[1:], check=False)).returncode\n"
        "sys.exit(trio.run(main))\n"
    )
    return subprocess.call([sys.executable, "-c", source, *command], stderr=PIPE)


STARTERS = [by_bash, by_make, by_node, by_asyncio, by_uvloop, by_trio]


@pytest.mark.parametrize("start", STARTERS)
def test_blocks_when_started(start, listener4: Listener, tmp_path: Path) -> None:
    command = [sys.executable, "-c", CONNECT, str(listener4.port)]
    before = listener4.reached
    assert start(command, tmp_path) == 0, "the control did not reach the listener"
    assert listener4.wait_until_reached(before)
    before = listener4.reached
    assert start([launcher(), "--", *command], tmp_path) != 0
    assert listener4.reached == before
    assert start([launcher(), "--", "true"], tmp_path) == 0


def test_loopback_is_for_this_program_alone(listener4: Listener) -> None:
    serve = (
        "import socket; s = socket.create_server(('127.0.0.1', 0));"
        "socket.create_connection(s.getsockname()).close(); print('talked')"
    )
    assert execute("--loopback", "--", sys.executable, "-c", serve).stdout == "talked\n"
    before = listener4.reached
    outside = execute("--loopback", "--", sys.executable, "-c", CONNECT, str(listener4.port))
    assert outside.returncode != 0
    assert listener4.reached == before


@pytest.mark.parametrize("protected", [False, True])
def test_two_programs_share_no_abstract_socket(protected: bool, programs) -> None:
    name = f"netless-exec-{os.getpid()}-{protected}"
    listen = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind('\\0' + sys.argv[1]);"
        "s.listen(); print('ready', flush=True); sys.stdin.read()"
    )
    wrap = [launcher(), "--"] if protected else []
    with subprocess.Popen(
        [*wrap, sys.executable, "-c", listen, name], stdin=PIPE, stdout=PIPE
    ) as server:
        assert server.stdout.readline() == b"ready\n"
        reach = [*wrap, programs("holes.c", "-static"), "unix", "@" + name]
        assert subprocess.call(reach, stderr=PIPE) == int(protected)
        server.communicate(timeout=PATIENCE)


@pytest.mark.parametrize("way", ["ptrace", "writev", "mem", "getfd"])
@pytest.mark.parametrize("protected", [False, True])
def test_two_programs_do_not_reach_each_others_memory(way: str, protected: bool, programs) -> None:
    wrap = [launcher(), "--"] if protected else []
    with subprocess.Popen([*wrap, "cat"], stdin=PIPE, stdout=PIPE) as victim:
        victim.stdin.write(b"x\n")
        victim.stdin.flush()
        assert victim.stdout.readline() == b"x\n"
        reach = [*wrap, programs("reach.c", "-static"), way, str(victim.pid)]
        assert subprocess.call(reach, stderr=PIPE) == int(protected)
        victim.kill()


# ---- the program gets what the caller gave ----


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["/bin/sh", "-c", "exit 42"], 42),
        (["/bin/sh", "-c", "kill -TERM $$"], -signal.SIGTERM),
        (["/no/such/program"], 127),
        (["no-such-program-anywhere"], 127),
        (["/etc/passwd/x"], 127),
        (["/etc/passwd"], 126),
        (["/"], 126),
    ],
)
def test_exit_statuses(command: list[str], status: int) -> None:
    assert execute("--", *command).returncode == status


@pytest.mark.parametrize(
    "arguments",
    [
        *([], ["--"], ["--no-such-flag", "true"], ["--mechanism=x", "true"], ["--fallback"]),
        *(["--fallback", "wrapper", "true"], ["--loopback", "--fallback", "filter", "true"]),
        *(["--fd-report", "2", "true"], ["--fd-report", "999", "true"], ["-x", "true"]),
        ["--loopback=1", "true"],
    ],
)
def test_usage_errors_are_125(arguments: list[str]) -> None:
    done = execute(*arguments)
    assert (done.returncode, done.stdout) == (125, "")
    assert re.match(r"netless-exec: error: .+\nnetless-exec: hint: .*--help\n\Z", done.stderr)


def test_version_and_help() -> None:
    assert execute("--version").stdout == f"netless-exec {netless.__version__}\n"
    help_text = execute("--help").stdout
    for option in _launcher.command("", [], Isolation())[1:-1]:
        assert option in help_text


@pytest.mark.parametrize(
    ("path", "name", "status"),
    [("", "here", 0), (":/bin", "here", 0), ("/nowhere:{}", "here", 0), ("/nowhere", "here", 127)],
)
def test_finds_programs_as_execvpe_does(path: str, name: str, status: int, tmp_path: Path) -> None:
    program = tmp_path / name
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    env = {"PATH": path.format(tmp_path)}
    assert execute("--", name, env=env, cwd=tmp_path).returncode == status


def test_without_a_path_the_default_one_is_searched() -> None:
    assert execute("--", "true", env={}).returncode == 0


def test_a_file_that_may_not_be_executed_wins_over_one_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("")
    assert execute("--", "here", env={"PATH": f"{tmp_path}:/nowhere"}).returncode == 126


def test_environment_arguments_and_identity_are_unchanged(tmp_path: Path) -> None:
    env = {"A": "b", "EMPTY": "", "LONG": "x" * 100_000}
    shown = execute("--", "/usr/bin/env", "-0", env=env).stdout
    assert dict(part.split("=", 1) for part in shown.split("\0")[:-1]) == env
    arguments = ["", "a b", "--loopback", "é", "x" * 50_000]
    source = "import sys; sys.stdout.write('\\0'.join(sys.argv[1:]))"
    assert execute("--", sys.executable, "-c", source, *arguments).stdout.split("\0") == arguments
    assert execute("--", "sh", "-c", "id -u; id -g; umask; pwd", cwd=tmp_path).stdout == (
        subprocess.check_output(["sh", "-c", "id -u; id -g; umask; pwd"], cwd=tmp_path, text=True)
    )
    assert execute("--map-root", "--", "id", "-u").stdout == "0\n"


def test_pid_parent_and_children_are_the_programs_own() -> None:
    script = 'read none < "/proc/$$/task/$$/children"; echo "$$ $PPID [$none]"'
    with subprocess.Popen([launcher(), "--", "sh", "-c", script], stdout=PIPE, text=True) as done:
        # No helper is left, not even a dead one.
        assert done.stdout.read() == f"{done.pid} {os.getpid()} []\n"


@pytest.mark.parametrize("restore", [True, False])
def test_signal_mask_and_dispositions_are_the_callers(restore: bool) -> None:
    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2, signal.SIGTERM})
        for number in (signal.SIGUSR1, signal.SIGCHLD):
            signal.signal(number, signal.SIG_IGN)

    show = ["grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status"]
    options = {"preexec_fn": prepare, "restore_signals": restore, "text": True}
    assert execute("--", *show, **options).stdout == subprocess.check_output(show, **options)


def test_standard_streams_that_are_closed_stay_closed() -> None:
    shell = ["/bin/sh", "-c", 'exec "$@" <&- 2>&-', "sh"]
    show = ["sh", "-c", "[ ! -e /proc/$$/fd/0 ] && [ ! -e /proc/$$/fd/2 ]"]
    assert subprocess.call([*shell, *show]) == 0
    assert subprocess.call([*shell, launcher(), "--", *show]) == 0


# ---- descriptors ----


def test_files_are_inherited_and_sockets_refused(listener4: Listener, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        link = f"/proc/self/fd/{file.fileno()}"
        shown = execute("--", "readlink", link, pass_fds=[file.fileno()])
    assert shown.stdout.strip() == str(tmp_path / "file")
    fd = listener4.udp.fileno()
    exists = ["test", "-e", f"/proc/self/fd/{fd}"]
    done, line = report_of("--", *exists, pass_fds=[fd])
    assert (done.returncode, line) == (
        125,
        f"descriptors 1 inherited-socket {fd} {int(socket.AF_INET)}\n",
    )
    assert f"descriptor {fd} is a socket of family AF_INET" in done.stderr
    assert "netless-exec: hint: close it" in done.stderr
    assert execute("--inherit-sockets", "--", *exists, pass_fds=[fd]).returncode == 0
    assert execute("--", "true", stdin=listener4.udp).returncode == 125


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/proc/self/ns/net", "namespace"), ("/proc/self", "proc"), ("/dev/full", None)],
)
def test_handles_that_lead_outside_are_refused(path: str, kind: str | None) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        done, line = report_of("--", "true", pass_fds=[fd])
    finally:
        os.close(fd)
    expected = (0, "") if kind is None else (125, f"descriptors 1 inherited-{kind} {fd} -1\n")
    assert (done.returncode, line) == expected


def test_a_socket_that_execve_closes_is_no_matter(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, socket, sys\n"
        "kept = socket.socket()\n"
        "os.execv(sys.argv[1], [*sys.argv[1:], '--', 'true'])\n"
    )
    assert subprocess.call([sys.executable, str(script), launcher()]) == 0


# ---- --fd-report ----


def test_report_ends_without_a_word_when_the_program_runs() -> None:
    """And before the program ends: the descriptor is not inherited."""
    read, write = os.pipe()
    with subprocess.Popen(
        [launcher(), "--fd-report", str(write), "--", "cat"], stdin=PIPE, pass_fds=[write]
    ) as process:
        os.close(write)
        with open(read) as report:
            assert report.read() == ""
        assert process.poll() is None
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--", "/no/such/program"], f"exec {errno.ENOENT} -\n"),
        (["--", "/etc/passwd"], f"exec {errno.EACCES} -\n"),
        (["--mechanism", "seatbelt", "--", "true"], "- 0 mechanism-unavailable\n"),
        (["--mechanism", "x", "--", "true"], "- 0 usage\n"),
    ],
)
def test_report_says_what_failed(arguments: list[str], line: str) -> None:
    assert report_of(*arguments)[1] == line


def test_a_reader_that_is_gone_changes_nothing() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [launcher(), "--fd-report", str(write), "--", "/no/such/program"],
            pass_fds=[write],
            stderr=write,
        )
    finally:
        os.close(write)
    assert done.returncode == 127


# ---- fail closed: each step made to fail, nothing runs ----

# The launcher's first clone makes the namespaces; where that fails, a process of its own does.
# prctl of the seal: before it, root's launcher asks for its powers, capability by capability.
FIRST = 9 + int(Path("/proc/sys/kernel/cap_last_cap").read_text()) if IS_ROOT else 3
BY_UNSHARE = "clone:error=EPERM:when=1"
STEPS = [
    ("clone", "clone:error=EPERM", "EPERM", []),
    ("channel", f"{BY_UNSHARE} socketpair:error=EIO", "EIO", []),
    ("unshare", f"{BY_UNSHARE} unshare:error=EPERM", "EPERM", []),
    ("proc", "readlink:error=ENOENT", "ENOENT", []),
    ("uid-map", "write:error=EIO:when=2..3", "EIO", []),  # of two attempts, each with a maker
    ("open-namespace", "statx:error=EIO", "EIO", []),
    ("setns-user", "setns:error=EIO:when=1", "EIO", []),
    ("setns-net", "setns:error=EIO:when=2", "EIO", []),
    ("verify-net", "setns:retval=0", "EEXIST", []),
    ("loopback", "ioctl:error=EIO:when=5", "EIO", ["--loopback"]),
    ("loopback", "ioctl:error=EIO:when=6", "EIO", ["--loopback"]),
    ("bounding-set" if IS_ROOT else "no-new-privs", f"prctl:error=EIO:when={FIRST}", "EIO", []),
    ("landlock", "landlock_restrict_self:error=EIO", "EIO", []),
    ("seccomp", "seccomp:error=EIO", "EIO", []),
    ("seccomp", "seccomp:error=EPERM", "EPERM", ["--no-unix-sockets"]),
    ("exec", "execve:error=EIO", "EIO", []),
]


@pytest.mark.parametrize(("step", "injection", "name", "options"), STEPS)
def test_failed_step_runs_nothing(
    step: str, injection: str, name: str, options: list[str], marker
) -> None:
    strace = [need("strace"), "-f", "-qq", "-o", "/dev/null"]
    for rule in injection.split():
        strace += ["-e", f"inject={rule}"]
    done, line = report_of(*options, "--", *marker.command, prefix=tuple(strace))
    assert not marker.written()
    assert line.split()[:2] == [step, str(getattr(errno, name))], done.stderr
    assert done.returncode == (126 if step == "exec" else 125)
    assert "netless-exec: error: " in done.stderr
    if step != "exec":
        assert f"'{step}' failed with {name} (" in done.stderr


def test_the_marker_is_written_where_nothing_fails(marker) -> None:
    """The control of the test above."""
    strace = (need("strace"), "-f", "-qq", "-o", "/dev/null")
    done, line = report_of("--", *marker.command, prefix=strace)
    assert (done.returncode, line) == (0, "")
    assert marker.written()


def test_descriptors_that_cannot_be_listed_run_nothing(marker) -> None:
    strace = [need("strace"), "-qq", "-o", "/dev/null", "-e", "inject=getdents64:error=EIO"]
    done, line = report_of("--", *marker.command, prefix=tuple(strace))
    assert (done.returncode, marker.written()) == (125, False)
    assert line.split()[:3] == ["descriptors", str(errno.EIO), "inherited-unknown"]


@pytest.mark.parametrize("limit", range(3, 9))
def test_without_descriptors_it_runs_isolated_or_not_at_all(limit: int, marker) -> None:
    inner = 'readlink /proc/self/ns/net > "$0"'
    script = f'ulimit -n {limit}; exec "$@"'
    command = [launcher(), "--", "sh", "-c", inner, str(marker.path)]
    status = subprocess.call(["sh", "-c", script, "sh", *command], stderr=PIPE)
    if marker.written():
        assert marker.path.read_text().strip() != os.readlink("/proc/self/ns/net")
    else:
        assert status != 0


# ---- what a build gives ----


def test_size_and_dependencies() -> None:
    content = Path(launcher()).read_bytes()
    assert len(content) < 100_000
    if b"GLIBC_" not in content:  # by zig: static, with no interpreter of its own
        assert b"ld-musl" not in content
        assert b"ld-linux" not in content


def test_sanitizers_find_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETLESS_SANITIZE", "1")
    monkeypatch.setenv("NETLESS_WERROR", "1")
    output = tmp_path / "netless-exec"
    build_launcher().link(output, [need("gcc")])
    clean = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "LD_PRELOAD": ""}
    for arguments, status in (
        (["--loopback", "--", "true"], 0),
        (["--no-unix-sockets", "--fallback", "filter", "--", "true"], 0),
        (["--", "no-such-program"], 127),
        (["--", "/etc/passwd"], 126),
        (["--mechanism", "filter", "--", "true"], 125 if IS_ROOT else 0),
        (["--nothing"], 125),
    ):
        done = subprocess.run([output, *arguments], env=clean, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        assert "Sanitizer" not in done.stderr
        assert "runtime error" not in done.stderr


@pytest.mark.build
@pytest.mark.parametrize(
    ("target", "system"),
    [
        ("aarch64-macos.11.0", "darwin"),
        ("x86_64-macos.11.0", "darwin"),
        ("aarch64-linux-musl", "linux"),
        ("x86_64-linux-musl", "linux"),
        ("x86_64-freebsd", "freebsd"),
    ],
)
def test_links_for(target: str, system: str, tmp_path: Path, monkeypatch) -> None:
    need_module("ziglang")
    monkeypatch.setenv("NETLESS_WERROR", "1")
    output = tmp_path / "netless-exec"
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", target]
    static = ["-static", "-ffunction-sections", "-Wl,--gc-sections"] if "musl" in target else []
    build_launcher().link(output, [*zig, *static], system)
    assert output.stat().st_size < 100_000 or "musl" not in target


def test_every_step_has_a_name_and_the_version_is_the_packages() -> None:
    module = build_launcher()
    for name, known in (("step", _native.STEPS), ("kind", _native.KINDS)):
        assert dict(enumerate(module._enum(name))) == known
    assert module.version() == netless.__version__


# ---- the Python side ----


def test_wrapper_command_prefers_it() -> None:
    asked = Isolation(loopback=True, private=True, unix_sockets=False, map_root=True)
    flags = ["--loopback", "--private", "--no-unix-sockets", "--map-root"]
    assert netless.wrapper_command(["a", Path("b")], asked) == [launcher(), *flags, "--", "a", "b"]
    fallback = Isolation(inherit_sockets=True, mechanism="namespace", fallback="filter")
    assert netless.wrapper_command(["a"], fallback) == [
        *(launcher(), "--inherit-sockets", "--mechanism", "namespace", "--fallback", "filter"),
        *("--", "a"),
    ]
    external = netless.wrapper_command(["a"], native=False)
    assert external[0].endswith("/unshare")
    assert netless.wrapper_command(["a"], Isolation(mechanism="wrapper")) == external


def test_a_record_without_it_means_that_there_is_none(tmp_path: Path, script) -> None:
    """A copy of the package: the launcher of another installation is not taken for its own."""
    import shutil

    package = Path(netless.__file__).parent
    shutil.copytree(package, tmp_path / "netless", ignore=shutil.ignore_patterns("__pycache__"))
    record = tmp_path / f"netless-{netless.__version__}.dist-info" / "RECORD"
    record.parent.mkdir()
    beside = tmp_path / "bin" / "netless-exec"
    beside.parent.mkdir()
    beside.write_text("#!/bin/sh\n")
    beside.chmod(0o755)
    source = "from netless import _launcher; print(_launcher.find())"
    for text, expected in (("", None), ("bin/netless-exec,sha256=x,1\n", str(beside))):
        record.write_text("netless/__init__.py,,\n" + text)
        done = script(source, env={**os.environ, "PYTHONPATH": str(tmp_path)})
        assert done.stdout == f"{expected}\n", done.stderr


def test_a_caller_needs_no_stderr_to_tell_failures_apart() -> None:
    """What tests/support.py makes of --fd-report are netless's own exceptions."""
    module = ByLauncher()
    with pytest.raises(FileNotFoundError):
        module.run(["/no/such/program"], stderr=PIPE)
    with pytest.raises(netless.NetworkIsolationUnavailable) as caught:
        module.run(["true"], isolation=Isolation(mechanism="seatbelt"), stderr=PIPE)
    assert caught.value.cause == "mechanism-unavailable"


HOLDERS = """
import os, pathlib, subprocess, sys, time

# Held up at the first write of a map, with its holder waiting in the new namespace.
strace = ["strace", "-qq", "-o", "/dev/null", "-e", "inject=write:delay_enter=20000000:when=1"]
process = subprocess.Popen([*strace, sys.argv[1], "--", "true"])

def children(pid):
    try:
        found = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except (FileNotFoundError, ProcessLookupError):  # one that strace only tries things with
        return []
    return [int(pid) for pid in found.split()]

end = time.monotonic() + 20
while True:
    assert time.monotonic() < end
    launcher = children(process.pid)
    holder = children(launcher[0]) if launcher else []
    if holder:
        break
os.kill(launcher[0], 9)
process.wait()
gone = lambda: not os.path.exists(f"/proc/{holder[0]}") or "Z" in pathlib.Path(
    f"/proc/{holder[0]}/stat").read_text().rsplit(")", 1)[1]
while not gone() and time.monotonic() < end:
    time.sleep(0.05)
print(gone())
"""


def test_a_launcher_that_is_killed_leaves_no_holder(script) -> None:
    need("strace")
    done = script(HOLDERS, launcher())
    assert done.stdout == "True\n", done.stderr
