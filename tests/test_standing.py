"""The standing list: what must go on working inside, whatever the seal refuses next.

Run with each change of the filter, of Landlock or of the capabilities:
``pytest -m standing``.  Each entry is a real program that was broken by a rule that looked
harmless, here or in another sandbox, or that does what few others do.  It must work without
netless first, so that what fails inside is netless's doing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import netless
from netless import Isolation, _launcher, _native
from support import MUST_ISOLATE, launcher, need, need_module

pytestmark = [pytest.mark.isolated, pytest.mark.native, pytest.mark.standing]

PATIENCE = 120  # seconds; a browser on a busy machine takes some
IS_ROOT = os.geteuid() == 0
DEFAULT, PRIVATE, LOOPBACK = Isolation(), Isolation(private=True), Isolation(loopback=True)
EVERY = {"default": DEFAULT, "private": PRIVATE, "loopback": LOOPBACK}
DEBIAN_PYTHON = "/usr/bin/python3"

# bubblewrap run by uid 0 believes that it may make a namespace of mounts, unless it is told
# to make one of users first.
BWRAP = ("bwrap", *(["--unshare-user"] * IS_ROOT))
# A browser looks for the world: the control runs where there is none, by other means.
NOWHERE = ("unshare", "--user", "--map-root-user", "--net", "--")


@dataclass(frozen=True)
class Case:
    """One program: ``command`` makes it, ``shows`` is in what it prints when it works."""

    name: str
    command: Callable[[Path, Callable[..., str]], list[str]]
    shows: str
    names: tuple[str, ...] = tuple(EVERY)
    plain: tuple[str, ...] = ()


def sh(source: str) -> list[str]:
    return ["/bin/sh", "-ec", source]


def python(source: str, *arguments: str) -> list[str]:
    return [sys.executable, "-W", "error", "-c", source, *arguments]


def bwrap(folder: Path, programs: Callable[..., str]) -> list[str]:
    need("bwrap")
    return [*BWRAP, "--ro-bind", "/", "/", "echo", "in bwrap"]


def nested_bwrap(folder: Path, programs: Callable[..., str]) -> list[str]:
    need("bwrap")
    inner = ["bwrap", "--unshare-user", "--ro-bind", "/", "/", "echo", "in two"]
    return [*BWRAP, "--bind", "/", "/", *inner]


def unshare(folder: Path, programs: Callable[..., str]) -> list[str]:
    return [need("unshare"), "-Urm", *sh("true; echo mapped")]


def mount(folder: Path, programs: Callable[..., str]) -> list[str]:
    """A file system of its own, a bind mount, and a rename across directories of it."""
    (folder / "on").mkdir()
    source = (
        "mount -t tmpfs none on; mkdir on/a on/b; echo x > on/a/x; mv on/a/x on/b/y;"
        "ln on/b/y on/a/z; mount --bind on/b on/a; cat on/a/y; echo mounted"
    )
    return [need("unshare"), "-Urm", *sh(source)]


LEAK = """
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv)
{
    char *volatile memory = malloc(10);
    if (argc == 1)
        free(memory);
    memory = NULL;
    puts(argv[0]);
    return 0;
}
"""


def address_sanitizer(folder: Path, programs: Callable[..., str]) -> list[str]:
    """Its leak checker traces its own process; a leak must be found as well."""
    (folder / "leak.c").write_text(LEAK)
    build = [need("gcc"), "-g", "-fsanitize=address", "leak.c", "-o", "leak"]
    subprocess.run(build, cwd=folder, check=True)
    return sh("./leak; if ./leak on-purpose 2> found; then exit 1; fi; grep LeakSanitizer found")


PSUTIL = """
import psutil, subprocess, sys
def lower(process):
    soft, hard = process.rlimit(psutil.RLIMIT_NOFILE)
    process.rlimit(psutil.RLIMIT_NOFILE, (soft - 1, hard))
    assert process.rlimit(psutil.RLIMIT_NOFILE) == (soft - 1, hard)
lower(psutil.Process())
with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
    lower(psutil.Process(child.pid))
    child.stdin.close()
print("limits set")
"""


def psutil_limits(folder: Path, programs: Callable[..., str]) -> list[str]:
    need_module("psutil")
    return python(PSUTIL)


def test_suite_of_resource(folder: Path, programs: Callable[..., str]) -> list[str]:
    """CPython's own, from libpython3-testsuite."""
    found = subprocess.run([DEBIAN_PYTHON, "-c", "import test.test_resource"], capture_output=True)
    if found.returncode:
        (pytest.fail if MUST_ISOLATE else pytest.skip)("CPython's tests are not installed")
    return [DEBIAN_PYTHON, "-m", "test", "-v", "test_resource"]


test_suite_of_resource.__test__ = False  # the name is the program's, not a test's


def prlimit(folder: Path, programs: Callable[..., str]) -> list[str]:
    need("prlimit")
    return sh("prlimit --pid $$ --nofile=61:61; echo limit $(ulimit -n)")


def strace(folder: Path, programs: Callable[..., str]) -> list[str]:
    need("strace")
    trace = "strace -f -o trace sh -c 'true; echo seen'; grep -c 'execve(.*sh' trace"
    return sh(f"{trace}; grep 'write(1, \"seen' trace")


def gdb(folder: Path, programs: Callable[..., str]) -> list[str]:
    (folder / "leak.c").write_text(LEAK)
    subprocess.run([need("gcc"), "-g", "leak.c", "-o", "leak"], cwd=folder, check=True)
    steps = ["set debuginfod enabled off", "break main", "run", "bt", "continue"]
    options = [part for step in steps for part in ("-ex", step)]
    return [need("gdb"), "-nx", "-batch", *options, "./leak"]


JAVA = """
import java.net.*;
import java.util.concurrent.*;

public class Work {
    public static void main(String[] arguments) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(2);
        int number = pool.submit(() -> 6 * 7).get();
        pool.shutdown();
        if (arguments.length > 0) {
            ServerSocket server = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
            Socket client = new Socket(server.getInetAddress(), server.getLocalPort());
            server.accept().getOutputStream().write(number);
            number = client.getInputStream().read();
        }
        Process child = new ProcessBuilder("echo", "child").inheritIO().start();
        System.out.println("java " + (number + child.waitFor()));
    }
}
"""


def java(folder: Path, programs: Callable[..., str]) -> list[str]:
    """Compiles and runs one file: threads, a child process."""
    (folder / "Work.java").write_text(JAVA)
    return [need("java"), "Work.java"]


def java_server(folder: Path, programs: Callable[..., str]) -> list[str]:
    return [*java(folder, programs), "and talk"]


NODE = """
const { execFileSync, fork } = require('child_process');
const { Worker, isMainThread, parentPort } = require('worker_threads');
if (process.send) {
  process.send('from the fork');
} else if (!isMainThread) {
  parentPort.postMessage('from the thread');
} else {
  console.log(execFileSync('echo', ['from the program']).toString().trim());
  fork(__filename).on('message', text => {
    console.log(text);
    new Worker(__filename).on('message', text => console.log(text));
  });
}
"""


def node(folder: Path, programs: Callable[..., str]) -> list[str]:
    (folder / "work.js").write_text(NODE)
    return [need("node"), "work.js"]


NODE_SERVER = """
const http = require('http');
const server = http.createServer((request, answer) => answer.end('served'));
server.listen(0, '127.0.0.1', () => http.get(server.address(), answer => {
  answer.on('data', data => console.log(data.toString()));
  answer.on('end', () => server.close());
}));
"""


def node_server(folder: Path, programs: Callable[..., str]) -> list[str]:
    return [need("node"), "-e", NODE_SERVER]


PAGE = """<p id=here>static</p>
<script>document.getElementById("here").textContent = "made by " + "the script"</script>
"""
BROWSER = (
    *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--user-data-dir=profile", "--dump-dom"),
)


def chromium(folder: Path, programs: Callable[..., str]) -> list[str]:
    need("chromium")
    (folder / "page.html").write_text(PAGE)
    return [*BROWSER, f"file://{folder}/page.html"]


SERVE = """
import functools, http.server, subprocess, sys, threading
class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass
with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
    threading.Thread(target=server.serve_forever).start()
    page = f"http://127.0.0.1:{server.server_port}/page.html"
    status = subprocess.call([*sys.argv[1:], page])
    server.shutdown()
raise SystemExit(status)
"""


def chromium_and_server(folder: Path, programs: Callable[..., str]) -> list[str]:
    need("chromium")
    (folder / "page.html").write_text(PAGE)
    command = python(SERVE, *BROWSER)
    return sh('ip link set lo up 2> /dev/null || true; exec "$0" "$@"') + command


VITEST = """
import { expect, test } from 'vitest'
test('adds', () => { expect(1 + 2).toBe(3) })
"""
# Both run on Node 18, 20 and 22.
VITEST_PACKAGES = ("vitest@3", "vite@6")


def vitest(folder: Path, programs: Callable[..., str]) -> list[str]:
    (folder / "sum.test.js").write_text(VITEST)
    (folder / "node_modules").symlink_to(node_modules())
    return [need("node"), "node_modules/.bin/vitest", "run"]


def node_modules() -> Path:
    """Where vitest is: NETLESS_NODE_MODULES, or installed for this session."""
    chosen = os.environ.get("NETLESS_NODE_MODULES")
    if chosen is not None:
        return Path(chosen)
    if not made:
        made.append(tempfile.mkdtemp(prefix="vitest-"))
        command = [need("npm"), "install", "--silent", "--no-audit", "--no-fund"]
        command += ["--prefix", made[0], *VITEST_PACKAGES]
        subprocess.run(command, check=True, timeout=300)
    return Path(made[0], "node_modules")


made: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def _remove_node_modules():
    yield
    for folder in made:
        shutil.rmtree(folder)
    made.clear()


GIT = """
git init -q a
git -C a -c user.name=a -c user.email=a@b.invalid commit -q --allow-empty -m 'the commit'
git clone -q "file://$PWD/a" b
git -C b branch side; git -C b worktree add -q ../c side; git -C b gc -q
git -C c log --format=%s
"""


def git(folder: Path, programs: Callable[..., str]) -> list[str]:
    need("git")
    return sh(GIT)


def ssh_agent(folder: Path, programs: Callable[..., str]) -> list[str]:
    """Reached over a socket in the file system."""
    work = "ssh-keygen -q -t ed25519 -N '' -f key; ssh-add -q key; ssh-add -l"
    return [need("ssh-agent"), *sh(work)]


GPG = """
export GNUPGHOME=$(mktemp -d /tmp/gpg-XXXXXX)
trap 'gpgconf --kill all; rm -rf "$GNUPGHOME"' EXIT
gpg --batch -q --passphrase '' --quick-generate-key a@b.invalid ed25519 sign never
echo text | gpg --batch --clearsign | gpg --batch --verify 2>&1
"""


def gpg(folder: Path, programs: Callable[..., str]) -> list[str]:
    """With its agent, over sockets in the file system."""
    need("gpg")
    return sh(GPG)


SERVER = ("loopback",)
CASES = [
    Case("bwrap", bwrap, "in bwrap"),
    Case("bwrap in bwrap", nested_bwrap, "in two"),
    Case("unshare", unshare, "mapped"),
    Case("mount", mount, "x\nmounted"),
    Case("AddressSanitizer", address_sanitizer, "LeakSanitizer"),
    Case("psutil", psutil_limits, "limits set"),
    Case("test_resource", test_suite_of_resource, "SUCCESS"),
    Case("prlimit", prlimit, "limit 61"),
    Case("strace", strace, 'write(1, "seen'),
    Case("gdb", gdb, "#0  main (argc=1"),
    Case("java", java, "child\njava 42"),
    Case("java server", java_server, "child\njava 42", SERVER),
    Case("node", node, "from the program\nfrom the fork\nfrom the thread"),
    Case("node server", node_server, "served", SERVER),
    Case("chromium", chromium, "made by the script</p>", plain=NOWHERE),
    Case("chromium server", chromium_and_server, "made by the script</p>", SERVER, NOWHERE),
    Case("vitest", vitest, "1 passed"),
    Case("git", git, "the commit"),
    Case("ssh-agent", ssh_agent, "ED25519"),
    Case("gpg", gpg, "Good signature"),
]
CONTROLS: dict[str, str | None] = {}


def options_in(folder: Path) -> dict:
    """A home of its own, and words in English."""
    # CI and NO_COLOR: vitest's words without colours.
    environment = {**os.environ, "HOME": str(folder), "LC_ALL": "C", "CI": "1", "NO_COLOR": "1"}
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    return {**options, "cwd": folder, "env": environment, "timeout": PATIENCE}


def wrong(case: Case, done: subprocess.CompletedProcess) -> str | None:
    """What is wrong with it; None when it works."""
    # LeakSanitizer speaks on stderr, and so does a test suite.
    if done.returncode == 0 and case.shows in done.stdout:
        return None
    return f"{case.name}: status {done.returncode}\n{done.stdout}\n{done.stderr}"


def fresh(folder: Path) -> Path:
    folder.mkdir()
    return folder


def by_run(command: list[str], isolation: Isolation, **options) -> subprocess.CompletedProcess:
    return netless.run(command, isolation=isolation, **options)


def by_launcher(command: list[str], isolation: Isolation, **options):
    return subprocess.run(_launcher.command(launcher(), command, isolation), **options)


STARTS = [by_run, by_launcher]
WAYS = [(case, name) for case in CASES for name in case.names]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(("case", "name"), WAYS, ids=[f"{c.name}-{name}" for c, name in WAYS])
def test_works_inside(case: Case, name: str, start, tmp_path: Path, programs) -> None:
    if case.name not in CONTROLS:
        outside = fresh(tmp_path / "outside")
        command = [*case.plain, *case.command(outside, programs)]
        CONTROLS[case.name] = wrong(case, subprocess.run(command, **options_in(outside)))
    assert CONTROLS[case.name] is None, "not even without netless: " + CONTROLS[case.name]
    inside = fresh(tmp_path / "inside")
    done = start(case.command(inside, programs), EVERY[name], **options_in(inside))
    assert wrong(case, done) is None, wrong(case, done)


# ---- renames and links ----

ACROSS = """
import os
os.makedirs("a/deep"); os.mkdir("b")
for name in ("file", "other", "deep/file"):
    open(f"a/{name}", "w").close()
os.rename("a/file", "b/file")
os.replace("a/other", "b/file")
os.rename("a/deep", "b/deep")
os.link("b/file", "a/linked")
os.rename("b", "a/b")
print(sorted(os.listdir("a")), sorted(os.listdir("a/b")))
"""
MOVED = "['b', 'linked'] ['deep', 'file']\n"

# What starts it, as a caller's program: ISOLATION-JSON COMMAND...
PLAIN = "raise SystemExit(subprocess.call(sys.argv[2:]))"
CALLERS = {
    "Popen": "raise SystemExit(netless.call(sys.argv[2:], isolation=isolation))",
    "preexec_fn": (
        "raise SystemExit(netless.call(sys.argv[2:], isolation=isolation, preexec_fn=int))"
    ),
    "netless-exec": "os.execv(*(lambda a: (a[0], a))(_launcher.command("
    "_launcher.find(), sys.argv[2:], isolation)))",
    "isolate": "netless.isolate(isolation); os.execv(sys.argv[2], sys.argv[2:])",
    "fork worker": (
        "p = netless.get_context('fork', isolation).Process("
        "target=os.execv, args=(sys.argv[2], sys.argv[2:])); p.start(); p.join();"
        "raise SystemExit(p.exitcode)"
    ),
}
IMPORTS = (
    "import json, os, subprocess, sys, netless; from netless import _launcher;"
    "isolation = netless.Isolation(**json.loads(sys.argv[1]));"
)


@pytest.fixture(params=["ordinary caller", "caller in a Landlock domain"])
def around(request: pytest.FixtureRequest, programs) -> list[str]:
    """What the caller of netless is started by."""
    if request.param == "ordinary caller":
        return []
    if _native.landlock_abi() < 1:
        pytest.skip("this kernel has no Landlock")
    return [programs("landlock.c", "-static"), "--"]


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("options", [{}, {"private": True}, {"loopback": True}], ids=list(EVERY))
def test_renames_and_links_across_directories(
    options: dict, caller: str, around: list[str], tmp_path: Path
) -> None:
    """A domain that handles no files forbids them, too, once another one does: EXDEV."""
    argv = [json.dumps(options), *python(ACROSS)]
    for name, source in (("subprocess", PLAIN), (caller, CALLERS[caller])):
        folder = fresh(tmp_path / name)
        command = [*around, *python(IMPORTS + source, *argv)]
        done = subprocess.run(command, **options_in(folder))
        assert (done.returncode, done.stdout) == (0, MOVED), f"{name}: {done.stderr}"
