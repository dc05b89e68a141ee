"""The external wrapper: proved before the program starts, and never mistaken for it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import netless
from netless import PIPE, Isolation, NetworkIsolationUnavailable
from support import PATIENCE, Listener, need, snapshot

WRAPPER = Isolation(mechanism="wrapper")
CONNECT = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 20)"
isolated = pytest.mark.isolated


def network(**options) -> str:
    link = ["readlink", "/proc/self/ns/net"]
    return netless.check_output(link, text=True, **options).strip()


def test_command_is_the_one_of_the_contract() -> None:
    root = Isolation(map_root=True)
    unshare = ["/usr/bin/unshare", "--user"]
    assert netless.wrapper_command(["a", "b c"], root, native=False) == [
        *(*unshare, "--map-root-user", "--net", "--"),
        *("a", "b c"),
    ]
    assert netless.wrapper_command([Path("a")], native=False) == [
        *(*unshare, "--map-current-user", "--net", "--", "a")
    ]


@pytest.mark.parametrize("isolation", [{"unix_sockets": False}, {"loopback": True}])
def test_command_refuses_what_it_cannot_give(isolation: dict) -> None:
    with pytest.raises(NetworkIsolationUnavailable) as caught:
        netless.wrapper_command(["true"], Isolation(**isolation), native=False)
    assert caught.value.cause == "extension-missing"


def test_command_line_prints_it_quoted() -> None:
    command = [sys.executable, "-m", "netless", "wrapper", "--map-root", "--", "echo", "a b"]
    launcher = subprocess.check_output(command, text=True)
    assert launcher.endswith("/netless-exec --map-root -- echo 'a b'\n")
    command.insert(4, "--external")
    external = subprocess.check_output(command, text=True)
    assert external == "/usr/bin/unshare --user --map-root-user --net -- echo 'a b'\n"


@isolated
@pytest.mark.parametrize("preexec", [None, lambda: None], ids=["plain", "preexec_fn"])
def test_blocks(preexec, listener4: Listener) -> None:
    command = [sys.executable, "-c", CONNECT, str(listener4.port)]
    before = listener4.reached
    assert subprocess.call(command) == 0
    assert listener4.wait_until_reached(before)
    before = listener4.reached
    done = netless.run(command, isolation=WRAPPER, stderr=PIPE, preexec_fn=preexec)
    assert done.returncode == 1
    assert b"unreachable" in done.stderr
    assert listener4.reached == before


@isolated
def test_preexec_fn_itself_is_isolated(listener4: Listener) -> None:
    def connect() -> None:
        socket.create_connection(("127.0.0.1", listener4.port), 20)

    before = listener4.reached
    with pytest.raises(netless.SubprocessError):
        netless.run(["true"], preexec_fn=connect, isolation=WRAPPER)
    assert listener4.reached == before


@isolated
def test_tells_what_it_gives_and_no_more() -> None:
    found = netless.probe(WRAPPER)
    assert found.mechanism == "wrapper"
    assert found.guarantees == {
        *("ip", "inherited-sockets", "no-way-back", "unix-abstract", "siblings")
    }
    with netless.Popen(["true"], isolation=WRAPPER) as process:
        assert process.mechanism == "wrapper"
    for asked in ({"user": 0}, {"group": 0}, {"extra_groups": [0]}):
        with pytest.raises(ValueError, match="native extension"):
            netless.run(["true"], isolation=WRAPPER, **asked)


@isolated
def test_identity_pid_status_and_streams_are_the_programs_own() -> None:
    script = "echo $$; echo err >&2; id -u; exit 5"
    with netless.Popen(
        ["/bin/sh", "-c", script], stdout=PIPE, stderr=PIPE, text=True, isolation=WRAPPER
    ) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert out.split() == [str(process.pid), str(os.geteuid())]
    assert (err, process.returncode) == ("err\n", 5)
    root = Isolation(mechanism="wrapper", map_root=True)
    assert netless.check_output(["id", "-u"], isolation=root) == b"0\n"
    with netless.Popen(["sleep", "60"], isolation=WRAPPER) as process:
        process.send_signal(signal.SIGUSR1)
    assert process.returncode == -signal.SIGUSR1


@isolated
def test_environment_signals_and_descriptors_are_as_under_subprocess() -> None:
    show = ["/bin/sh", "-c", "env; grep -E '^Sig(Blk|Ign)' /proc/self/status; ls /proc/self/fd"]
    for env in ({"A": "b"}, {}, None):
        ours = netless.check_output(show, env=env, isolation=WRAPPER)
        assert sorted(ours.split()) == sorted(subprocess.check_output(show, env=env).split())


@isolated
@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (["/no/such/program"], FileNotFoundError),
        (["no-such-program"], FileNotFoundError),
        (["/etc/passwd"], PermissionError),
        (["/"], PermissionError),
    ],
)
def test_missing_programs_raise_what_subprocess_raises(command, kind) -> None:
    for module, options in ((subprocess, {}), (netless, {"isolation": WRAPPER})):
        with pytest.raises(kind) as caught:
            module.Popen(command, stderr=PIPE, stdout=PIPE, **options)
        assert caught.value.filename == command[0]


@isolated
def test_bad_cwd_and_bad_arguments_raise_what_subprocess_raises() -> None:
    with pytest.raises(FileNotFoundError) as caught:
        netless.run(["true"], cwd="/no/such/directory", isolation=WRAPPER)
    assert caught.value.filename == "/no/such/directory"
    for arguments, env in (
        (["true", "a\0"], None),
        (["true"], {"a=b": "c"}),
        (["true"], {"a": "\0"}),
    ):
        with pytest.raises(ValueError, match=r"null byte|illegal"):
            netless.run(arguments, env=env, isolation=WRAPPER)


@isolated
def test_refuses_inherited_sockets(listener4: Listener) -> None:
    for options in (
        {"stdin": listener4.udp},
        {"stderr": listener4.udp},
        {"pass_fds": [listener4.tcp.fileno()]},
    ):
        assert subprocess.run(["true"], **options).returncode == 0
        with pytest.raises(netless.InheritedSocketError) as caught:
            netless.run(["true"], isolation=WRAPPER, **options)
        assert caught.value.family == socket.AF_INET
    vouched = Isolation(mechanism="wrapper", inherit_sockets=True)
    assert netless.call(["true"], stdin=listener4.udp, isolation=vouched) == 0


@isolated
def test_every_child_has_a_namespace_of_its_own_with_loopback_if_asked() -> None:
    assert len({network(isolation=WRAPPER), network(isolation=WRAPPER), network()}) == 3
    loopback = Isolation(mechanism="wrapper", loopback=True)
    talk = (
        "import socket; s = socket.create_server(('127.0.0.1', 0));"
        "socket.create_connection(s.getsockname()).close(); print('talked')"
    )
    assert netless.check_output([sys.executable, "-c", talk], isolation=loopback) == b"talked\n"
    caps = netless.check_output(["grep", "CapEff", "/proc/self/status"], isolation=loopback)
    if os.geteuid() != 0:
        assert caps.split()[1] == b"0" * 16


# ---- when the wrapper fails ----


@pytest.fixture
def pretend(tmp_path: Path, monkeypatch):
    """Puts a shell script in the place of unshare."""

    def put(script: str) -> None:
        path = tmp_path / "unshare"
        path.write_text("#!/bin/sh\n" + script)
        path.chmod(0o755)
        monkeypatch.setenv("NETLESS_WRAPPER", str(path))

    return put


PRETENDERS = {
    "does nothing": ('while [ "$1" != -- ]; do shift; done; shift; exec "$@"', "refused"),
    "fails without a word": ("exit 1", "refused"),
    "succeeds without running anything": ("exit 0", "refused"),
    "is too old": (
        "echo \"unshare: unrecognized option '--map-current-user'\" >&2; exit 1",
        "wrapper-too-old",
    ),
    "is refused": (
        "echo 'unshare: unshare failed: Operation not permitted' >&2; exit 1",
        "refused",
    ),
}


@pytest.mark.parametrize("name", PRETENDERS)
@pytest.mark.parametrize("when", ["at first", "after it had worked"])
def test_wrapper_that_fails_is_never_the_programs_status(
    name: str, when: str, pretend, marker
) -> None:
    script, cause = PRETENDERS[name]
    if when == "after it had worked":
        pretend(f'exec {need("unshare")} "$@"')
        assert netless.call(["true"], isolation=WRAPPER) == 0
    pretend(script)
    before = snapshot()
    with pytest.raises(NetworkIsolationUnavailable) as caught:
        netless.Popen(marker.command, isolation=WRAPPER)
    assert caught.value.cause == cause
    assert not marker.written()
    assert snapshot() == before


def test_missing_wrapper_is_an_error_with_a_hint(monkeypatch) -> None:
    monkeypatch.setenv("NETLESS_WRAPPER", "/no/such/unshare")
    with pytest.raises(NetworkIsolationUnavailable) as caught:
        netless.run(["true"], isolation=WRAPPER)
    assert caught.value.cause == "wrapper-missing"
    assert "NETLESS_WRAPPER" in caught.value.hint
    found = netless.probe(WRAPPER)
    assert not found.available
    assert found.error.cause == "wrapper-missing"


def test_relative_wrapper_is_not_taken(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "unshare").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "unshare").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NETLESS_WRAPPER", "unshare")
    with pytest.raises(NetworkIsolationUnavailable):
        netless.require(WRAPPER)


@isolated
@pytest.mark.slow
def test_cpython_suite_fails_only_where_other_ids_are_asked_for() -> None:
    """user=, group= and extra_groups= need the extension; nothing else may differ."""
    folder = Path(__file__).resolve().parent / "conformance"
    command = [sys.executable, str(folder / "cpython_subprocess.py"), "--module", "wrapped"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True, text=True
    )
    if done.returncode == 2:
        pytest.skip("this interpreter ships no test suite")
    failed = {
        line.split()[1].rstrip(":").rpartition(".")[2]
        for line in done.stdout.splitlines()
        if line.startswith("FAILED")
    }
    assert failed <= {"test_user", "test_group", "test_extra_groups"}, done.stdout
    assert " run, " in done.stdout
