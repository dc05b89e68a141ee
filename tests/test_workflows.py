"""The workflows: what GitHub would read, held to what this project wants of them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.build
ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".github" / "workflows"

if not FOLDER.exists():
    pytest.skip("the tests are not in a checkout", allow_module_level=True)

WORKFLOWS = sorted(FOLDER.glob("*.yml"))
each = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def jobs(text: str) -> dict[str, str]:
    """The text of each job by its name: two spaces of indentation below ``jobs:``."""
    _, *parts = re.split(r"^  (\w+):\n", text.partition("\njobs:\n")[2], flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_top_level_link_leads_to_the_workflow() -> None:
    """GitHub reads real files only, so the link is the other way round."""
    assert os.readlink(ROOT / "wheels.yml") == ".github/workflows/wheels.yml"
    assert not any(path.is_symlink() for path in WORKFLOWS)
    assert [path.name for path in WORKFLOWS] == ["tests.yml", "wheels.yml"]


@each
def test_actions_are_pinned_by_commit(path: Path) -> None:
    uses = [line for line in path.read_text().splitlines() if "uses:" in line]
    assert uses
    for line in uses:
        assert re.fullmatch(r" +- uses: [\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


def test_one_commit_for_each_action() -> None:
    pins = {
        found for path in WORKFLOWS for found in re.findall(r"uses: (\S+@\S+.*)", path.read_text())
    }
    assert len(pins) == len({pin.partition("@")[0] for pin in pins})


@each
def test_permissions_are_the_least(path: Path) -> None:
    text = path.read_text()
    assert "\npermissions: {}\n" in text
    for name, job in jobs(text).items():
        granted = re.findall(r"^    permissions:\n((?:      .+\n)+)", job, re.MULTILINE)
        assert len(granted) == 1, name
        wanted = "id-token: write" if name == "publish" else "contents: read"
        assert granted[0].partition("#")[0].strip() == wanted, name
        assert "timeout-minutes:" in job, name
        assert job.count("actions/checkout@") == job.count("persist-credentials: false"), name


def test_publishing_waits_for_everything_and_runs_nothing_of_ours() -> None:
    every = jobs((FOLDER / "wheels.yml").read_text())
    publish = every.pop("publish")
    needed = re.search(r"needs: \[(.+)\]", publish)
    assert needed is not None
    assert needed[1].split(", ") == list(every)
    assert "environment:" in publish
    assert "startsWith(github.ref, 'refs/tags/v')" in publish
    assert "run:" not in publish
    assert not any("secrets." in path.read_text() for path in WORKFLOWS)
