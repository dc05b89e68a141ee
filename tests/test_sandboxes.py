"""Inside the sandboxes of others: what works there works, and what cannot says why.

Each is built here from what it is made of: bubblewrap, Landlock rules, and its seccomp filter
(``programs/outer.c``).  Everything runs twice, as a plain child and as one of netless, with
the same attempt to get out.  That a child of netless does not get out counts only where the
plain one does.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import netless
from netless import _launcher, _native
from support import (
    PATIENCE,
    Listener,
    launcher,
    live_network_namespaces,
    need,
    network_namespaces_settle,
)

pytestmark = [pytest.mark.isolated, pytest.mark.native]
if platform.machine() not in ("x86_64", "aarch64"):
    pytest.skip("the sandboxes' filters are written for other machines", allow_module_level=True)

SANDBOXED = Path(__file__).resolve().parent / "programs" / "sandboxed.py"
IS_ROOT = os.geteuid() == 0
NOBODY = 65534
REFUSED = (1, 3)  # what the attempts end with: no connection, no socket
FILTER = {"fallback": "filter"}


@dataclass(frozen=True)
class Sandbox:
    """One of them.

    ``layers`` are the names of what it is made of, outermost first.  ``way`` is by what a
    child gets out of netless's default isolation, had it none: to a datagram socket of the
    test, by its abstract name; to a TCP listener of the test; or to one that runs in the same
    sandbox.  ``refusal`` is the cause, step and errno where netless cannot work.
    """

    name: str
    layers: tuple[str, ...]
    way: str | None
    has_paths: bool = True
    refusal: tuple[str, str, int] | None = None

    def __str__(self) -> str:
        return self.name


BLOCKED = ("blocked-by-seccomp", "unshare", errno.EPERM)
UNMAPPED = ("refused", "uid-map", errno.EACCES)
USED_UP = ("nested-too-deep", "unshare", errno.ENOSPC)
CODEX_OLD, CODEX = "codex-getsockopt", "codex"
SANDBOXES = [
    Sandbox("none", (), "tcp"),
    # For commands that may write everywhere; two forms of the filter.
    Sandbox("codex", (CODEX,), "abstract"),
    Sandbox("codex-getsockopt", (CODEX_OLD,), "abstract"),
    # Before it used bubblewrap: no file of /proc may be written, so no ids can be mapped.
    Sandbox("codex-landlock", (CODEX_OLD, "landlock"), "abstract", refusal=UNMAPPED),
    Sandbox("codex-bwrap", ("bwrap without network", CODEX_OLD), None),
    Sandbox("bwrap", ("bwrap",), "tcp"),
    Sandbox("bwrap-without-network", ("bwrap without network",), "own tcp"),
    Sandbox("bwrap-disable-userns", ("bwrap --disable-userns",), "tcp", refusal=USED_UP),
    Sandbox("docker", ("docker",), "tcp", refusal=BLOCKED),
    Sandbox(
        "sandbox-runtime",
        ("bwrap without network", "pid namespace", "sandbox-runtime"),
        "own tcp",
        has_paths=False,
    ),
]
WORKING = [each for each in SANDBOXES if each.refusal is None]
REFUSING = [each for each in SANDBOXES if each.refusal is not None]
CODICES = [each for each in WORKING if {CODEX, CODEX_OLD} & set(each.layers)]
ISOLATIONS = {"default": {}, "private": {"private": True}, "loopback": {"loopback": True}}
STRICT = {"unix_sockets": False}

each_sandbox = pytest.mark.parametrize("sandbox", SANDBOXES, ids=str)
each_refusing = pytest.mark.parametrize("sandbox", REFUSING, ids=str)
each_isolation = pytest.mark.parametrize("isolation", ISOLATIONS.values(), ids=list(ISOLATIONS))


class Datagrams:
    """An AF_UNIX datagram socket, by path or abstract name, that counts what reaches it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.reached = 0
        self.thread = threading.Thread(target=self._count, daemon=True)
        self.thread.start()

    def _count(self) -> None:
        while self.socket.recv(16) != b"stop":
            self.reached += 1

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"stop", self.address)
        self.thread.join(10)
        self.socket.close()


@pytest.fixture(scope="module")
def abstract() -> Iterator[Datagrams]:
    listener = Datagrams(f"\0netless-sandboxes-{os.getpid()}")
    yield listener
    listener.close()


@pytest.fixture(scope="module")
def place(programs) -> Iterator[Path]:
    """A directory that every user may enter, with the programs: writable in every sandbox."""
    folder = Path(tempfile.mkdtemp(prefix="sandboxes-", dir="/tmp"))
    folder.chmod(0o755)
    for name in ("outer.c", "landlock.c", "holes.c", "connect.c"):
        shutil.copy(programs(name, "-static"), folder / name.removesuffix(".c"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def by_path(place: Path) -> Iterator[Datagrams]:
    listener = Datagrams(str(place / "socket"))
    (place / "socket").chmod(0o777)
    yield listener
    listener.close()


@pytest.fixture(scope="module", autouse=True)
def _no_namespace_is_left():
    before = live_network_namespaces()
    yield
    assert network_namespaces_settle(before)


def layer(name: str, place: Path) -> list[str]:
    """The command that puts the next one into it."""
    if name.startswith("bwrap"):
        need("bwrap")
        files = ["--ro-bind", "/", "/", "--dev", "/dev", "--bind", str(place), str(place)]
        spaces = ["--unshare-user", "--unshare-pid", "--proc", "/proc"]
        spaces += ["--unshare-net"] * name.endswith("without network")
        spaces += ["--disable-userns"] * name.endswith("--disable-userns")
        return ["bwrap", "--new-session", "--die-with-parent", *files, *spaces, "--"]
    if name == "landlock":
        return [str(place / "landlock"), str(place), "--"]
    if name == "pid namespace":
        # A new /proc is refused beneath bubblewrap's, to uid 0 at least: then it is the outer one.
        spaces = ["--user", "--map-current-user", "--pid", "--fork", "--mount", "--"]
        script = 'mount -t proc proc /proc 2> /dev/null || true; exec "$0" "$@"'
        return [need("unshare"), *spaces, "/bin/sh", "-c", script]
    return [str(place / "outer"), name, "--"]


# Runs a command beside a listener on 127.0.0.1, whose port stands for PORT.
BESIDE = """
import socket, subprocess, sys
with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
    port = str(server.getsockname()[1])
    command = [part.replace("PORT", port) for part in sys.argv[1:]]
    raise SystemExit(subprocess.call(command))
"""


class Inside:
    """What a test does in one sandbox, and what reached the listeners meanwhile."""

    def __init__(self, sandbox: Sandbox, place: Path, listeners: dict) -> None:
        self.sandbox = sandbox
        self.place = place
        self.listeners = listeners

    def run(self, *command: str, **options) -> subprocess.CompletedProcess:
        prefix = [part for name in self.sandbox.layers for part in layer(name, self.place)]
        if self.sandbox.way == "own tcp":
            prefix += [sys.executable, "-c", BESIDE]
        options = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, **options}
        done = subprocess.run([*prefix, *command], timeout=PATIENCE * 2, cwd="/", **options)
        for text in (done.stdout, done.stderr):
            assert "memory killer" not in text
            assert "was killed" not in text
            assert "family -1" not in text
        return done

    def reach(self, isolation: dict) -> list[str]:
        """The attempt that this isolation has to refuse, as a command."""
        if isolation.get("unix_sockets") is False:
            return [str(self.place / "holes"), "datagram", str(self.place / "socket")]
        if self.sandbox.way == "abstract":
            name = self.listeners["abstract"].address.replace("\0", "@")
            return [str(self.place / "holes"), "datagram", name]
        port = "PORT" if self.sandbox.way == "own tcp" else str(self.listeners["tcp"].port)
        return [str(self.place / "connect"), "127.0.0.1", port]

    def do(self, work: str, isolation: dict, *, pass_fds: tuple = (), **orders) -> dict:
        orders = {"work": work, "isolation": isolation, "reach": self.reach(isolation), **orders}
        python = [sys.executable, "-W", "error", str(SANDBOXED)]
        done = self.run(*python, json.dumps(orders), pass_fds=pass_fds)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        return json.loads(done.stdout)

    @contextlib.contextmanager
    def counting(self, isolation: dict, expected: int):
        """So many attempts reach the listener, where that is the test's own."""
        name = "path" if isolation.get("unix_sockets") is False else self.sandbox.way
        listener = self.listeners.get(name)
        before = listener.reached if listener else 0
        yield
        if listener:
            with contextlib.suppress(TimeoutError):
                settle(lambda: listener.reached >= before + expected)
            assert listener.reached == before + expected


def settle(condition) -> None:
    waiting = threading.Event()
    for _ in range(100):
        if condition():
            return
        waiting.wait(0.02)
    raise TimeoutError


@pytest.fixture
def inside(sandbox: Sandbox, place, abstract, by_path, listener4: Listener) -> Inside:
    if "landlock" in sandbox.layers and _native.landlock_abi() < 1:
        pytest.skip("this kernel has no Landlock")
    return Inside(sandbox, place, {"abstract": abstract, "path": by_path, "tcp": listener4})


def expected_isolations(sandbox: Sandbox) -> dict[str, dict]:
    """Those whose refusal has a control: by what the sandbox lets out."""
    found = ISOLATIONS if sandbox.way else {}
    return {**found, "strict": STRICT} if sandbox.has_paths else found


def cases(sandboxes: list[Sandbox]):
    found = [(s, name, i) for s in sandboxes for name, i in expected_isolations(s).items()]
    return pytest.mark.parametrize(
        ("sandbox", "isolation"),
        [(sandbox, isolation) for sandbox, _, isolation in found],
        ids=[f"{sandbox}-{name}" for sandbox, name, _ in found],
    )


def is_refusal(sandbox: Sandbox, found: object) -> bool:
    """The one error, with the cause, step and errno that are right there, and words."""
    if not isinstance(found, dict) or found.get("kind", "") != "NetworkIsolationUnavailable":
        return False
    assert (found["cause"], found["step"], found["errno"]) == sandbox.refusal, found["text"]
    assert found["text"].startswith(netless.NetworkIsolationUnavailable.code)
    assert found["hint"] in found["text"]
    return bool(found["hint"])


def told(found: object) -> tuple | object:
    """What callers of subprocess go by."""
    if not isinstance(found, dict):
        return found
    return found["kind"], found["errno"], found["filename"]


ORDINARY = {
    "missing": ("FileNotFoundError", errno.ENOENT, "/no/such/program"),
    "not_executable": ("PermissionError", errno.EACCES, "/etc/passwd"),
    "nowhere": ("FileNotFoundError", errno.ENOENT, "/no/such/directory"),
}


def expect_launches(found: dict, mechanism: str = "namespace") -> None:
    """Every way of starting a child does what it does without netless, but for the network."""
    for way in set(found) - {"own", "left"}:
        plain, isolated = found[way]["subprocess"], found[way]["netless"]
        if way == "user" and isinstance(plain["reach"], dict):  # no such user in there
            assert {told(isolated[name])[0] for name in ("reach", "missing")} <= {
                "PermissionError",
                plain["reach"]["kind"],
            }
            continue
        assert plain["reach"] == 0, f"{way}: the control did not get out: {plain['reach']}"
        assert isolated["reach"] in REFUSED, f"{way}: {isolated['reach']}"
        assert plain["namespace"] == found["own"]
        assert isolated["namespace"].startswith("net:["), isolated["namespace"]
        assert (isolated["namespace"] == found["own"]) == (mechanism == "filter")
        for name, wanted in ORDINARY.items():
            assert told(plain[name]) == wanted
            assert told(isolated[name]) == wanted, f"{way}: {isolated[name]}"
    assert found["left"]["before"] == found["left"]["after"]


def reached_plainly(found: dict) -> int:
    """How many attempts of plain children there were, in both rounds."""
    ways = set(found) - {"own", "left"}
    return sum(2 for way in ways if found[way]["subprocess"]["reach"] == 0)


@cases(WORKING)
def test_launches(sandbox: Sandbox, isolation: dict, inside: Inside) -> None:
    user = NOBODY if IS_ROOT else None
    listener = inside.listeners.get("path" if isolation == STRICT else sandbox.way)
    before = listener.reached if listener else 0
    found = inside.do("launches", isolation, user=user)
    expect_launches(found)
    assert "user" not in found or IS_ROOT
    if listener:
        with contextlib.suppress(TimeoutError):
            settle(lambda: listener.reached >= before + reached_plainly(found))
        assert listener.reached == before + reached_plainly(found)


@cases(REFUSING)
def test_launches_are_refused(sandbox: Sandbox, isolation: dict, inside: Inside) -> None:
    found = inside.do("launches", isolation, user=NOBODY if IS_ROOT else None)
    for way in set(found) - {"own", "left"}:
        if way != "user":
            assert found[way]["subprocess"]["reach"] == 0
        for outcome in found[way]["netless"].values():
            assert is_refusal(sandbox, outcome), outcome
    assert found["left"]["before"] == found["left"]["after"]


# ---- probe, doctor, the command line ----


def guarantees_there(sandbox: Sandbox, isolation: dict) -> set[str]:
    every = {"ip", "inherited-sockets", "vm-sockets", "unix-abstract", "key-upcalls"}
    every |= {"tty-injection", "no-way-back"}
    # Children of uid 0 that share a namespace write its sysctls.
    has_siblings = _native.landlock_abi() >= 6 and (isolation or not IS_ROOT)
    # What these refuse leaves nothing to prove the Landlock domain with.
    can_prove = not sandbox.name.startswith(("codex", "sandbox-runtime"))
    has_siblings = has_siblings and can_prove
    return every | ({"siblings"} if has_siblings else set())


@each_sandbox
@each_isolation
def test_probe_and_require(sandbox: Sandbox, isolation: dict, inside: Inside) -> None:
    found = inside.do("probe", isolation)
    if sandbox.refusal:
        assert not found["available"]
        assert is_refusal(sandbox, {**found["error"], "kind": "NetworkIsolationUnavailable"})
        assert is_refusal(sandbox, found["require"])
    else:
        assert found["error"] is None
        assert (found["mechanism"], found["require"]) == ("namespace", "namespace")
        assert set(found["guarantees"]) >= guarantees_there(sandbox, isolation)


@each_sandbox
@each_isolation
def test_doctor_says_what_is_true(sandbox: Sandbox, isolation: dict, inside: Inside) -> None:
    """The text, the JSON and the exit status."""
    flags = [f"--{name}" for name in isolation]
    doctor = [sys.executable, "-m", "netless", "doctor", *flags]
    text, as_json = inside.run(*doctor), inside.run(*doctor, "--json")
    found = json.loads(as_json.stdout)
    assert text.returncode == as_json.returncode == int(bool(sandbox.refusal))
    assert text.stderr == as_json.stderr == ""
    assert found["available"] == (not sandbox.refusal)
    results = {entry["result"] for entry in found["steps"]}
    if sandbox.refusal:
        error = found["error"]
        assert (error["cause"], error["step"], error["errno"]) == sandbox.refusal
        assert "not available here" in text.stdout
        assert f"hint: {error['hint']}" in text.stdout
        assert {entry["step"] for entry in found["steps"] if entry["result"] == "failed"} == {
            sandbox.refusal[1]
        }
    else:
        assert "ready (namespace)" in text.stdout
        assert "failed" not in results
    assert found["facts"]["seccomp_filtered"] == any(
        name in ("codex", "codex-getsockopt", "docker", "sandbox-runtime")
        for name in sandbox.layers
    )


def commands(isolation: dict) -> dict[str, list[str]]:
    asked = netless.Isolation(**isolation)
    own = _launcher.command(launcher(), [], asked)
    return {
        "netless": [sys.executable, "-m", "netless", "run", *own[1:]],
        "netless-exec": own,
    }


@pytest.mark.parametrize("name", ["netless", "netless-exec"])
@cases(SANDBOXES)
def test_command_line(sandbox: Sandbox, isolation: dict, name: str, inside: Inside) -> None:
    command = commands(isolation)[name]
    reach = inside.reach(isolation)
    with inside.counting(isolation, 1):
        assert inside.run(*reach).returncode == 0, "the control did not get out"
        for program in (reach, ["/no/such/program"], ["/etc/passwd"]):
            done = inside.run(*command, *program)
            if sandbox.refusal:
                cause, step, number = sandbox.refusal
                words = f"{cause}: launch step '{step}' failed with {errno.errorcode[number]} ("
                assert done.returncode == 125
                assert f"{name}: error: {netless.NetworkIsolationUnavailable.code}: {words}" in (
                    done.stderr
                )
                assert f"\n{name}: hint: " in done.stderr
                continue
            wanted = {"/no/such/program": 127, "/etc/passwd": 126}.get(program[0])
            assert done.returncode == wanted if wanted else done.returncode in REFUSED
            if wanted:
                why = os.strerror(errno.ENOENT if wanted == 127 else errno.EACCES)
                assert done.stderr == f"{name}: error: {program[0]}: {why}\n"


@each_sandbox
@each_isolation
def test_report_of_the_launcher(sandbox: Sandbox, isolation: dict, inside: Inside) -> None:
    """--fd-report: a line when nothing was executed, and no word when it was."""
    found = []
    for program in ("true", "/no/such/program"):
        report = inside.place / "report"
        command = commands(isolation)["netless-exec"]
        command[1:1] = ["--fd-report", "7"]
        script = f'exec 7> "$0"; exec {shlex.join(command)} {program}'
        done = inside.run("/bin/sh", "-c", script, str(report))
        found.append((done.returncode, report.read_text()))
        report.unlink()
    if sandbox.refusal:
        cause, step, number = sandbox.refusal
        assert found == [(125, f"{step} {number} {cause}\n")] * 2
    else:
        assert found == [(0, ""), (127, f"exec {errno.ENOENT} -\n")]


# ---- this process itself, and workers ----


@pytest.mark.parametrize("pair", [False, True], ids=["nothing open", "a pair of sockets open"])
@cases(SANDBOXES)
def test_isolate(sandbox: Sandbox, isolation: dict, pair: bool, inside: Inside) -> None:
    with inside.counting(isolation, 1):
        found = inside.do("isolate", isolation, pair=pair)
    assert found["before"] == 0, "the control did not get out"
    is_connected_unknown = {CODEX, CODEX_OLD} & set(sandbox.layers)
    if pair and isolation == STRICT and is_connected_unknown:
        assert found["isolate"]["kind"] == "InheritedSocketError"
        assert found["isolate"]["family"] == socket.AF_UNIX
        return
    if sandbox.refusal:
        assert is_refusal(sandbox, found["isolate"]), found["isolate"]
        return
    assert found["isolate"] is None
    assert found["after"] in REFUSED
    assert found["nested"] == 0


@pytest.mark.parametrize("method", ["fork", "spawn"])
@cases(SANDBOXES)
def test_workers(sandbox: Sandbox, isolation: dict, method: str, inside: Inside) -> None:
    found = inside.do("workers", isolation, method=method)
    plain, isolated = found["subprocess"], found["netless"]
    assert plain["worker"] == 0, "the control did not get out"
    # Where the sandbox gives no semaphores there are no pools, whoever makes them.
    has_pools = not isinstance(plain["pool"], dict)
    assert has_pools or told(isolated["pool"]) == told(plain["pool"])
    if sandbox.refusal:
        assert is_refusal(sandbox, isolated["worker"]), isolated["worker"]
        assert not has_pools or is_refusal(sandbox, isolated["pool"]), isolated["pool"]
        return
    assert isolated["worker"] in REFUSED, isolated["worker"]
    assert plain["pool"] == [0, 0, 0]
    assert len(isolated["pool"]) == 3
    assert set(isolated["pool"]) <= set(REFUSED), isolated["pool"]


# ---- descriptors, where what they are may not be asked ----


@pytest.mark.parametrize("sandbox", CODICES, ids=str)
def test_inherited_sockets(sandbox: Sandbox, inside: Inside, listener4: Listener) -> None:
    """A pair leads nowhere and is let through; a connection that the sandbox was given is not."""
    with socket.create_connection(("127.0.0.1", listener4.port)) as connection:
        fd = connection.fileno()
        found = inside.do("inherited", {}, fd=fd, pass_fds=(fd,))
        done = inside.run(launcher(), "--", "true", stdin=fd)
    assert done.returncode == 125
    assert "error: descriptor 0 is a socket" in done.stderr
    assert found["tcp"]["subprocess"] == found["pair"]["subprocess"] == 0
    assert found["pair"]["netless"] == 0, found["pair"]["netless"]
    assert found["tcp"]["netless"]["kind"] == "InheritedSocketError"
    assert found["tcp"]["netless"]["fd"] == 0
    assert found["tcp"]["netless"]["family"] in (socket.AF_INET, None)
    assert "socket" in found["tcp"]["netless"]["text"]


# ---- where namespaces are refused: the filter, when it is asked for ----


def has_filter() -> bool:
    """Not for a caller with the powers of root, which these sandboxes leave to uid 0."""
    return not IS_ROOT and _native.landlock_abi() >= 6


@each_refusing
def test_fallback_launches(sandbox: Sandbox, inside: Inside) -> None:
    found = inside.do("launches", FILTER)
    if has_filter():
        expect_launches(found, "filter")
        return
    for way in ("plain", "preexec_fn"):
        assert found[way]["subprocess"]["reach"] == 0
        assert is_refusal(sandbox, found[way]["netless"]["reach"])


@each_refusing
def test_fallback_of_this_process(sandbox: Sandbox, inside: Inside) -> None:
    found = inside.do("isolate", FILTER)
    assert found["before"] == 0
    if has_filter():
        assert found["isolate"] is None
        assert found["after"] in REFUSED
        assert found["nested"] == 0
    else:
        assert is_refusal(sandbox, found["isolate"])


@each_refusing
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_fallback_of_workers(sandbox: Sandbox, method: str, inside: Inside) -> None:
    found = inside.do("workers", FILTER, method=method)
    assert found["subprocess"]["worker"] == 0
    if has_filter():
        assert found["netless"]["worker"] in REFUSED, found["netless"]["worker"]
    else:
        assert is_refusal(sandbox, found["netless"]["worker"])


@each_refusing
def test_fallback_is_named_where_it_works(sandbox: Sandbox, inside: Inside) -> None:
    found = inside.do("probe", {})
    assert not has_filter() or 'fallback="filter"' in found["error"]["hint"]
    with_it = inside.do("probe", FILTER)
    assert with_it["available"] == has_filter()
    assert with_it["mechanism"] == ("filter" if has_filter() else None)


@each_refusing
@pytest.mark.parametrize("name", ["netless", "netless-exec"])
def test_fallback_of_the_command_line(sandbox: Sandbox, name: str, inside: Inside) -> None:
    command = commands(FILTER)[name]
    reach = inside.reach(FILTER)
    assert inside.run(*reach).returncode == 0
    done = [inside.run(*command, *program) for program in (reach, ["/no/such/program"])]
    if has_filter():
        assert done[0].returncode in REFUSED, done[0].stderr
        assert done[1].returncode == 127, done[1].stderr
    else:
        assert [each.returncode for each in done] == [125, 125]
