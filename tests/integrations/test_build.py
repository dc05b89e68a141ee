"""build: what a package needs is installed with network, its hooks run without."""

from __future__ import annotations

from pathlib import Path

import pytest

from hosting import WITHOUT_NAMESPACES, Index, Place, blocks
from support import Listener, need, need_module

(PAGE,) = (block for block in blocks("integrations.md", "python") if "runner" in block)
OURS = "from netless.integrations.build import runner"
CONTROL = """
import pyproject_hooks

def runner():
    return pyproject_hooks.default_subprocess_runner
"""
assert OURS in PAGE


@pytest.fixture(autouse=True)
def host() -> None:
    need_module("build")


def build(place: Place, package: Path, source: str = PAGE, **options):
    target = place.folder / "dist"
    return place.script(source, package, target, **options)


def test_hooks_have_no_network_and_requirements_are_installed(
    place: Place, package: Path, report, index: Index, listener4: Listener
) -> None:
    before, asked = listener4.reached, index.requests
    done = build(place, package)
    assert Path(done.stdout.splitlines()[-1]).exists()
    assert report() == "requires refused 101\nwheel refused 101\n"
    assert listener4.reached == before
    assert index.requests > asked, "the requirement was not installed"
    build(place, package, PAGE.replace(OURS, CONTROL))
    assert report() == "requires reached\nwheel reached\n"
    assert listener4.reached > before


def test_failed_hook_is_what_build_makes_of_it(place: Place, package: Path, report) -> None:
    for source in (PAGE, PAGE.replace(OURS, CONTROL)):
        done = build(place, package, source, env={"TRY_FAILING": "1"}, check=False)
        assert done.returncode == 1
        assert "build.BuildBackendException" in done.stderr.replace("build._exceptions", "build")


def test_hooks_that_cannot_be_isolated_are_not_run(
    place: Place, package: Path, report, index: Index
) -> None:
    need("unshare")
    done = build(place, package, check=False, prefix=WITHOUT_NAMESPACES)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "NetworkIsolationUnavailable('user-namespaces-disabled', 'raise it:" in last
    assert report() == ""
    assert index.requests > 0
    build(place, package, PAGE.replace(OURS, CONTROL), prefix=WITHOUT_NAMESPACES)
    assert report() == "requires reached\nwheel reached\n"


def test_runner_is_called_as_pyproject_hooks_does(place: Place, package: Path, report) -> None:
    """Without build, in this very environment; a failed hook is a CalledProcessError."""
    source = """
        import subprocess, sys
        import netless
        from netless.integrations.build import runner
        from pyproject_hooks import BuildBackendHookCaller

        for isolation in (True, None, "private"):
            try:
                runner(isolation)
            except TypeError as error:
                assert "netless.Isolation" in str(error)
            else:
                raise AssertionError(isolation)
        isolation = netless.Isolation(loopback=True)
        caller = BuildBackendHookCaller(sys.argv[1], "backend", ["."], runner=runner(isolation))
        print(caller.get_requires_for_build_wheel(), flush=True)
        try:
            runner()([sys.executable, "-c", "import os; print(os.getcwd(), os.environ['A']); 1/0"],
                     cwd="/", extra_environ={"A": "b"})
        except subprocess.CalledProcessError as error:
            print(error.returncode)
    """
    needed = package / "needed.py"
    needed.write_text("")
    done = place.script(source, package)
    assert done.stdout == "[]\n/ b\n1\n"
    assert report() == "requires refused 111\n"
