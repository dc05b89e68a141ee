"""The external wrapper: proved before the program starts, and never mistaken for it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
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


# ---- a wrapper that enters the wrong namespace ----

SKIP_TO_PROGRAM = 'while [ "$1" != -- ]; do shift; done; shift'
UNSHARE = ("unshare", "--user", "--map-root-user")
SERVE = (
    "import socket; s = socket.create_server(('127.0.0.1', 0));"
    "print(s.getsockname()[1], flush=True)\n"
    "while True: s.accept()[0].close()"
)


@contextlib.contextmanager
def holder(*command: str):
    """A process in namespaces of its own: its pid, and the first line that it writes."""
    need("unshare")
    with subprocess.Popen([*UNSHARE, *command], stdout=PIPE, text=True) as process:
        try:
            line = process.stdout.readline().strip()
            assert line, "the holder of the namespace did not start"
            yield process.pid, line
        finally:
            process.kill()


def enter(pid: int) -> list[str]:
    return [need("nsenter"), "--preserve-credentials", "--user", "--net", f"--target={pid}", "--"]


def put_enter(pretend, pid: int) -> None:
    pretend(f'{SKIP_TO_PROGRAM}; exec {" ".join(enter(pid))} "$@"')


@isolated
def test_wrapper_that_enters_a_namespace_with_a_listener_is_found_out(pretend) -> None:
    serve = f'ip link set lo up; exec {sys.executable} -c "$0"'
    with holder("--net", "sh", "-ec", serve, SERVE) as (pid, port):
        connect = [sys.executable, "-c", CONNECT, port]
        assert subprocess.call([*enter(pid), *connect]) == 0, "the control did not reach it"
        put_enter(pretend, pid)
        with pytest.raises(NetworkIsolationUnavailable) as caught:
            netless.call(connect, isolation=WRAPPER)
    assert (caught.value.step, caught.value.errno) == ("verify-net", errno.ENOTEMPTY)
    assert "NETLESS_WRAPPER" in caught.value.hint


@isolated
def test_wrapper_that_enters_one_empty_namespace_every_time_is_found_out(pretend, marker) -> None:
    """Its children would reach each other: `siblings` is promised."""
    if not can_ask_for_ids():
        pytest.skip("this kernel does not tell ids of network namespaces (Linux 5.14)")
    with holder("--net", "sh", "-c", "echo ready; exec sleep 60") as (pid, _):
        assert subprocess.call([*enter(pid), "true"]) == 0
        put_enter(pretend, pid)
        assert not netless.probe(WRAPPER).available
        with pytest.raises(NetworkIsolationUnavailable) as caught:
            netless.call(marker.command, isolation=WRAPPER)
    assert (caught.value.step, caught.value.errno) == ("verify-net", errno.EEXIST)
    assert not marker.written()


@isolated
def test_wrapper_that_begins_to_share_a_namespace_is_found_out(
    pretend, marker, tmp_path: Path
) -> None:
    """It worked when it was tried, and the namespace that it made then is entered by all others."""
    if not can_ask_for_ids():
        pytest.skip("this kernel does not tell ids of network namespaces (Linux 5.14)")
    pid = tmp_path / "pid"
    stay = "import os, time; os.closerange(0, 1024); time.sleep(60)"
    pretend(f"""
        {SKIP_TO_PROGRAM}
        if [ -e {pid} ]; then
            exec nsenter --preserve-credentials --user --net --target=$(cat {pid}) -- "$@"
        fi
        exec {" ".join(UNSHARE)} --net -- sh -c '
            {sys.executable} -c "{stay}" & echo $! > {pid}.new; exec "$@"' sh "$@"
    """)
    try:
        assert netless.require(WRAPPER)
        Path(f"{pid}.new").rename(pid)
        with pytest.raises(NetworkIsolationUnavailable) as caught:
            netless.call(marker.command, isolation=WRAPPER)
    finally:
        for name in (pid, Path(f"{pid}.new")):
            if name.exists():
                os.kill(int(name.read_text()), signal.SIGKILL)
    assert (caught.value.step, caught.value.errno) == ("verify-net", errno.EEXIST)
    assert not marker.written()


def can_ask_for_ids() -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asked:
        try:
            return bool(asked.getsockopt(socket.SOL_SOCKET, 71, 8)[0])
        except OSError:
            return False


IN_NEW_NAMESPACE = (
    f'{SKIP_TO_PROGRAM}; exec {" ".join(UNSHARE)} --net -- sh -ec \'{{}}\nexec "$@"\' sh "$@"'
)
HOLDS = {
    "a loopback device that is up": "ip link set lo up",
    "another device": "ip link add v0 type veth peer name v1",
    "another device that is up": "ip link add v0 type veth peer name v1; ip link set v0 up",
    "an address": "ip addr add 127.0.0.1/8 dev lo",
    "an address with a label": "ip addr add 10.0.0.1/32 dev lo label lo:x",
    "an IPv6 address": "ip -6 addr add ::1/128 dev lo",
    "routes in a table of their own": (
        "ip link add v0 type veth peer name v1; ip link set v0 up; ip link set v1 up;"
        "ip addr add 10.9.9.1/32 dev v0; ip rule add pref 9 lookup 100;"
        "ip route add 10.9.9.2/32 dev v0 table 100"
    ),
}


@isolated
@pytest.mark.parametrize("what", HOLDS)
def test_wrapper_whose_namespace_holds_something_is_refused(what: str, pretend, marker) -> None:
    need("ip")
    pretend(IN_NEW_NAMESPACE.format(":"))
    assert netless.call(["true"], isolation=WRAPPER) == 0, "the control does not work"
    pretend(IN_NEW_NAMESPACE.format(HOLDS[what]))
    with pytest.raises(NetworkIsolationUnavailable) as caught:
        netless.call(marker.command, isolation=WRAPPER)
    assert (caught.value.step, caught.value.errno) == ("verify-net", errno.ENOTEMPTY)
    assert not marker.written()


@isolated
def test_devices_that_every_new_namespace_has_on_some_systems_are_no_matter(pretend) -> None:
    """net.core.fb_tunnels_only_for_init_net=0 and the module: they are there, and down."""
    need("ip")
    pretend(IN_NEW_NAMESPACE.format("ip link add tunl0 type veth peer name sit0"))
    assert netless.call(["true"], isolation=WRAPPER) == 0
    pretend(
        IN_NEW_NAMESPACE.format("ip link add tunl0 type veth peer name sit0; ip link set sit0 up")
    )
    with pytest.raises(NetworkIsolationUnavailable):
        netless.call(["true"], isolation=WRAPPER)


@isolated
def test_proofs_go_on_where_a_sandbox_hides_ids(programs, pretend, marker, script) -> None:
    """As before Linux 5.14: what the namespace holds is looked at in any case."""
    prefix = (programs("deny.c", "-static"), "getsockopt=EPERM", "--")
    pretend(IN_NEW_NAMESPACE.format(":"))
    assert script(CALL, str(marker.path), prefix=prefix).stdout == ""
    assert marker.written(), "the control did not run"
    marker.path.unlink()
    pretend(IN_NEW_NAMESPACE.format("ip link set lo up"))
    done = script(CALL, str(marker.path), prefix=prefix)
    assert json.loads(done.stdout) == ["verify-net", errno.ENOTEMPTY]
    assert not marker.written()


CALL = """
    import json, sys
    import netless
    try:
        netless.call(["sh", "-c", 'echo ran > "$0"', sys.argv[1]],
                     isolation=netless.Isolation(mechanism="wrapper"))
    except netless.NetworkIsolationUnavailable as error:
        print(json.dumps([error.step, error.errno]))
"""


@isolated
@pytest.mark.parametrize(
    "wrapper",
    [
        pytest.param('unshare --net -- "$@"', id="the caller's user namespace"),
        pytest.param(
            'nsenter --net=/proc/$(cat HOLDER)/ns/net -- unshare --user --map-root-user -- "$@"',
            id="a network namespace that the caller's user namespace owns",
        ),
    ],
)
def test_wrapper_without_a_user_namespace_for_the_network_is_refused(
    wrapper: str, pretend, marker, script, tmp_path: Path
) -> None:
    """Whoever has power in the caller's user namespace has it over that network."""
    need("nsenter")
    pid = tmp_path / "holder"
    hold = (
        f"unshare --net setpriv --pdeathsig KILL sh -c 'echo $$ > {pid}; exec sleep 60' &"
        f'until [ -s {pid} ]; do sleep 0.01; done; exec "$@"'
    )
    prefix = (*UNSHARE, "--", "sh", "-ec", hold, "sh")
    pretend(f'exec {need("unshare")} "$@"')
    assert script(CALL, str(marker.path), prefix=prefix).stdout == ""
    assert marker.written(), "the control did not run"
    marker.path.unlink()
    pid.unlink()
    pretend(f"{SKIP_TO_PROGRAM}; exec {wrapper.replace('HOLDER', str(pid))}")
    done = script(CALL, str(marker.path), prefix=prefix)
    assert done.stdout, (done.stderr, marker.written())
    assert json.loads(done.stdout) == ["verify-user", errno.EEXIST]
    assert not marker.written()


# ---- whatever is wrong with the place, it is NetworkIsolationUnavailable ----


def spoil_without_format(path: Path) -> None:
    path.write_text("no program")
    path.chmod(0o755)


def spoil_with_an_interpreter_that_is_missing(path: Path) -> None:
    path.write_text("#!/no/such/interpreter\n")
    path.chmod(0o755)


def spoil_with_one_that_may_not_be_executed(path: Path) -> None:
    path.write_text("#!/etc/passwd\n")
    path.chmod(0o755)


def spoil_with_a_loop(path: Path) -> None:
    loop = path.with_name("loop")
    loop.symlink_to(loop)
    path.write_text(f"#!{loop}\n")
    path.chmod(0o755)


def spoil_with_a_directory(path: Path) -> None:
    path.mkdir()


SPOILERS = {
    spoil_without_format: "ENOEXEC",
    spoil_with_an_interpreter_that_is_missing: "ENOENT",
    spoil_with_one_that_may_not_be_executed: "EACCES",
    spoil_with_a_loop: "ELOOP",
    spoil_with_a_directory: None,
}


@isolated
@pytest.mark.parametrize("spoil", SPOILERS)
@pytest.mark.parametrize("when", ["at first", "after it had worked"])
def test_wrapper_that_cannot_be_executed(
    spoil, when: str, pretend, marker, monkeypatch, tmp_path: Path
) -> None:
    """What subprocess would raise for it looks like a program that is missing."""
    path = tmp_path / "unshare"
    if when == "after it had worked":
        pretend(f'exec {need("unshare")} "$@"')
        assert netless.call(["true"], isolation=WRAPPER) == 0
        path.unlink()
    monkeypatch.setenv("NETLESS_WRAPPER", str(path))
    spoil(path)
    with pytest.raises(OSError):
        subprocess.call([str(path)])
    before = snapshot()
    for streams in ({}, {"stdin": PIPE, "stdout": PIPE, "stderr": PIPE}):
        with pytest.raises(NetworkIsolationUnavailable) as caught:
            netless.Popen(marker.command, isolation=WRAPPER, **streams)
        assert caught.value.cause == "wrapper-missing"
        assert "NETLESS_WRAPPER" in caught.value.hint
        name = SPOILERS[spoil]
        if name is not None or when != "at first":  # execve was tried
            assert caught.value.errno == getattr(errno, name or "EACCES")
            assert os.strerror(caught.value.errno) in str(caught.value)
    assert not marker.written()
    assert snapshot() == before


@isolated
def test_a_directory_that_is_missing_leaves_no_descriptor() -> None:
    before = snapshot()
    for module, options in ((subprocess, {}), (netless, {"isolation": WRAPPER})):
        with pytest.raises(FileNotFoundError):
            module.Popen(
                ["true"], cwd="/no/such/directory", stdin=PIPE, stdout=PIPE, stderr=PIPE, **options
            )
    assert snapshot() == before


OUTCOMES = """
    import json, os, sys
    import netless
    from netless import _wrapper

    options = json.loads(sys.argv[1])
    if "without" in options:
        delattr(os, options["without"])
    if "interpreter" in options:
        sys.executable = options["interpreter"]
    env = {"LONG": "x" * options.get("size", 1)}
    wrapper = netless.Isolation(mechanism="wrapper")

    def outcome(**more):
        try:
            command = ["sh", "-c", "echo ${#LONG}"]
            return netless.check_output(command, isolation=wrapper, env=env, **more).decode()
        except netless.NetworkIsolationUnavailable as error:
            return [error.cause, error.step, error.errno]
        except OSError as error:
            return [type(error).__name__, error.errno]

    print(json.dumps([outcome(), outcome(preexec_fn=lambda: None)]))
"""
NO_TMP = """
    for folder in /tmp /var/tmp /usr/tmp; do
        [ ! -d $folder ] || { mount --rbind $folder $folder; mount -o remount,bind,ro $folder; }
    done"""


def outcomes(script_in: str, options: dict[str, object] | None = None) -> list:
    """What comes of two launches where that shell script was run before, as root inside."""
    inside = (need("unshare"), "--user", "--map-root-user", "--mount", "--", "sh", "-ec")
    program = [sys.executable, "-W", "error", "-c", textwrap.dedent(OUTCOMES)]
    done = subprocess.run(
        [*inside, f'{script_in}\ncd /tmp\nexec "$@"', "sh", *program, json.dumps(options or {})],
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@isolated
@pytest.mark.parametrize("size", [1, 100_000])
def test_no_temporary_directory_is_needed(size: int) -> None:
    assert outcomes(NO_TMP, {"size": size}) == [f"{size}\n"] * 2


@isolated
def test_no_temporary_directory_where_one_is_needed() -> None:
    found, in_process = outcomes(NO_TMP, {"size": 100_000, "without": "memfd_create"})
    assert found == ["refused", "channel", errno.ENOENT]
    assert in_process == "100000\n"  # gives no orders


@isolated
def test_no_dev_null_is_needed() -> None:
    assert outcomes("mount -t tmpfs none /dev") == ["1\n"] * 2


@isolated
@pytest.mark.parametrize(
    ("made", "name"),
    [
        ("", "ENOENT"),
        ("ln -s thread-self /proc/thread-self", "ELOOP"),
        ("touch /proc/thread-self", "ENOTDIR"),
    ],
)
def test_a_proc_that_is_none(made: str, name: str) -> None:
    expected = ["proc-missing", "verify-net", getattr(errno, name)]
    assert outcomes(f"mount -t tmpfs none /proc\n{made}") == [expected] * 2


@isolated
@pytest.mark.parametrize("interpreter", [None, "", "/no/such/python"])
def test_without_an_interpreter(interpreter: str | None) -> None:
    found = outcomes("", {"interpreter": interpreter})
    cause = "refused" if interpreter else "mechanism-unavailable"
    assert [each[0] for each in found] == [cause] * 2


LIMITS = r"""
    import json, os, resource, sys
    import netless

    wrapper = netless.Isolation(mechanism="wrapper")
    for limit in range(3, 24):
        for warm in (False, True):
            if os.fork() == 0:
                if warm:
                    netless.require(wrapper)
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
                try:
                    netless.call(["readlink", "/proc/self/ns/net"], isolation=wrapper)
                except netless.NetworkIsolationUnavailable:
                    os.write(1, b"unavailable\n")
                except OSError as error:
                    os.write(1, f"{error.errno}\n".encode())
                os._exit(0)
            os.wait()
"""


@isolated
def test_few_descriptors(script) -> None:
    """It runs isolated, or fails as subprocess does, or says that it is unavailable."""
    done = script(LIMITS)
    lines = done.stdout.splitlines()
    assert len(lines) == 2 * 21, done.stderr
    own = os.readlink("/proc/self/ns/net")
    ran = [line for line in lines if line.startswith("net:")]
    assert own not in ran
    assert set(lines) - set(ran) <= {str(errno.EMFILE), "unavailable", ""}
    assert ran
    assert str(errno.EMFILE) in lines


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
