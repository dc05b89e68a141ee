"""Installation with and without a compiler, from this very checkout."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import netless
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


# ---- one version ----


def test_extension_of_another_version_is_refused(tmp_path: Path) -> None:
    """Neither used nor passed over for the wrapper."""
    copy = tmp_path / "netless"
    shutil.copytree(
        Path(netless.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__")
    )
    file = copy / "__init__.py"
    text = file.read_text()
    file.write_text(text.replace(f'__version__ = "{netless.__version__}"', '__version__ = "99.0"'))
    command = [sys.executable, "-c", "import netless; print(netless.__version__)"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True)
    if not netless._native.is_available():  # the control: nothing to refuse
        assert done.stdout == "99.0\n"
        return
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert message.startswith("ImportError: the extension netless._spawn was built as version")
    assert f" {netless.__version__}, but netless is 99.0:" in message
    assert "pip install" in message


@pytest.mark.parametrize("disabled", [0, 1])
def test_free_threaded_builds_have_no_stable_abi(
    disabled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.14t cannot load abi3: its wheel must not claim to be one."""
    setup = ROOT / "setup.py"
    if not setup.exists():
        pytest.skip("the tests are not in a checkout")
    setuptools = pytest.importorskip("setuptools")
    told: dict[str, object] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **keywords: told.update(keywords))
    found = sysconfig.get_config_var
    monkeypatch.setattr(
        sysconfig,
        "get_config_var",
        lambda name: disabled if name == "Py_GIL_DISABLED" else found(name),
    )
    monkeypatch.chdir(ROOT)
    runpy.run_path(str(setup))
    has_tag = told["options"] == {"bdist_wheel": {"py_limited_api": "cp310"}}
    assert has_tag == (not disabled and sys.implementation.name == "cpython")
    assert has_tag or not told["options"]
