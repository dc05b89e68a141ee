"""``python -m tests.kernels``: fetch, build, boot, judge, one table."""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from . import boot, fetch, image, report

# What Debian has had since 5.10, as far as its mirrors keep it. A series that has gone from
# them is reported as a failure, until it is taken out here.
SERIES = ("5.10", "6.1", "6.12", "6.16", "6.17", "6.18", "6.19", "7.0", "7.1", "7.2", "7.3")
PYTHON_ON = ("oldest", "trixie", "newest")
DOCUMENT = image.ROOT / "docs/environments.md"
MARKERS = ("<!-- kernels: generated -->", "<!-- /kernels -->")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.kernels", description=__doc__)
    parser.add_argument(
        "--kernel",
        action="append",
        metavar="NAME",
        help="a series (6.1), a suite (bookworm), oldest or newest; all when none is named",
    )
    parser.add_argument(
        "--ubuntu", action="store_true", help="also Ubuntu's restriction, reproduced by AppArmor"
    )
    parser.add_argument(
        "--python",
        action="store_true",
        help="also the project's own tests, by this interpreter, which every user must be able to "
        "read; minutes for each kernel",
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="put the table into docs/environments.md, when every promise held",
    )
    parser.add_argument(
        "--jobs", type=int, default=2, metavar="N", help="guests at the same time (%(default)s)"
    )
    parser.add_argument("--list", action="store_true", help="what the mirror has, and no more")
    parser.add_argument(
        "--break",
        action="append",
        default=[],
        choices=image.BREAKS,
        dest="breaks",
        help="build the launch path with that hole, to see the table turn red",
    )
    return parser.parse_args()


class Runs:
    """What one invocation built, and a guest for each kernel and stage. Logs stay in the cache."""

    def __init__(self, folder: Path, breaks: list[str], *, with_apparmor: bool) -> None:
        self.folder = folder
        self.apparmor = fetch.apparmor() if with_apparmor else None
        self.logs = fetch.cache() / "logs"
        self.logs.mkdir(exist_ok=True)
        self.programs = image.compile_programs(folder, breaks)

    def stage_c(self, series: str) -> report.Verdict:
        return report.judge(series, self._boot(series, "checks.sh"))

    def ubuntu(self, series: str) -> report.Verdict:
        return report.judge_ubuntu(series, self._boot(series, "ubuntu.sh"))

    def python(self, series: str) -> report.Verdict:
        """On the generic kernel: the cloud one has no 9p."""
        kernel = fetch.kernel(series, "")
        modules = fetch.module_closure(kernel, image.PYTHON_MODULES)
        made = image.for_python(modules, sys.executable)
        image.add_apparmor(made, self.apparmor)
        initramfs = made.write(self.folder / f"{series}.python.cpio.gz")
        lines = boot.boot(
            kernel.image,
            initramfs,
            self.logs / f"{series}.python.log",
            memory=2048,
            devices=boot.SHARED_ROOT,
            timeout=1800,
        )
        return report.judge_python(series, lines)

    def _boot(self, series: str, job: str) -> list[str]:
        kernel = fetch.kernel(series)
        modules = fetch.module_closure(kernel, image.MODULES)
        made = image.for_checks(self.programs, modules, job)
        if self.apparmor is not None:
            image.add_apparmor(made, self.apparmor)
        name = f"{series}.{job}"
        initramfs = made.write(self.folder / f"{name}.cpio.gz")
        return boot.boot(kernel.image, initramfs, self.logs / f"{name}.log")


def run(series: str, stages: list[Callable[[str], report.Verdict]]) -> report.Verdict:
    """All stages on one kernel; one that cannot be had or booted is a broken promise too."""
    started = time.monotonic()
    verdict = report.Verdict()
    for stage in stages:
        try:
            found = stage(series)
        except (fetch.NotFetched, boot.NotBooted) as error:
            found = report.Verdict(broken=[f"{stage.__name__}: {error}"])
        verdict.cells |= found.cells
        verdict.broken += found.broken
    seconds = time.monotonic() - started
    result = f"{len(verdict.broken)} broken" if verdict.broken else "ok"
    print(f"{series}: {result}, {seconds:.0f} s", file=sys.stderr, flush=True)
    return verdict


def main() -> int:
    options = parse()
    fetch.update_lists()
    if options.list:
        for series, release in fetch.releases("cloud-").items():
            print(series, release)
        return 0
    names = dict.fromkeys(map(fetch.series_of, options.kernel or (*SERIES, "newest")))
    with (
        tempfile.TemporaryDirectory(prefix="netless-kernels.") as folder,
        concurrent.futures.ThreadPoolExecutor(options.jobs) as pool,
    ):
        needs_apparmor = options.ubuntu or options.python
        runs = Runs(Path(folder), options.breaks, with_apparmor=needs_apparmor)
        with_python = names if options.kernel else list(map(fetch.series_of, PYTHON_ON))
        stages = {
            name: [
                runs.stage_c,
                *[runs.ubuntu] * options.ubuntu,
                *[runs.python] * (options.python and name in with_python),
            ]
            for name in names
        }
        longest_first = sorted(names, key=lambda name: -len(stages[name]))
        found = pool.map(lambda name: run(name, stages[name]), longest_first)
        by_name = dict(zip(longest_first, found, strict=True))
    verdicts = {name: by_name[name] for name in names}
    table = report.table(verdicts)
    print(table)
    for name, verdict in verdicts.items():
        for line in verdict.broken:
            print(f"{name}: {line}")
    if any(verdict.broken for verdict in verdicts.values()):
        return 1
    if options.write:
        write(table)
    return 0


def write(table: str) -> None:
    """Replace what stands between the two markers."""
    before, _, after = DOCUMENT.read_text().partition(MARKERS[0])
    _, _, after = after.partition(MARKERS[1])
    today = datetime.date.today().isoformat()
    text = f"Run on {today} by `python -m tests.kernels {' '.join(sys.argv[1:])}`:"
    DOCUMENT.write_text(f"{before}{MARKERS[0]}\n{text}\n\n{table}\n{MARKERS[1]}{after}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except fetch.NotFetched as error:
        sys.exit(f"error: {error}")
