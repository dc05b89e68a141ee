"""The judge of ``python -m tests.kernels``, and the table that a run of it left in the docs."""

from __future__ import annotations

import datetime
import re
import sys
from pathlib import Path

import pytest

from netless import _native

ROOT = Path(__file__).resolve().parent.parent
pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux kernels"),
]


@pytest.fixture(scope="module")
def kernels():
    if _native.lib is None:
        pytest.skip("the judge asks the extension what a plan promises")
    sys.path.insert(0, str(ROOT))
    try:
        from tests.kernels import __main__ as module
    finally:
        sys.path.remove(str(ROOT))
    return module


def broken(kernels, lines: list[str], claims: set[str]) -> list[str]:
    results = kernels.report.Results("6.12", lines)
    return kernels.report.judge_attempt(results, "user", "shared", "vsock", claims)


FACTS = ["fact modules 1"]


@pytest.mark.parametrize(
    ("control", "inside", "claims", "is_broken"),
    [
        ("open", "shut", {"vm-sockets"}, False),
        ("open", "open", {"vm-sockets"}, True),
        ("shut", "shut", {"vm-sockets"}, True),  # a denial without a control is no proof
        ("open", "open", set(), False),
        ("open", "failed:6:28", set(), True),
        ("open", "status-127-", {"vm-sockets"}, True),
    ],
)
def test_a_claim_needs_a_refusal_and_its_control(
    control: str, inside: str, claims: set, is_broken: bool, kernels
) -> None:
    lines = [f"ran user unsealed vsock {control}", f"ran user shared vsock {inside}"]
    assert bool(broken(kernels, FACTS + lines, claims)) == is_broken


def test_what_was_not_tried_is_broken(kernels) -> None:
    assert broken(kernels, FACTS, {"vm-sockets"})
    assert broken(kernels, FACTS + ["ran user unsealed vsock open"], set())


@pytest.mark.parametrize("series", ["5.10", "6.12", "7.3"])
def test_a_silent_guest_is_broken_in_every_row(series: str, kernels) -> None:
    report = kernels.report
    for judge in (report.judge, report.judge_ubuntu, report.judge_python):
        verdict = judge(series, [])
        assert verdict.broken
    cells = report.judge(series, []).cells
    assert {cells["`ip`"]["root"], cells["fails closed"]["user"]} == {"BROKEN"}


def plan_line(kernels, user: str, kind: str, **values: int) -> str:
    words = [f"{name}={values.get(name, 0)}" for name in kernels.report.PLAN]
    return f"plan {user} {kind} {' '.join(words)}"


def test_promises_that_a_kernel_should_give_are_missed(kernels) -> None:
    """Fewer layers than this kernel has is an error too, not only a smaller claim."""
    verdict = kernels.report.judge("6.12", [plan_line(kernels, "user", "shared")])
    assert any(line.startswith("user, shared: promises") for line in verdict.broken)


def test_what_is_not_promised_for_root_alone_must_hold_all_the_same(kernels) -> None:
    """Root's children may write a shared namespace's settings; their memory is out of reach."""
    for inside, is_broken in (("shut", False), ("open", True)):
        lines = ["ran root unsealed sibling-mem open", f"ran root shared sibling-mem {inside}"]
        results = kernels.report.Results("6.12", lines)
        found = kernels.report.judge_attempt(results, "root", "shared", "sibling-mem", set())
        assert bool(found) == is_broken
    assert "siblings" in results.expected("user", "shared")
    for user, kind in (("root", "shared"), ("root", "no-unix"), ("user", "map-root")):
        assert "siblings" not in results.expected(user, kind)
    assert "siblings" in results.expected("root", "private")


@pytest.mark.parametrize(
    ("series", "user", "kind", "has_cookie", "proof"),
    [
        ("5.10", "user", "shared", True, "contents"),
        ("6.1", "user", "shared", True, "cookie"),
        ("6.17", "root", "shared", False, "contents"),
        ("6.18", "user", "shared", False, "id"),
        ("6.18", "root", "make", False, "id"),
        ("6.18", "user", "make", False, "contents"),
    ],
)
def test_the_best_proof_that_the_kernel_has_is_used(
    series: str, user: str, kind: str, has_cookie: bool, proof: str, kernels
) -> None:
    name = kind if has_cookie else f"{kind}-no-cookie"
    for number, found in kernels.report.PROOFS.items():
        lines = [plan_line(kernels, user, name, proof=number)]
        broken = kernels.report.judge(series, lines).broken
        said = [line for line in broken if line.startswith(f"{user}, {name}: proof")]
        assert bool(said) == (found != proof)


@pytest.mark.parametrize("outcome", ["open", "shut", "failed:1:1", "status-101-launch:"])
def test_a_foreign_namespace_is_refused_by_its_proof_and_nothing_else(
    outcome: str, kernels
) -> None:
    refused = kernels.report.failed("verify-net", "EEXIST")
    assert said_of_foreign(kernels, "open", refused) == []
    assert said_of_foreign(kernels, "open", outcome)
    assert said_of_foreign(kernels, "shut", refused)  # nobody listens there: no proof


def said_of_foreign(kernels, control: str, outcome: str) -> list[str]:
    kinds = ("shared", "private", "map-root")
    lines = [
        f"ran user {kind} {name} {outcome}"
        for kind in kinds
        for name in ("foreign", "foreign-no-cookie")
    ]
    found = kernels.report.judge("6.12", [f"ran user none foreign {control}", *lines]).broken
    return [line for line in found if line.startswith("user") and ": foreign" in line]


def test_every_break_still_finds_what_it_breaks(kernels, tmp_path: Path) -> None:
    kernels.image.launch_sources(tmp_path, list(kernels.image.BREAKS))


def test_the_table_in_the_docs_is_of_a_green_run_over_every_kernel(kernels) -> None:
    text = kernels.DOCUMENT.read_text()
    table = text.partition(kernels.MARKERS[0])[2].partition(kernels.MARKERS[1])[0]
    date = re.search(r"Run on (\S+) by `python -m tests\.kernels [^`]*--write`:", table)
    assert date
    datetime.date.fromisoformat(date[1])
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
    assert set(kernels.SERIES) <= set(rows[0])
    expected = {f"`{name}`" for name in kernels.report.ATTEMPTS} | {"`inherited-sockets`"}
    assert expected <= {row[0] for row in rows}
    assert "BROKEN" not in table
    for row in rows[2:]:
        assert len(row[1:]) == len([name for name in rows[0] if re.fullmatch(r"\d+\.\d+", name)])
