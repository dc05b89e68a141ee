"""netless.integrations where a host is missing or too new, and that nobody else imports them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import netless
from support import PATIENCE, need

HOSTS = {  # module: its host on an index, a major version that was not tried
    "build": ("pyproject_hooks", "2.0"),
    "jupyter": ("jupyter_client", "9.1"),
    "mcp": ("mcp", "3.0"),
    "tox": ("tox", "5.0.1"),
}
hosts = pytest.mark.parametrize("module", HOSTS)


def run(source: str, *folders: Path, alone: bool = False) -> subprocess.CompletedProcess:
    """A fresh interpreter that finds netless, what ``folders`` hold, and unless alone the rest."""
    if alone:
        source = f"import sys; sys.path[:] = [p for p in sys.path if 'packages' not in p]\n{source}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", source],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def distribution(folder: Path, name: str, version: str) -> None:
    """What an installed distribution says of itself."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder that holds netless and nothing else."""
    folder = tmp_path / "alone"
    folder.mkdir()
    (folder / "netless").symlink_to(Path(netless.__file__).parent)
    return folder


@hosts
def test_missing_host_names_the_extra(module: str, package: Path) -> None:
    source = f"import netless\nimport netless.integrations.{module}"
    done = run(source, package, alone=True)
    host, _ = HOSTS[module]
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: netless.integrations.{module} needs {host}, which is not installed: "
        f"pip install 'netless[{module}]'"
    )


@hosts
def test_host_of_another_major_version_is_refused(
    module: str, package: Path, tmp_path: Path
) -> None:
    """Before anything of it is imported: this one has nothing but a version."""
    host, version = HOSTS[module]
    newer = tmp_path / "newer"
    newer.mkdir()
    distribution(newer, host, version)
    done = run(f"import netless.integrations.{module}", newer, package)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: netless.integrations.{module} supports {host} ")
    assert last.endswith(f", but {version} is installed: pip install 'netless[{module}]'")


def test_nobody_imports_an_integration() -> None:
    """Neither netless nor what it imports late: pools, event loops, the command line."""
    source = """
import sys
import netless
early = set(sys.modules)
import netless.aio, netless.cli, netless.doctor, netless.pool
from netless import *
netless.run(["true"]), netless.probe(), netless.wrapper_command(["true"])
hosts = ("build", "importlib.metadata", "jupyter_client", "mcp", "pyproject_hooks", "tox")
for modules, names in ((early, hosts), (set(sys.modules), set(hosts) - {"importlib.metadata"})):
    print([m for m in modules if "integrations" in m or m.startswith(tuple(names))])
"""
    done = run(source)
    assert done.stdout == "[]\n[]\n", done.stderr


def test_package_itself_imports_no_host(package: Path) -> None:
    done = run("import netless.integrations; print(netless.__name__)", package, alone=True)
    assert done.stdout == "netless\n", done.stderr


@pytest.mark.isolated
def test_command_for_any_other_host_as_on_the_page() -> None:
    page = Path(__file__).resolve().parent.parent / "docs" / "integrations.md"
    last = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)[-1]
    names: dict[str, list[str]] = {}
    exec(last, names)
    assert names["command"][-3:] == ["--", need("make"), "check"]
