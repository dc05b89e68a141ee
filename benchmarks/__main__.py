"""``python -m benchmarks``: measure, print the tables, draw the picture."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from . import contenders, machine, picture, programs, report, soak, syscalls, targets
from .parts import PARTS, Bench

HERE = Path(__file__).resolve().parent
PICTURE = HERE / "cost.svg"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all numbers there")
    parser.add_argument("--quick", action="store_true", help="under 30 s, for a first look")
    parser.add_argument(
        "--only", metavar="NAME", action="append", choices=PARTS, help=f"of {', '.join(PARTS)}"
    )
    parser.add_argument("--picture", metavar="FILE", type=Path, help=f"default: {PICTURE.name}")
    parser.add_argument("--write", action="store_true", help="write RESULTS.md and its picture")
    parser.add_argument("--syscalls", action="store_true", help="count them, by strace")
    parser.add_argument("--soak", metavar="N", type=int, help="so many spawns, in the end")
    parser.add_argument(
        "--from-json", metavar="FILE", type=Path, help="measure nothing: report on these numbers"
    )
    options = parser.parse_args()
    if options.write and (options.quick or options.only):
        parser.error("RESULTS.md is of a full run")
    return options


def _measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    built = programs.build(folder)
    _, skipped = contenders.find()
    results: dict[str, Any] = {
        "machine": machine.describe(),
        "quick": options.quick,
        "skipped": skipped,
    }
    with contextlib.closing(programs.Floor(built.floor)) as floor:
        bench = Bench(built, floor, options.quick)
        for name in options.only or PARTS:
            started = time.monotonic()
            results[name] = PARTS[name](bench)
            print(f"{name}: {time.monotonic() - started:.1f} s", file=sys.stderr)
    if options.syscalls:
        results["syscalls"] = syscalls.syscalls(built)
    if options.soak:
        results["soak"] = soak.soak(built, options.soak)
    results["targets"] = targets.rows(results)
    return results


def _draw(options: argparse.Namespace, results: dict[str, Any]) -> None:
    """A quick or partial run does not replace the picture of a full one."""
    file = options.picture or (None if options.quick else PICTURE)
    if file is not None and {"memory", "threads"} <= results.keys():
        file.write_text(picture.draw(results))
        print(f"\npicture: {file}")


def main() -> None:
    """Run, print, write."""
    options = _arguments()
    if options.from_json:
        results = json.loads(options.from_json.read_text())
    else:
        with tempfile.TemporaryDirectory() as folder:
            results = _measure(options, Path(folder))
    print(report.machine(results), report.targets(results), report.sections(results), sep="\n\n")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    if options.write:
        (HERE / "RESULTS.md").write_text(report.markdown(results, PICTURE.name))
    _draw(options, results)


if __name__ == "__main__":  # the worker processes import this module again
    main()
