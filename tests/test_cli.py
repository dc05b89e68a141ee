"""``netless run`` becomes the program; ``netless doctor`` says whether it can."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys

import pytest

from support import PATIENCE, Listener, need

RUN = [sys.executable, "-m", "netless", "run"]
DOCTOR = [sys.executable, "-m", "netless", "doctor"]


def run(*arguments: str, **options) -> subprocess.CompletedProcess:
    options = {"capture_output": True, "text": True, "timeout": PATIENCE, **options}
    return subprocess.run([*RUN, *arguments], **options)


@pytest.mark.isolated
def test_blocks_and_passes_the_status_on(listener4: Listener) -> None:
    command = ["bash", "-c", f"echo x > /dev/tcp/127.0.0.1/{listener4.port} || exit 9"]
    before = listener4.reached
    assert subprocess.call(command) == 0
    assert listener4.wait_until_reached(before)
    before = listener4.reached
    assert run("--", *command).returncode == 9
    assert listener4.reached == before


@pytest.mark.isolated
@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["/bin/sh", "-c", "exit 42"], 42),
        (["/no/such/program"], 127),
        (["no-such-program-anywhere"], 127),
        (["/etc/passwd"], 126),
        (["/"], 126),
    ],
)
def test_exit_statuses(command: list[str], status: int) -> None:
    assert run("--", *command).returncode == status


@pytest.mark.parametrize(
    "arguments", [["--no-such-flag", "--", "true"], [], ["--mechanism=x", "true"]]
)
def test_usage_errors_are_125(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 125
    assert "netless: error: " in done.stderr


@pytest.mark.isolated
def test_death_by_signal_is_the_programs_own() -> None:
    assert run("--", "/bin/sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM
    shell = subprocess.run(
        ["sh", "-c", f"{' '.join(RUN)} -- sh -c 'kill -TERM $$'; echo $?"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert shell.stdout.strip() == str(128 + signal.SIGTERM)


@pytest.mark.isolated
def test_no_parent_lingers_and_the_pid_stays() -> None:
    with subprocess.Popen(
        [*RUN, "--", "/bin/sh", "-c", "echo $$ $PPID"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.read().split() == [str(process.pid), str(os.getpid())]


@pytest.mark.isolated
def test_isolation_flags() -> None:
    assert run("--map-root", "--", "id", "-u").stdout.strip() == "0"
    assert "LOOPBACK,UP" in run("--loopback", "--", need("ip"), "link").stdout
    for flags in ([], ["--private"]):
        network = run(*flags, "--", "readlink", "/proc/self/ns/net").stdout
        assert network.startswith("net:[")
        assert network.strip() != os.readlink("/proc/self/ns/net")


@pytest.mark.isolated
def test_passes_inherited_files_but_no_sockets(tmp_path, listener4: Listener) -> None:
    with (tmp_path / "file").open("w") as file:
        done = run("--", "readlink", f"/proc/self/fd/{file.fileno()}", pass_fds=[file.fileno()])
        assert done.stdout.strip() == str(tmp_path / "file")
    done = run("--", "true", pass_fds=[listener4.udp.fileno()])
    assert done.returncode == 125
    assert f"descriptor {listener4.udp.fileno()}" in done.stderr


def terminal(command: list[str]) -> tuple[int, int]:
    """The command as the foreground job of a terminal: its pid and the terminal's other end."""
    pid, master = pty.fork()
    if pid == 0:
        os.execv(command[0], command)
    return pid, master


def read_until(master: int, text: bytes) -> bytes:
    seen = b""
    while text not in seen:
        seen += os.read(master, 1000)
    return seen


@pytest.mark.isolated
@pytest.mark.parametrize("key", [b"\x03", b"\x1c"])
def test_keys_of_the_terminal_reach_the_program(key: bytes) -> None:
    """Ctrl-C and Ctrl-\\ as if the program had been run directly."""
    inner = "trap 'echo got; exit 7' INT QUIT; echo ready; while :; do sleep 0.05; done"
    pid, master = terminal([*RUN, "--", "/bin/sh", "-c", inner])
    read_until(master, b"ready")
    os.write(master, key)
    read_until(master, b"got")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    os.close(master)


@pytest.mark.isolated
def test_job_control_stops_and_continues_the_program() -> None:
    inner = 'echo ready; read line; echo "line=$line"'
    with subprocess.Popen(
        [*RUN, "--", "/bin/sh", "-c", inner],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=os.setpgrp,  # a job of its own, as a shell makes it
    ) as job:
        assert job.stdout.readline() == b"ready\n"
        os.kill(job.pid, signal.SIGTSTP)
        _, status = os.waitpid(job.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        os.kill(job.pid, signal.SIGCONT)
        assert job.communicate(b"hello\n", timeout=PATIENCE)[0] == b"line=hello\n"
    assert job.returncode == 0


@pytest.mark.isolated
def test_closed_standard_streams_stay_closed() -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" <&- 2>&-', "sh", *RUN, "--", "ls", "/proc/self/fd"],
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0
    assert "2" not in done.stdout.split()[2:]


@pytest.mark.isolated
def test_doctor_says_ready() -> None:
    done = subprocess.run(DOCTOR, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0
    assert "ready (namespace)" in done.stdout


@pytest.mark.isolated
def test_doctor_prints_json_with_a_schema_version() -> None:
    done = subprocess.run([*DOCTOR, "--json"], capture_output=True, text=True, timeout=PATIENCE)
    told = json.loads(done.stdout)
    assert told["schema"] == 2
    assert told["available"] is True
    assert told["mechanism"] == "namespace"
    assert told["error"] is None
    assert "ip" in told["guarantees"]


def test_doctor_says_cause_and_hint_where_it_does_not_work() -> None:
    """In a user namespace of the test's own that allows no network namespaces."""
    inner = 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"'
    limited = [need("unshare"), "--user", "--map-root-user", "--", "sh", "-c", inner, "sh"]
    done = subprocess.run([*limited, *DOCTOR, "--json"], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "cave_sandbox_os_network_isolation_unavailable"
    assert error["cause"] == "network-namespace-limit"
    assert error["step"] == "unshare"
    text = subprocess.run([*limited, *DOCTOR], capture_output=True, text=True)
    assert text.returncode == 1
    assert "hint: raise it" in text.stdout
    refused = subprocess.run([*limited, *RUN, "--", "echo", "ran"], capture_output=True, text=True)
    assert (refused.returncode, refused.stdout) == (125, "")
    assert "netless: hint: " in refused.stderr
