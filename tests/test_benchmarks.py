"""The benchmarks run and answer every question; their numbers are no test."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from support import need

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("spawn", "memory", "threads", "stall", "loop", "cpu", "getppid", "imports", "scale")
ALWAYS = {
    "subprocess.Popen",
    "netless shared",
    "netless private",
    "netless loopback",
    "netless unix_sockets=False",
    "netless without any layer",
    "C: vfork + exec",
    "C: the same + seal",
    "C: private + seal",
}

pytestmark = [pytest.mark.isolated, pytest.mark.build]


def benchmarks(*arguments: str) -> str:
    need("gcc")
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    ).stdout


def medians(table: dict[str, object]) -> list[float]:
    """All of them, however deep."""
    if "median" in table:
        return [table["median"]]
    return [median for inner in table.values() for median in medians(inner)]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("benchmarks")
    file, picture = folder / "results.json", folder / "cost.svg"
    text = benchmarks("--quick", "--json", str(file), "--picture", str(picture))
    return json.loads(file.read_text()), text, picture


def test_every_part_has_numbers(quick):
    results, _, _ = quick
    for part in PARTS:
        assert medians(results[part])
        assert all(median > 0 for median in medians(results[part]))


def test_all_contenders_start_the_same_children(quick):
    spawn = quick[0]["spawn"]
    assert set(spawn) == {"static no-op", "/bin/true", "python -c pass", "captured output"}
    assert set(spawn["static no-op"]) >= ALWAYS


def test_a_contender_is_measured_or_left_out_with_a_word(quick):
    results, text, _ = quick
    for name in (
        "netless filter",
        "netless wrapper",
        "netless-exec",
        "unshare",
        "bwrap",
        "firejail",
    ):
        is_measured = name in results["spawn"]["static no-op"]
        assert is_measured != (name in results["skipped"])
        assert name in text


def test_every_target_is_next_to_its_number(quick):
    results, text, _ = quick
    for row in results["targets"]:
        assert row["what"] in text
        tools = set(row["what"].replace(",", "").split(" "))
        assert row["ratio"] is not None or tools & results["skipped"].keys()


def test_the_machine_heads_the_output(quick):
    results, text, _ = quick
    assert text.startswith("| machine")
    assert {"kernel", "processor", "cores", "python"} <= set(results["machine"])


def test_the_picture_is_svg_with_a_line_per_contender(quick):
    results, _, picture = quick
    root = ElementTree.parse(picture).getroot()
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    sizes = next(iter(results["memory"].values()))
    assert len(lines) == len(sizes) + len(results["threads"])


def test_the_soak_looks_three_times(tmp_path: Path):
    file = tmp_path / "soak.json"
    benchmarks("--quick", "--only", "cpu", "--soak", "40", "--json", str(file))
    states = json.loads(file.read_text())["soak"]
    assert [state["spawned"] for state in states] == [1, 20, 40]
    assert len({state["descriptors"] for state in states}) == 1
    assert {state["children"] for state in states} == {0}


def test_system_calls_are_counted_for_both(tmp_path: Path):
    need("strace")
    file = tmp_path / "calls.json"
    benchmarks("--quick", "--only", "cpu", "--syscalls", "--json", str(file))
    counts = json.loads(file.read_text())["syscalls"]
    assert counts["netless shared"]["child"]["setns"] == 2
    assert "setns" not in counts["subprocess.Popen"]["child"]
    assert counts["netless shared"]["child"]["execve"] == 1
