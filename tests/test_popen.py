"""Popen is subprocess.Popen: keywords, identity, errors, and a parent left as it was."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest

import netless
from netless import PIPE, Isolation
from support import PATIENCE, WITHOUT_EXTENSION, victim

pytestmark = pytest.mark.isolated
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="what only a root caller may do")
needs_user = pytest.mark.skipif(os.geteuid() == 0, reason="what differs for other callers")


def output(*command: str, **options) -> str:
    options = {"text": True, "timeout": PATIENCE, **options}
    return netless.check_output(list(command), **options).strip()


def test_every_public_posix_name_of_subprocess_is_there() -> None:
    missing = [name for name in subprocess.__all__ if not hasattr(netless, name)]
    assert not missing
    for name in ("PIPE", "STDOUT", "DEVNULL", "CompletedProcess", "CalledProcessError"):
        assert getattr(netless, name) is getattr(subprocess, name)


@pytest.mark.native
def test_is_a_real_subclass_and_tells_its_isolation() -> None:
    isolation = Isolation(private=True)
    with netless.Popen(["true"], isolation=isolation) as process:
        assert isinstance(process, subprocess.Popen)
        assert process.isolation is isolation
        assert process.mechanism == "namespace"
    assert process.returncode == 0


def test_pid_is_the_programs_own() -> None:
    with netless.Popen(["/bin/sh", "-c", "echo $$"], stdout=PIPE, text=True) as process:
        assert int(process.stdout.read()) == process.pid


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1])
def test_signals_reach_the_program_directly(number: int) -> None:
    with netless.Popen(["sleep", "60"]) as process:
        process.send_signal(number)
        assert process.wait(PATIENCE) == -number


@pytest.mark.parametrize("flag", ["-u", "-g"])
def test_identity_inside_equals_outside(flag: str) -> None:
    assert output("id", flag) == subprocess.check_output(["id", flag], text=True).strip()


def test_map_root_is_root_inside() -> None:
    assert output("id", "-u", isolation=Isolation(map_root=True)) == "0"
    assert output("id", "-g", isolation=Isolation(map_root=True)) == "0"


@pytest.mark.native
def test_archive_with_foreign_owners_unpacks(tmp_path: Path) -> None:
    archive = tmp_path / "foreign.tar"
    with tarfile.open(archive, "w") as tar:
        entry = tarfile.TarInfo("file")
        entry.uid = entry.gid = 54321
        tar.addfile(entry)
    assert netless.call(["tar", "-x", "-f", str(archive), "-C", str(tmp_path)]) == 0
    assert (tmp_path / "file").exists()


def test_environment_is_the_process_environment_not_a_copy_of_it(monkeypatch) -> None:
    os.putenv("NETLESS_ONLY_IN_C", "yes")  # not in os.environ
    try:
        assert output("printenv", "NETLESS_ONLY_IN_C") == "yes"
    finally:
        os.unsetenv("NETLESS_ONLY_IN_C")


def test_preexec_fn_may_change_the_environment() -> None:
    seen = output("printenv", "FROM_PREEXEC", preexec_fn=lambda: os.putenv("FROM_PREEXEC", "x"))
    assert seen == "x"


@pytest.mark.parametrize(
    ("arguments", "options", "kind"),
    [
        (["/bin/true", "a\0b"], {}, ValueError),
        (["/bin/true"], {"env": {"a=b": "c"}}, ValueError),
        (["/bin/true"], {"env": {"a": "b\0c"}}, ValueError),
        (["/bin/true"], {"cwd": "a\0b"}, ValueError),
        (["/bin/true"], {"cwd": "/no/such/directory"}, FileNotFoundError),
        (["/etc/passwd"], {}, PermissionError),
        ([3], {}, TypeError),
        (["/bin/true"], {"pass_fds": [-1]}, ValueError),
        (["/bin/true"], {"pass_fds": [999]}, OSError),
        ([], {}, IndexError),
    ],
)
def test_errors_are_those_of_subprocess(arguments, options: dict, kind: type[Exception]) -> None:
    def attempt(module):
        with pytest.raises(kind) as caught:
            module.Popen(arguments, **options)
        return caught.value

    ours, theirs = attempt(netless), attempt(subprocess)
    assert type(ours) is type(theirs)
    if isinstance(ours, OSError):
        assert ours.errno == theirs.errno
        assert ours.filename == theirs.filename


def test_pass_fds_reach_the_child_and_others_do_not(tmp_path: Path) -> None:
    with (tmp_path / "a").open("w") as wanted, (tmp_path / "b").open("w") as unwanted:
        os.set_inheritable(unwanted.fileno(), True)
        listed = output("ls", "-1", "/proc/self/fd", pass_fds=[wanted.fileno()]).split()
        assert str(wanted.fileno()) in listed
        # 0, 1, 2, the one that was passed, and the directory that ls reads
        assert len(listed) == 5


def test_close_fds_false_passes_inheritable_files(tmp_path: Path) -> None:
    with (tmp_path / "a").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        shown = output("readlink", f"/proc/self/fd/{file.fileno()}", close_fds=False)
        assert shown == str(tmp_path / "a")


def test_kept_namespace_descriptors_are_not_inherited() -> None:
    shown = output("ls", "-l", "/proc/self/fd", close_fds=False)
    assert "net:[" not in shown
    assert "user:[" not in shown


def test_run_feeds_input_and_times_out() -> None:
    assert netless.run(["cat"], input=b"x", stdout=PIPE).stdout == b"x"
    with pytest.raises(netless.TimeoutExpired):
        netless.run(["sleep", "60"], timeout=0.1)


def test_check_functions_and_shell_helpers() -> None:
    with pytest.raises(netless.CalledProcessError):
        netless.check_call(["false"])
    with pytest.raises(netless.CalledProcessError):
        netless.run(["false"], check=True)
    assert netless.getoutput("echo a; echo b") == "a\nb"
    assert netless.getstatusoutput("exit 3", isolation=Isolation(private=True)) == (3, "")
    assert netless.check_output(["cat"], input=None) == b""
    with pytest.raises(ValueError, match="stdout"):
        netless.check_output(["true"], stdout=PIPE)


# ---- a root caller's child ----


@pytest.mark.native
@needs_root
def test_root_keeps_user_group_and_extra_groups() -> None:
    command = ["/bin/sh", "-c", "id -u; id -g; id -G"]
    options = {"user": 65534, "group": 12, "extra_groups": [13, 14], "text": True}
    assert netless.check_output(command, **options) == subprocess.check_output(command, **options)


@pytest.mark.native
@needs_root
def test_root_reads_and_gives_away_other_users_files(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    os.chown(secret, 12345, 12345)
    secret.chmod(0o600)
    assert output("cat", str(secret)) == "x"
    netless.check_call(["chown", "23456", str(secret)])
    assert secret.stat().st_uid == 23456


@needs_root
@pytest.mark.parametrize("way", ["setns", "pidfd-setns", "ptrace", "writev", "mem", "getfd"])
def test_root_child_finds_no_way_back(way: str, programs) -> None:
    """The control is root's child in a network namespace without a user namespace."""
    reach = programs("reach.c", "-static")
    with victim(subprocess) as target:
        command = [reach, way, str(target.pid)]
        control = subprocess.run(["unshare", "--net", *command], stderr=PIPE)
        assert control.returncode == 0, control.stderr
        assert netless.run(command, stderr=PIPE).returncode == 1


@needs_root
def test_root_child_cannot_nsenter() -> None:
    with victim(subprocess) as target:
        command = ["nsenter", f"--net=/proc/{target.pid}/ns/net", "true"]
        assert subprocess.call(["unshare", "--net", *command]) == 0
        assert netless.run(command, stderr=PIPE).returncode != 0


@needs_user
@pytest.mark.native
def test_other_users_get_permission_errors_for_foreign_ids() -> None:
    for options in ({"user": 0}, {"group": 0}, {"extra_groups": [0]}):
        with pytest.raises(PermissionError):
            netless.run(["true"], **options)


# ---- loopback ----

TALK = """
import socket, sys, threading
port = int(sys.argv[1])
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    with socket.create_server((address, port), family=family) as server:
        def serve():
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"hello")
        thread = threading.Thread(target=serve)
        thread.start()
        with socket.create_connection((address, port), 20) as client:
            print(client.recv(5).decode())
        thread.join()
sys.stdout.flush()
sys.stdin.read()
"""


def test_loopback_children_talk_inside_all_on_the_same_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    children = [
        netless.Popen(
            [sys.executable, "-c", TALK, str(port)],
            stdin=PIPE,
            stdout=PIPE,
            text=True,
            isolation=Isolation(loopback=True),
        )
        for _ in range(20)
    ]
    for child in children:
        assert [child.stdout.readline(), child.stdout.readline()] == ["hello\n"] * 2
    with pytest.raises(ConnectionRefusedError):  # all of them listen there, none of it is here
        socket.create_connection(("127.0.0.1", port), 5)
    for child in children:
        with child:
            child.stdin.close()
            assert child.wait(PATIENCE) == 0


def test_loopback_of_one_child_is_not_reached_by_another() -> None:
    serve = (
        "import socket, sys; s = socket.create_server(('127.0.0.1', 0));"
        "print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    connect = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5)"
    isolation = Isolation(loopback=True)
    with netless.Popen(
        [sys.executable, "-c", serve], stdin=PIPE, stdout=PIPE, text=True, isolation=isolation
    ) as server:
        port = server.stdout.readline().strip()
        other = [sys.executable, "-c", connect, port]
        assert netless.run(other, stderr=PIPE, isolation=isolation).returncode != 0
        server.communicate(timeout=PATIENCE)


# ---- the parent ----


def parent_state() -> dict[str, object]:
    with open("/proc/self/status") as status:
        lines = [line for line in status if line.startswith(("Sig", "Shd", "Cap", "NoNew", "Secc"))]
    return {
        "status": [line for line in lines if not line.startswith("SigQ")],
        "dumpable": ctypes.CDLL(None).prctl(3, 0, 0, 0, 0),
        "environ": dict(os.environ),
        "cwd": os.getcwd(),
        "umask": _umask(),
        "threads": threading.active_count(),
        "tasks": len(os.listdir("/proc/self/task")),
        "handlers": [signal.getsignal(number) for number in signal.valid_signals()],
        "inheritable": [
            fd for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2 and _is_inheritable(fd)
        ],
        "namespaces": [os.readlink(f"/proc/self/ns/{name}") for name in ("net", "user")],
    }


def _umask() -> int:
    now = os.umask(0o77)
    os.umask(now)
    return now


def _is_inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


SPAWNS = {
    "plain": {},
    "private": {"isolation": Isolation(private=True)},
    "preexec": {"preexec_fn": lambda: None},
    "umask_cwd_session": {"umask": 0o77, "cwd": "/", "start_new_session": True},
    "missing": {"args": ["/no/such/program"]},
}
if os.geteuid() == 0 and not WITHOUT_EXTENSION:
    SPAWNS["user"] = {"user": 65534, "group": 65534, "extra_groups": []}


@pytest.mark.parametrize("way", SPAWNS)
def test_parent_is_left_as_it_was(way: str) -> None:
    netless.run(["true"])  # the shared namespace's two descriptors come to stay
    netless.run(["true"], isolation=Isolation(private=True))
    before = parent_state()
    options = dict(SPAWNS[way])
    command = options.pop("args", ["true"])
    try:
        netless.run(command, **options)
    except FileNotFoundError:
        assert way == "missing"
    assert parent_state() == before
