"""Results as tables that read well in a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .contenders import POPEN
from .loops import ASYNCIO

Results = dict[str, Any]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        first, *others = (
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "| " + " | ".join([first, *others]) + " |"

    rule = "|" + "|".join(
        "-" * (width + 2) if i == 0 else "-" * (width + 1) + ":" for i, width in enumerate(widths)
    )
    return "\n".join([line(header), rule + "|", *map(line, rows)])


def _time(seconds: float) -> str:
    if seconds < 2e-6:
        return f"{seconds * 1e9:.1f} ns"
    if seconds < 0.01:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms"


def _against(table: Results, name: str, base: str) -> str:
    """Ratio and median."""
    if name not in table:
        return "-"
    median = table[name]["median"]
    return f"{median / table[base]['median']:.2f} ({_time(median)})"


def _grid(results: Results, columns: Sequence[str], base: str = POPEN) -> str:
    """Columns of contenders, each as a ratio to the base in the same column."""
    names = list(dict.fromkeys(name for column in columns for name in results[column]))
    rows = [
        [name, *(_against(results[column], name, base) for column in columns)] for name in names
    ]
    return _table(["", *columns], rows)


def _list(results: Results, base: str = POPEN) -> str:
    rows = [
        [
            name,
            f"{found['median'] / results[base]['median']:.2f}",
            _time(found["median"]),
            f"{_time(found['low'])} - {_time(found['high'])}",
        ]
        for name, found in results.items()
    ]
    return _table(["", "ratio", "median", "quartiles"], rows)


def _rates(results: Results) -> str:
    counts = list(results[POPEN])
    rows = []
    for name, found in results.items():
        cells = []
        for count in counts:
            rate = found[count]["median"]
            cells.append(f"{rate / results[POPEN][count]['median']:.2f} ({rate:.0f}/s)")
        rows.append([name, *cells])
    return _table(["threads", *counts], rows)


def _memory(results: Results) -> str:
    sizes = {f"{megabytes} MB": found for megabytes, found in results.items()}
    return _grid(sizes, list(sizes))


def _spread(found: Results) -> str:
    return f"{_time(found['low'])} - {_time(found['high'])}"


def _spawn(results: Results) -> str:
    spread = [
        [name, _spread(found), str(int(found["samples"]))]
        for name, found in results["static no-op"].items()
    ]
    return (
        _grid(results, list(results))
        + "\n\nThe spread of the first column:\n\n"
        + _table(["", "quartiles", "children"], spread)
    )


SECTIONS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "spawn": ("A child, start to reaped: ratio to subprocess.Popen, median", _spawn),
    "memory": ("The same for a static no-op, by the parent's touched memory", _memory),
    "threads": ("Children per second, by threads", _rates),
    "stall": ("Longest stall of another Python thread while a child is started and reaped", _list),
    "loop": (
        "Longest pause of a 1 ms ticker in an asyncio loop that starts children",
        lambda found: _grid(found, list(found), ASYNCIO),
    ),
    "cpu": ("CPU time of the parent, per child", _list),
    "getppid": ("One getppid in the child", _list),
    "imports": ("A whole interpreter", lambda found: _list(found, "pass")),
    "scale": ("A static no-op, by what the parent has", lambda found: _grid(found, list(found))),
}


def machine(results: Results) -> str:
    """The head of the output."""
    return _table(["machine", ""], [[name, text] for name, text in results["machine"].items()])


def targets(results: Results) -> str:
    """What was promised."""
    words = {True: "yes", False: "NO", None: ""}
    rows = []
    for row in results["targets"]:
        ratio = "not measured" if row["ratio"] is None else f"{row['ratio']:.2f}"
        limit = ""
        if row["limit"] is not None:
            limit = f"{'at least' if row['is_least'] else 'at most'} {row['limit']:.2f}"
        rows.append([row["what"], ratio, limit, words[row["holds"]]])
    return _table(["ratio of medians", "measured", "target", "holds"], rows)


def _skipped(results: Results) -> str:
    return "Left out: " + "; ".join(f"{k} ({v})" for k, v in results["skipped"].items()) + "."


def _soak(states: Sequence[Results]) -> str:
    rows = [
        [
            f"{state['spawned']:,}",
            f"{state['resident'] / 1024:,.0f} KB",
            str(state["descriptors"]),
            str(state["children"]),
            "-" if state["namespaces"] is None else str(state["namespaces"]),
        ]
        for state in states
    ]
    header = ["spawns", "resident", "descriptors", "children", "network namespaces (system)"]
    return _table(header, rows)


def _syscalls(results: Results) -> str:
    columns = [(name, side) for name in results for side in ("parent", "child")]
    calls = sorted({call for name, side in columns for call in results[name][side]})
    rows = [
        [call, *(f"{results[name][side].get(call, 0):.4g}" for name, side in columns)]
        for call in calls
    ]
    rows.append(["all", *(f"{sum(results[name][side].values()):.4g}" for name, side in columns)])
    return _table(["system call", *(f"{name}, {side}" for name, side in columns)], rows)


def sections(results: Results) -> str:
    """Everything after the targets."""
    parts = [
        (title, render(results[name]))
        for name, (title, render) in SECTIONS.items()
        if name in results
    ]
    if results["skipped"]:
        parts.append(("Contenders", _skipped(results)))
    if "syscalls" in results:
        parts.append(("System calls per child (strace -c)", _syscalls(results["syscalls"])))
    if "soak" in results:
        parts.append(("Soak: spawns with a mix of outcomes", _soak(results["soak"])))
    return "\n\n".join(f"## {title}\n\n{text}" for title, text in parts)


def markdown(results: Results, picture: str) -> str:
    """The whole of RESULTS.md."""
    return f"""# Results

Written by `{results["machine"]["command"]}`; do not edit. All contenders take turns within
one run, in an order drawn anew for each round; the numbers are medians over all children, and
ratios of such medians.

{machine(results)}

## Targets

{targets(results)}

![Cost against parent memory and against threads]({picture})

{sections(results)}
"""
