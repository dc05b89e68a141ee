"""Installation with and without a compiler, from this very checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from support import MUST_ISOLATE

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.isolated


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, since a build leaves files."""
    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("the tests are not in a checkout")
    copy = tmp_path_factory.mktemp("source") / "netless"
    ignore = shutil.ignore_patterns("*.so", "build", "*.egg-info", ".git", "__pycache__")
    shutil.copytree(ROOT, copy, ignore=ignore, symlinks=True)
    return copy


BUILD_TOOLS = ("setuptools", "_distutils_hack", "pkg_resources", "cffi", "pycparser")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with this one's setuptools and cffi, and nothing else of it."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    for outer in (Path(path) for path in sys.path if path.endswith("site-packages")):
        for name in BUILD_TOOLS:
            for found in (*outer.glob(name), *outer.glob(f"{name}-*.dist-info")):
                replace(site / found.name, found)
        for found in outer.glob("_cffi_backend*"):
            replace(site / found.name, found)
    return folder


def replace(target: Path, source: Path) -> None:
    if target.is_dir():
        shutil.rmtree(target)
    if not target.exists():
        target.symlink_to(source)


def install(environment: Path, source: Path, **variables: str) -> subprocess.CompletedProcess:
    """``pip install`` where no compiler is on the path."""
    command = [environment / "bin" / "python", "-m", "pip", "install", "--no-build-isolation"]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("NETLESS", "CC", "PYTHON"))}
    clean["PATH"] = str(environment / "bin")
    return subprocess.run(
        [*command, "--no-deps", "--no-index", "--force-reinstall", str(source)],
        env={**clean, **variables},
        capture_output=True,
        text=True,
    )


def has_build_tools(environment: Path) -> bool:
    check = "import setuptools, cffi; assert int(setuptools.__version__.split('.')[0]) >= 77"
    return subprocess.run([environment / "bin" / "python", "-c", check]).returncode == 0


@pytest.fixture(scope="module")
def without_compiler(environment: Path, source: Path) -> Path:
    if not has_build_tools(environment):
        assert not MUST_ISOLATE, "setuptools 77 and cffi are not installed beside the tests"
        pytest.skip("setuptools 77 and cffi are not installed beside the tests")
    done = install(environment, source)
    assert done.returncode == 0, done.stderr + done.stdout
    return environment


def test_installs_without_a_compiler_and_isolates(without_compiler: Path) -> None:
    source = (
        "import netless, os, subprocess;"
        "import netless._popen as p; assert not p._native.is_available();"
        "link = ['readlink', '/proc/self/ns/net'];"
        "assert netless.check_output(link) != subprocess.check_output(link);"
        "print(netless.probe().mechanism)"
    )
    python = without_compiler / "bin" / "python"
    done = subprocess.run([python, "-c", source], capture_output=True, text=True, cwd="/")
    assert done.stdout == "wrapper\n", done.stderr


def test_command_line_works_without_a_compiler(without_compiler: Path) -> None:
    netless = without_compiler / "bin" / "netless"
    run = [netless, "run", "--"]
    inside = subprocess.check_output([*run, "readlink", "/proc/self/ns/net"], text=True)
    assert inside.strip() != os.readlink("/proc/self/ns/net")
    for command, status in (
        (["/bin/sh", "-c", "exit 7"], 7),
        (["/no/such/program"], 127),
        (["/etc/passwd"], 126),
    ):
        done = subprocess.run([*run, *command], capture_output=True, text=True)
        assert done.returncode == status, done.stderr
    told = subprocess.run([netless, "doctor"], capture_output=True, text=True)
    assert told.returncode == 0
    assert "ready (wrapper)" in told.stdout
    assert "extension: no" in told.stdout


def test_required_extension_makes_a_missing_compiler_an_error(
    environment: Path, source: Path
) -> None:
    assert install(environment, source, NETLESS_REQUIRE_NATIVE="1").returncode != 0
