"""The test-suite of fromager, which isolates builds by a script around ``unshare``, with netless.

Not part of the default run, since it installs another project. One command::

    python tests/projects/fromager.py [FOLDER]

It takes the sdist from PyPI, installs it and runs its suite twice: as it is, and with
``netless run --loopback`` in place of its script.  Both runs are in a namespace without
network, so that no test of theirs reaches out; the few that would install packages
fail in both.  Exit status 1 if a test fails with netless only.  ``host`` (Debian:
bind9-host) must be there for the one test that looks up a name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from xml.etree import ElementTree

import netless

VERSION = "0.77.0"
INSIDE = netless.Isolation(loopback=True)
PLUGIN = """
from fromager import external_commands

external_commands.NETWORK_ISOLATION = {command!r}
original, used = external_commands.network_isolation_cmd, []


def network_isolation_cmd():
    used.append(1)
    return original()


external_commands.network_isolation_cmd = network_isolation_cmd


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"isolated commands: {{len(used)}} by {{original()[0]}}")
"""


def install(folder: Path) -> Path:
    """An environment with fromager; beside it, its sources."""
    environment = folder / "venv"
    venv.create(environment, with_pip=True)
    pip = [environment / "bin" / "pip", "--disable-pip-version-check"]
    sdist = ["--no-deps", "--no-binary", "fromager", "--no-build-isolation"]
    # What the metadata of the sdist is made with.
    subprocess.check_call([*pip, "install", "-q", "hatchling", "hatch-vcs"])
    target = ["--dest", folder, f"fromager=={VERSION}"]
    subprocess.check_call([*pip, "download", "-q", *sdist, *target])
    (archive,) = folder.glob("fromager-*.tar.gz")
    shutil.unpack_archive(archive, folder, filter="data")
    sources = folder / archive.name.removesuffix(".tar.gz")
    subprocess.check_call([*pip, "install", "-q", f"{sources}[test]"])
    return environment


def suite(folder: Path, name: str, command: list[str]) -> dict[str, str]:
    """What became of each test, with this command in place of the script."""
    (folder / "in_place_of_the_script.py").write_text(PLUGIN.format(command=command))
    report = folder / f"{name}.xml"
    python = [folder / "venv" / "bin" / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = netless.run(
        [*python, "-p", "in_place_of_the_script", "--tb=no", f"--junit-xml={report}", "tests"],
        isolation=INSIDE,
        cwd=folder / f"fromager-{VERSION}",
        env={
            **os.environ,
            "PATH": f"{folder / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(folder),
        },
        stdout=subprocess.PIPE,
        text=True,
        timeout=1800,
    )
    print(*(line for line in done.stdout.splitlines() if "isolated commands" in line), sep="\n")
    return {
        f"{case.get('classname')}::{case.get('name')}": case[0].tag if len(case) else "passed"
        for case in ElementTree.parse(report).iter("testcase")
    }


def main(folder: Path) -> int:
    """Both runs, and what differs."""
    environment = install(folder)
    script = next(environment.glob("lib/*/site-packages/fromager/run_network_isolation.sh"))
    launcher = [sys.executable, "-m", "netless", "run", "--loopback", "--"]
    found = {
        "the script": suite(folder, "script", [str(script)]),
        "netless": suite(folder, "netless", launcher),
    }
    for name, results in found.items():
        outcomes = list(results.values())
        print(f"{name}:", *(f"{outcomes.count(kind)} {kind}" for kind in sorted({*outcomes})))
        print(
            *(f"    {test}: {kind}" for test, kind in results.items() if kind != "passed"), sep="\n"
        )
    worse = {
        test
        for test, outcome in found["netless"].items()
        if outcome != "passed" and found["the script"].get(test) == "passed"
    }
    print(*(f"only with netless: {test}" for test in sorted(worse)), sep="\n")
    return 1 if worse else 0


if __name__ == "__main__":
    if len(sys.argv) > 1:
        raise SystemExit(main(Path(sys.argv[1]).absolute()))
    with tempfile.TemporaryDirectory() as scratch:
        raise SystemExit(main(Path(scratch)))
