"""tox and nox: commands have no network, what installs has."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hosting import WITHOUT_NAMESPACES, Index, Place, blocks
from support import PATIENCE, Listener, need, need_module

(PAGE,) = blocks("integrations.md", "ini")
COMMANDS = """
package = wheel
pass_env = TRY_*
commands_pre = python attempt.py pre
commands = python attempt.py commands
commands_post = python attempt.py post
"""
ASKED = "commands =\n    python -m pytest\n"
assert ASKED in PAGE
SHORT = """
[tox]
no_package = true

[testenv]
no_network = true
pass_env = TRY_*
"""


@pytest.fixture(autouse=True)
def host() -> None:
    need_module("tox")


def tox(place: Place, package: Path, *arguments: object, prefix: tuple[str, ...] = (), **options):
    root = ["--root", package, "--workdir", place.folder / "work", "-c", package / "tox.ini"]
    command = [*prefix, sys.executable, "-m", "tox", *arguments[:1], *root, *arguments[1:]]
    return place.run(*command, **options)


def configure(package: Path, text: str) -> None:
    (package / "tox.ini").write_text(text)


def test_configuration_of_the_page(
    place: Place, package: Path, report, index: Index, listener4: Listener
) -> None:
    configure(package, PAGE.replace(ASKED, COMMANDS) + "[pkgenv]\npass_env = TRY_*\n")
    (package / "requirements.txt").write_text("needed\n")
    before = index.requests
    done = tox(place, package, "run")
    assert "tests: OK" in done.stdout
    assert "> python attempt.py commands\n" in done.stdout, "the wrapper is shown"
    assert report() == (
        "requires reached\nwheel reached\npre refused 101\ncommands refused 101\npost refused 101\n"
    )
    assert index.requests > before, "nothing was installed"
    reached = listener4.reached
    tox(place, package, "exec", "-e", "tests", "--", "python", "attempt.py", "exec")
    assert report() == "exec refused 101\n"
    assert listener4.reached == reached
    tox(place, package, "run", "--skip-pkg-install", "-x", "testenv.no_network=false")
    assert report() == "pre reached\ncommands reached\npost reached\n"
    assert listener4.reached > reached


def test_loopback_of_its_own(place: Place, package: Path, report) -> None:
    own = "import socket; s = socket.create_server(('127.0.0.1', 0))\n"
    own += "socket.create_connection(s.getsockname())"
    (package / "own.py").write_text(own)
    commands = "commands =\n    python attempt.py loopback\n    python own.py\n"
    configure(package, SHORT + "no_network_loopback = true\n" + commands)
    assert "OK" in tox(place, package, "run").stdout
    assert report() == "loopback refused 111\n"
    done = tox(place, package, "run", "-x", "testenv.no_network_loopback=false", check=False)
    assert done.returncode == 1
    assert "Network is unreachable" in done.stdout + done.stderr or "Cannot assign" in done.stderr


def test_commands_are_toxs_as_before(place: Place, package: Path, report) -> None:
    """Exit status, what may be called, and a program that is not there."""
    configure(package, SHORT + "commands = python -c 'raise SystemExit(7)'\n")
    assert tox(place, package, "run", check=False).returncode == 7
    configure(package, SHORT + "commands = ls\n")
    done = tox(place, package, "run", check=False)
    assert done.returncode == 1
    assert "ls is not allowed, use allowlist_externals to allow it" in done.stdout
    configure(package, SHORT + "allowlist_externals = ls\ncommands = ls tox.ini\n")
    assert "tox.ini\n" in tox(place, package, "run").stdout
    configure(package, SHORT + "commands =\n    no-such-program\n    python attempt.py after\n")
    done = tox(place, package, "run", check=False)
    assert done.returncode == 127
    assert "no-such-program: No such file or directory" in done.stdout + done.stderr
    assert report() == ""


def test_commands_that_cannot_be_isolated_are_not_run(place: Place, package: Path, report) -> None:
    need("unshare")
    configure(package, SHORT + COMMANDS.replace("pass_env = TRY_*\n", ""))
    done = tox(place, package, "run", check=False, prefix=WITHOUT_NAMESPACES)
    assert done.returncode == 1
    assert "failed with cave_sandbox_os_network_isolation_unavailable: " in done.stdout
    assert report() == ""
    off = ["-x", "testenv.no_network=false"]
    tox(place, package, "run", *off, prefix=WITHOUT_NAMESPACES)
    assert report() == "pre reached\ncommands reached\npost reached\n"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("no_network = perhaps\n", "perhaps"),
        ("no_network = false\nno_network_loopback = true\n", "no_network_loopback says nothing"),
    ],
)
def test_settings_that_cannot_be_meant_are_errors(
    settings: str, expected: str, place: Place, package: Path, report
) -> None:
    text = SHORT.replace("no_network = true\n", settings)
    configure(package, text + "commands = python attempt.py commands\n")
    done = tox(place, package, "run", check=False)
    assert done.returncode not in (None, 0)
    assert expected in done.stdout + done.stderr
    assert report() == ""


def test_environments_that_build_have_no_such_setting(place: Place, package: Path, report) -> None:
    environment = "[testenv]\npass_env = TRY_*\ncommands = python attempt.py commands\n"
    configure(package, environment + "[testenv:.pkg]\nno_network = true\n")
    done = tox(place, package, "run", "-e", "py", check=False)
    assert done.returncode not in (None, 0)
    assert "no_network is for environments that run commands, .pkg builds packages" in done.stdout
    assert "Traceback" not in done.stderr
    assert report() == ""


def test_interrupted_commands_end(place: Place, package: Path) -> None:
    (package / "waits.py").write_text("import time; print('waits', flush=True); time.sleep(600)")
    configure(package, SHORT + "commands = python waits.py\n")
    command = [sys.executable, "-m", "tox", "run", "--workdir", place.folder / "work"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, cwd=package, env=place.environment, text=True
    ) as process:
        while "waits\n" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(PATIENCE) != 0


def test_nox_as_on_the_page(
    place: Place, package: Path, report, index: Index, listener4: Listener
) -> None:
    need_module("nox")
    (source,) = (block for block in blocks("integrations.md", "python") if "import nox" in block)
    asked = "import os, sys; assert os.environ['VIRTUAL_ENV'] == sys.prefix; import needed, attempt"
    command = ["python", "-c", asked + "; attempt.attempt('nox')"]
    source = source.replace('["pytest"]', repr(command)).replace('"pytest"', '"needed"')
    ours = f"netless.wrapper_command({command})"
    assert ours in source
    for text, outcome in (
        (source, "refused 101"),
        (source.replace(ours, repr(command)), "reached"),
    ):
        (package / "noxfile.py").write_text(text)
        before = listener4.reached, index.requests
        place.run(sys.executable, "-m", "nox", "-f", package / "noxfile.py")
        assert report() == f"nox {outcome}\n"
        assert (listener4.reached > before[0]) == (outcome == "reached")
        assert index.requests > before[1], "nothing was installed"
