"""The picture: cost against the parent's memory, and children per second against threads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

WIDTH, HEIGHT = 420, 300
LEFT, TOP, RIGHT, BOTTOM = 62, 40, 16, 46
LEGEND = 22
COLOURS = ("#555555", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")

Line = tuple[str, str, list[tuple[float, float]]]  # name, colour, points


@dataclass
class Axis:
    """A scale from values to pixels; the logarithm evens out what spans decades."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool

    def place(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.is_log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Ones, twos and fives within the axis, or some five even steps from 0."""
        if self.is_log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            steps = [m * 10.0**e for e in range(first, last + 1) for m in (1, 2, 5)]
            return [step for step in steps if self.low <= step <= self.high]
        size = 10.0 ** math.floor(math.log10(self.high / 3))
        step = next(size * m for m in (1, 2, 5, 10) if self.high / (size * m) <= 6)
        return [step * i for i in range(int(self.high / step) + 1)]


def _text(x: float, y: float, text: str, extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {extra}>{escape(text)}</text>'


def _frame(x: Axis, y: Axis, title: str, x_title: str, names: Sequence[str]) -> list[str]:
    parts = [_text(x.start, y.end - 16, title, 'font-weight="bold"')]
    for tick in y.ticks():
        at = y.place(tick)
        parts.append(
            f'<line x1="{x.start}" x2="{x.end}" y1="{at:.1f}" y2="{at:.1f}" stroke="#dddddd"/>'
        )
        parts.append(_text(x.start - 6, at + 4, f"{tick:g}", 'text-anchor="end"'))
    for position, name in enumerate(names):
        at = x.place(position)
        parts.append(_text(at, y.start + 16, name, 'text-anchor="middle"'))
    parts.append(_text((x.start + x.end) / 2, y.start + 34, x_title, 'text-anchor="middle"'))
    return parts


def _panel(
    origin: float, title: str, x_title: str, names: Sequence[str], lines: Sequence[Line], log: bool
) -> list[str]:
    values = [value for *_, points in lines for _, value in points]
    x = Axis(-0.2, len(names) - 0.8, origin + LEFT, origin + WIDTH - RIGHT, False)
    low, high = (min(values) / 1.3, max(values) * 1.3) if log else (0, max(values) * 1.08)
    y = Axis(low, high, HEIGHT - BOTTOM, TOP, log)
    parts = _frame(x, y, title, x_title, names)
    for _, colour, points in lines:
        places = [(x.place(at), y.place(value)) for at, value in points]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for px, py in places
        ]
    return parts + _legend(origin + LEFT, lines)


def _legend(left: float, lines: Sequence[Line]) -> list[str]:
    parts = []
    for position, (name, colour, _) in enumerate(lines):
        x = left + position % 2 * 170
        y = HEIGHT + 8 + position // 2 * LEGEND
        parts.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(_text(x + 16, y, name))
    return parts


def _lines(table: dict[str, dict[str, Any]], factor: float, colours: dict[str, str]) -> list[Line]:
    """The positions are those of the inner keys, the values the medians."""
    return [
        (
            name,
            colours[name],
            [(at, found["median"] * factor) for at, found in enumerate(row.values())],
        )
        for name, row in table.items()
    ]


def draw(results: dict[str, Any]) -> str:
    """An SVG of the parts "memory" and "threads"."""
    memory, threads = results["memory"], results["threads"]
    sizes = [f"{size} MB" if int(size) < 1024 else f"{int(size) // 1024} GB" for size in memory]
    by_name = {
        name: {size: memory[size][name] for size in memory} for name in next(iter(memory.values()))
    }
    # One contender has one colour in both panels.
    colours = dict(zip(dict.fromkeys([*by_name, *threads]), COLOURS, strict=False))
    rows = math.ceil(max(len(by_name), len(threads)) / 2)
    height = HEIGHT + LEGEND * rows
    counts = list(next(iter(threads.values())))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {height}" '
            'font-family="sans-serif" font-size="12" fill="#222222">',
            f'<rect width="{2 * WIDTH}" height="{height}" fill="#ffffff"/>',
            *_panel(
                0,
                "ms per child, start to reaped",
                "memory of the parent",
                sizes,
                _lines(by_name, 1e3, colours),
                True,
            ),
            *_panel(
                WIDTH, "children per second", "threads", counts, _lines(threads, 1, colours), False
            ),
            "</svg>\n",
        ]
    )
