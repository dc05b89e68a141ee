"""Listeners, helper programs and the rule that a missing isolation is a failure in CI."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

if os.environ.get("NETLESS_TEST_WITHOUT_EXTENSION") == "1":
    sys.modules["netless._spawn"] = None  # as on a machine without a compiler

import netless
from support import MUST_ISOLATE, WITHOUT_EXTENSION, ByLauncher, Listener, launcher, need

HERE = Path(__file__).resolve().parent


def pytest_configure(config: pytest.Config) -> None:
    if WITHOUT_EXTENSION:  # as these tests want it; test_packaging has those of the warning
        ignored = "ignore:the native extension of netless is missing:RuntimeWarning"
        config.addinivalue_line("filterwarnings", ignored)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if WITHOUT_EXTENSION and item.get_closest_marker("native"):
            item.add_marker(pytest.mark.skip(reason="what only the extension can give"))
    found = netless.probe()
    if found.available or MUST_ISOLATE:
        return
    for item in items:
        if item.get_closest_marker("isolated"):
            item.add_marker(pytest.mark.skip(reason=f"no isolation here: {found.error}"))


@pytest.fixture(params=["Popen", "netless-exec"])
def way_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the same test body by netless.Popen and by the launcher."""
    if request.param == "netless-exec":
        if WITHOUT_EXTENSION:
            pytest.skip("there is no launcher without a compiler")
        launcher()
        monkeypatch.setattr(request.module, "netless", ByLauncher())


@pytest.fixture(scope="session")
def listener4():
    listener = Listener(socket.AF_INET, "127.0.0.1")
    yield listener
    listener.close()


@pytest.fixture(scope="session")
def listener6():
    listener = Listener(socket.AF_INET6, "::1")
    yield listener
    listener.close()


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory):
    """Compiles one of tests/programs: programs("connect.c", "-static")."""
    folder = tmp_path_factory.mktemp("programs")

    def build(source: str, *flags: str) -> str:
        need("gcc")
        if "-m32" in flags and platform.machine() != "x86_64":
            pytest.skip("this machine runs no 32-bit x86 programs")
        name = source.removesuffix(".c") + "".join(flags).replace("-", "_").replace("=", "_")
        target = folder / name
        if not target.exists():
            done = subprocess.run(
                ["gcc", "-O1", "-Wall", "-o", target, HERE / "programs" / source, *flags],
                stderr=subprocess.PIPE,
                text=True,
            )
            if done.returncode != 0:
                no_library = flags and not MUST_ISOLATE
                (pytest.skip if no_library else pytest.fail)(done.stderr)
        return str(target)

    return build


@pytest.fixture
def marker(tmp_path: Path):
    """A file that a child writes when it runs: ``marker.command`` writes it."""

    class Marker:
        path = tmp_path / "the child ran"
        command = ("/bin/sh", "-c", 'echo ran > "$0"', str(path))

        def written(self) -> bool:
            return self.path.exists()

    return Marker()


@pytest.fixture
def script(tmp_path: Path):
    """Runs Python source in a fresh interpreter, with warnings as errors."""

    def run(source: str, *arguments: str, prefix: tuple[str, ...] = (), **options):
        file = tmp_path / f"script{len(list(tmp_path.iterdir()))}.py"
        file.write_text(textwrap.dedent(source))
        options = {"capture_output": True, "text": True, "timeout": 300, **options}
        return subprocess.run(
            [*prefix, sys.executable, "-W", "error", str(file), *map(str, arguments)], **options
        )

    return run
