"""``pytest --netless``, on projects of the tests' own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import cffi
import pytest

import netless
from support import need

pytestmark = [pytest.mark.isolated, pytest.mark.native]

USAGE_ERROR = pytest.ExitCode.USAGE_ERROR

REACHES = """
import ctypes, os, socket, subprocess
import pytest

HOST, PORT = "127.0.0.1", int(os.environ["LISTENER"])


def test_a_server_on_localhost():
    with socket.create_server((HOST, 0)) as server:
        with socket.create_connection(server.getsockname()) as client:
            connection, _ = server.accept()
            with connection:
                client.sendall(b"x")
                assert connection.recv(1) == b"x"


def test_reaches_by_socket():
    socket.create_connection((HOST, PORT)).close()


def test_reaches_by_a_child():
    subprocess.run(["curl", "-sS", "-o", os.devnull, f"http://{HOST}:{PORT}/"], check=True)


def test_reaches_by_ctypes():
    libc = ctypes.CDLL(None, use_errno=True)
    address = socket.AF_INET.to_bytes(2, "little") + PORT.to_bytes(2, "big")
    address += socket.inet_aton(HOST) + bytes(8)
    fd = libc.socket(socket.AF_INET, socket.SOCK_STREAM, 0)
    try:
        assert libc.connect(fd, address, len(address)) == 0, os.strerror(ctypes.get_errno())
    finally:
        os.close(fd)


def test_reaches_by_an_extension():
    from reach import lib
    assert lib.reach(PORT) == 0
"""
ALL = ("a_server_on_localhost", *(f"reaches_by_{w}" for w in ("socket", "a_child", "ctypes")))
ALL = (*ALL, "reaches_by_an_extension")
EXTENSION = """
#include <arpa/inet.h>
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

static int reach(int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    int result = connect(fd, (struct sockaddr *)&to, sizeof to) ? errno : 0;

    close(fd);
    return result;
}
"""


class Project:
    """A folder with tests, and pytest on it in a process of its own."""

    def __init__(self, folder: Path, listener) -> None:
        self.folder, self.listener = folder, listener
        self.outcomes: dict[str, str] = {}

    def write(self, name: str, source: str) -> None:
        (self.folder / name).write_text(textwrap.dedent(source))

    def run(self, *arguments: str, prefix: tuple[str, ...] = (), **variables: str):
        outside = ("PYTEST_", "NETLESS_SESSION", "NETLESS_TEST")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(outside)}
        report = self.folder / "report.xml"
        report.unlink(missing_ok=True)
        python = [sys.executable, "-W", "error", "-m", "pytest", f"--junit-xml={report}"]
        done = subprocess.run(
            [*prefix, *python, "-p", "no:cacheprovider", "-ra", "--strict-markers", *arguments],
            cwd=self.folder,
            env={**clean, "LISTENER": str(self.listener.port), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        cases = ElementTree.parse(report).iter("testcase") if report.exists() else ()
        self.outcomes = {
            case.get("name", "").removeprefix("test_"): case[0].tag if len(case) else "passed"
            for case in cases
        }
        return done

    def refused(self, *arguments: str, **options) -> str:
        """The message of a session that ran nothing, not even a conftest.py."""
        self.write("conftest.py", "open('ran', 'w').close()")
        self.write("test_it.py", "def test_it(): open('ran', 'w').close()")
        done = self.run(*arguments, **options)
        assert done.returncode == USAGE_ERROR, done.stdout
        assert not (self.folder / "ran").exists()
        return done.stdout


@pytest.fixture
def project(tmp_path: Path, listener4) -> Project:
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    return Project(tmp_path, listener4)


@pytest.fixture
def demo(project: Project) -> Project:
    """One test with a server of its own, and four that reach out in four ways."""
    need("curl")
    need("gcc")
    project.write("test_demo.py", REACHES)
    ffi = cffi.FFI()
    ffi.cdef("int reach(int port);")
    ffi.set_source("reach", EXTENSION)
    ffi.compile(tmpdir=str(project.folder))
    return project


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_nothing_gets_out(demo: Project, listener4, workers: tuple[str, ...]) -> None:
    before = listener4.reached
    done = demo.run("--netless", *workers)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert demo.outcomes == {**dict.fromkeys(ALL, "failure"), "a_server_on_localhost": "passed"}
    assert listener4.reached == before


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_control_without_the_option_all_get_out(demo: Project, listener4, workers) -> None:
    before = listener4.connections
    done = demo.run(*workers)
    assert done.returncode == pytest.ExitCode.OK, done.stdout
    assert demo.outcomes == dict.fromkeys(ALL, "passed")
    assert listener4.wait_until_reached(before + 3)


CONNECT = """
import os, socket

def reaches():
    try:
        socket.create_connection(("127.0.0.1", int(os.environ["LISTENER"]))).close()
    except OSError:
        return False
    return True
"""


def test_conftest_is_imported_inside(project: Project) -> None:
    project.write("conftest.py", f"{CONNECT}\nREACHED = reaches()")
    project.write("test_it.py", "from conftest import REACHED\ndef test_it(): assert REACHED")
    assert (project.run("--netless").returncode, project.outcomes["it"]) == (1, "failure")
    assert project.run().returncode == 0


@pytest.fixture
def reaching(project: Project) -> Project:
    """One test, which passes if it gets out."""
    project.write("test_it.py", f"{CONNECT}\ndef test_it(): assert reaches()")
    return project


def test_setting(reaching: Project) -> None:
    reaching.write("pytest.ini", "[pytest]\nnetless = true\n")
    reaching.run()
    assert reaching.outcomes == {"it": "failure"}
    reaching.run("--no-netless")
    assert reaching.outcomes == {"it": "passed"}
    reaching.run("-n", "1")
    assert reaching.outcomes == {"it": "failure"}


def test_the_last_option_counts(reaching: Project) -> None:
    reaching.run("--no-netless", "--netless")
    assert reaching.outcomes == {"it": "failure"}
    reaching.run("--netless", "--no-netless")
    assert reaching.outcomes == {"it": "passed"}


# A variable that says what a session in this very place would have said.
CLAIM = f"""
    place=$({sys.executable} -c 'import netless_pytest; print(netless_pytest._identity())')
    export NETLESS_SESSION=$place/0
    exec "$@\""""
ROUTED = """
    unshare --net setpriv --pdeathsig KILL sh -c 'echo $$; exec sleep 60' > other &
    until [ -s other ]; do sleep 0.01; done
    ip link add v0 type veth peer name v1
    ip link set v1 netns $(cat other)
    echo 1 > /proc/sys/net/ipv6/conf/v0/disable_ipv6
    ip link set v0 up
    ip addr add 10.9.9.1/32 dev v0
    ip rule add pref 9 lookup 100
    ip route add 10.9.9.2/32 dev v0 table 100
    nsenter --net=/proc/$(cat other)/ns/net sh -ec '
        ip link set v1 up; ip addr add 10.9.9.2/32 dev v1; ip route add 10.9.9.1/32 dev v1
        exec setpriv --pdeathsig KILL python3 -c "$SERVE" > port' &
    until [ -s port ]; do sleep 0.01; done"""
LOCAL = """
    ip link set lo up
    setpriv --pdeathsig KILL python3 -c "$SERVE" > port &
    until [ -s port ]; do sleep 0.01; done"""
SERVE = (
    "import socket; s = socket.create_server(('', 0)); print(s.getsockname()[1], flush=True)\n"
    "while True: s.accept()[0].close()"
)
THERE = """
import pathlib, socket

def test_it():
    port = int(pathlib.Path("port").read_text())
    socket.create_connection(("{}", port), 20).close()
"""


@pytest.mark.parametrize("place", ["routes in another table", "a listener on loopback"])
def test_the_variable_of_a_session_proves_nothing(project: Project, place: str) -> None:
    for program in ("ip", "nsenter", "setpriv"):
        need(program)
    made, address = (ROUTED, "10.9.9.2") if place.startswith("routes") else (LOCAL, "127.0.0.1")
    project.write("test_it.py", THERE.format(address))
    for claimed, expected in (((), "passed"), (("--netless",), "failure")):
        for name in ("other", "port"):
            (project.folder / name).unlink(missing_ok=True)
        prefix = ("unshare", "--user", "--map-root-user", "--net", "--", "sh", "-ec")
        done = project.run(*claimed, prefix=(*prefix, made + CLAIM, "sh"), SERVE=SERVE)
        assert project.outcomes == {"it": expected}, done.stdout


def test_who_is_in_the_namespaces_of_a_session_but_not_in_its_seal_is_not_inside(
    project: Project,
) -> None:
    """Such as a debugger's shell by nsenter, with the session's environment."""
    need("nsenter")
    project.write(
        "test_it.py",
        """
        import os, pathlib, time
        def test_it():
            pathlib.Path("new").write_text(f"{os.getpid()} {os.environ['NETLESS_SESSION']}")
            os.rename("new", "pid")
            while not os.path.exists("done"):
                time.sleep(0.01)
        """,
    )
    project.write(
        "test_seal.py",
        """
        import pathlib
        def test_seal():
            assert "Seccomp:\\t2" in pathlib.Path("/proc/self/status").read_text()
        """,
    )
    with ThreadPoolExecutor(1) as thread:
        session = thread.submit(project.run, "--netless", "test_it.py")
        try:
            while not (project.folder / "pid").exists():
                assert not session.done(), session.result().stdout
                time.sleep(0.01)
            pid, variable = (project.folder / "pid").read_text().split()
            enter = (
                "nsenter",
                "--preserve-credentials",
                "--user",
                "--net",
                f"--target={pid}",
                "--",
            )
            inner = Project(project.folder, project.listener)
            inner.run("test_seal.py", prefix=enter)
            assert inner.outcomes == {"seal": "failure"}, "the control"
            done = inner.run("--netless", "test_seal.py", prefix=enter, NETLESS_SESSION=variable)
            assert inner.outcomes == {"seal": "passed"}, done.stdout
        finally:
            (project.folder / "done").touch()
        assert session.result().returncode == 0, session.result().stdout


def test_pytest_in_a_session_shares_its_isolation(project: Project) -> None:
    project.write("inner.py", f"{CONNECT}\ndef test_inner(): assert not reaches()")
    project.write(
        "test_it.py",
        """
        import subprocess, sys
        def test_it():
            command = [sys.executable, "-m", "pytest", "--netless", "inner.py"]
            print(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
        """,
    )
    done = project.run("--netless", "-n", "1", "-rP")
    assert done.returncode == 0, done.stdout
    assert "inside the isolation of the session that started this one" in done.stdout


MARKED = """
import pytest
@pytest.mark.network
def test_marked(): pass
def test_other(): pass
"""


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_what_needs_the_network_is_skipped_with_a_reason(project: Project, workers) -> None:
    project.write("test_it.py", MARKED)
    done = project.run("--netless", *workers)
    assert project.outcomes == {"marked": "skipped", "other": "passed"}
    assert "needs the network, which --netless takes away" in done.stdout
    project.run(*workers)
    assert project.outcomes == {"marked": "passed", "other": "passed"}


def test_header_says_what_is_in_force(project: Project) -> None:
    project.write("test_it.py", "def test_it(): pass")
    (line,) = re.findall(r"^netless: (.*)$", project.run("--netless").stdout, flags=re.MULTILINE)
    promised = netless.require(netless.Isolation(loopback=True))
    text, found = line.split("; ")
    assert text == "no network but a loopback of its own"
    mechanism, guarantees = found.split(": ")
    assert mechanism == promised.mechanism
    assert {"ip", "inherited-sockets", "no-way-back"} <= set(guarantees.split(", "))
    assert promised.guarantees <= set(guarantees.split(", "))
    assert not re.search(r"^netless:", project.run().stdout, flags=re.MULTILINE)


def test_a_session_without_it_does_not_import_netless(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        import sys
        def test_it():
            assert "netless_pytest" in sys.modules
            assert not [name for name in sys.modules if name.split(".")[0] == "netless"]
        """,
    )
    done = project.run()
    assert done.returncode == 0, done.stdout


# A session that cannot be isolated runs nothing.


def test_refused_beside_threads(project: Project) -> None:
    project.write(
        "starts.py",
        """
        import threading
        threading.Thread(target=threading.Event().wait, name="the watcher", daemon=True).start()
        """,
    )
    text = project.refused("--netless", "-p", "starts", PYTHONPATH=str(project.folder))
    assert "process-has-threads" in text
    assert "2 threads" in text
    assert "the watcher" in text


def test_refused_with_a_socket_open(project: Project) -> None:
    project.write("opens.py", "import socket\nkept = socket.create_server(('127.0.0.1', 0))")
    text = project.refused("--netless", "-p", "opens", PYTHONPATH=str(project.folder))
    assert re.search(r"descriptor \d+ is an AF_INET socket, open before the session began", text)


def test_refused_without_the_extension(project: Project) -> None:
    project.write("hides.py", "import sys\nsys.modules['netless._spawn'] = None")
    text = project.refused("--netless", "-p", "hides", PYTHONPATH=str(project.folder))
    assert netless.NetworkIsolationUnavailable.code in text
    assert "extension" in text


@pytest.mark.parametrize("way", ["--netless", "setting"])
def test_refused_where_the_kernel_refuses(project: Project, way: str) -> None:
    need("unshare")
    limit = "echo 0 > /proc/sys/user/max_user_namespaces"  # of a user namespace made for this
    prefix = ("unshare", "-r", "sh", "-ec", f'{limit}; exec "$@"', "sh")
    arguments = [way]
    if way == "setting":
        project.write("pytest.ini", "[pytest]\nnetless = true\n")
        arguments = []
    text = project.refused(*arguments, prefix=prefix)
    assert "user-namespaces-disabled" in text
    assert "Hint: " in text


def test_refused_when_the_plugin_comes_late(project: Project) -> None:
    project.write("conftest.py", "pytest_plugins = ['netless_pytest']")
    project.write("test_it.py", "def test_it(): open('ran', 'w').close()")
    late = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = project.run("--netless", **late)
    assert done.returncode == USAGE_ERROR, done.stdout
    assert "load it by -p netless" in done.stdout
    assert not (project.folder / "ran").exists()
    project.write("conftest.py", "")
    assert project.run("--netless", "-p", "netless", **late).returncode == 0


def test_refused_for_a_worker_that_is_not_inside(reaching: Project) -> None:
    """Its threads keep it from isolating itself, so it does not start."""
    reaching.write(
        "conftest.py",
        """
        import os
        def pytest_configure(config):
            os.environ["NETLESS_SESSION"] = "another"
        """,
    )
    before = reaching.listener.reached
    done = reaching.run("--netless", "-n", "1")
    assert done.returncode not in (0, 1), done.stdout
    assert "process-has-threads" in done.stdout
    assert (reaching.outcomes, reaching.listener.reached) == ({}, before)
