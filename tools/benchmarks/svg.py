"""Plots as SVG: one file that suits a light and a dark page, and needs no script and no font."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, _LINE = 800, 18
_LEFT, _TOP, _BOTTOM = 64, 56, 48
_LABELS = 290
"""Room for the names, right of the lines and left of the bars."""
COLOURS = 8
"""Colours of the series: classes ``s0`` (stroke) and ``f0`` (fill), and so on."""

# Colours that people with every kind of colour vision tell apart (Okabe and Ito), a little darker
# on light paper. The plot has a background of its own: a page's theme need not be the system's.
_STYLE = """
svg { font: 13px system-ui, sans-serif; --paper: #fff; --ink: #24292f; --faint: #57606a;
  --grid: #d8dee4; --c0: #0059b3; --c1: #666; --c2: #b35900; --c3: #00755e; --c4: #a2447a;
  --c5: #7a6a00; --c6: #1f7fb8; --c7: #c0392b }
@media (prefers-color-scheme: dark) { svg { --paper: #1f2430; --ink: #e6e9ef; --faint: #a9b1be;
  --grid: #3b4252; --c0: #6cb6ff; --c1: #aaa; --c2: #f0a050; --c3: #3fc9a5; --c4: #e08cc0;
  --c5: #e5d04a; --c6: #8fd0f5; --c7: #ff8a7a } }
text { fill: var(--ink) } .faint { fill: var(--faint) } .title { font-weight: 600; font-size: 15px }
.grid { stroke: var(--grid) } path { fill: none; stroke-width: 2 } .thin { stroke-width: 1.5 }
.ours { stroke-width: 3.5 } .end { text-anchor: end } .middle { text-anchor: middle }
"""
STYLE = _STYLE + "".join(
    f".s{n} {{ stroke: var(--c{n}) }} .f{n} {{ fill: var(--c{n}) }}\n" for n in range(COLOURS)
)


@dataclass(frozen=True)
class Axis:
    """The axis of the figures: from 0, or logarithmic.

    Attributes:
        label: Its figures and their unit.
        is_log: Whether equal ratios are equal distances.
    """

    label: str
    is_log: bool = False

    def ticks(self, values: Sequence[float]) -> list[float]:
        """Return round figures that enclose the values."""
        most = max(values) or 1.0
        if self.is_log:
            first = math.floor(math.log10(min(values)))
            last = math.ceil(math.log10(most))
            return [10.0**power for power in range(first, max(last, first + 1) + 1)]
        step = 10.0 ** math.floor(math.log10(most))
        step *= next(share for share in (0.2, 0.5, 1, 2) if most / (step * share) <= 6)
        return [step * number for number in range(math.ceil(most / step) + 1)]

    def share(self, value: float, ticks: Sequence[float]) -> float:
        """Return where a value is, between 0 for the first tick and 1 for the last."""
        if self.is_log:
            return math.log(value / ticks[0]) / math.log(ticks[-1] / ticks[0])
        return value / ticks[-1]


def lines(
    title: str,
    axis: Axis,
    x_label: str,
    x: Mapping[str, float],
    series: Mapping[str, Sequence[float | None]],
) -> str:
    """Return a plot of lines; the first series is drawn as the one that the page is about.

    Args:
        title: What was measured.
        axis: Of the figures.
        x_label: What the points differ in.
        x: Place of each point on its axis, by its name, ascending.
        series: The figure at each point, by the line's name; None: there is none.
    """
    height, right = 340, WIDTH - _LABELS
    ticks = axis.ticks([value for values in series.values() for value in values if value])
    first, last = min(x.values()), max(x.values())

    def at_x(place: float) -> float:
        return _LEFT + 16 + (right - _LEFT - 32) * (place - first) / (last - first)

    def at_y(value: float) -> float:
        return height - _BOTTOM - (height - _BOTTOM - _TOP) * axis.share(value, ticks)

    parts = [grid_line(_LEFT, at_y(tick), right, at_y(tick)) for tick in ticks]
    parts += [text(_LEFT - 8, at_y(tick) + 4, _figure(tick), "faint end") for tick in ticks]
    parts += [
        text(at_x(place), height - _BOTTOM + 20, name, "faint middle") for name, place in x.items()
    ]
    parts.append(text((_LEFT + right) / 2, height - 8, x_label, "faint middle"))
    ends: dict[str, float] = {}
    for number, (name, values) in enumerate(series.items()):
        points = [
            (at_x(place), at_y(value))
            for place, value in zip(x.values(), values, strict=True)
            if value
        ]
        if not points:
            continue
        colour = number % COLOURS
        path = "M" + " L".join(f"{px:.1f},{py:.1f}" for px, py in points)
        parts.append(f'<path class="s{colour} {"ours" if not number else "thin"}" d="{path}"/>')
        parts += [
            f'<circle class="f{colour}" cx="{px:.1f}" cy="{py:.1f}" r="{3 if number else 4.5}"/>'
            for px, py in points
        ]
        ends[name] = points[-1][1]
    for name, y in _apart(ends, height - 8).items():
        colour = list(series).index(name) % COLOURS
        parts.append(text(right + 12, y + 4, name, f"f{colour}"))
    return drawing(title, axis.label, height, parts)


def bars(title: str, axis: Axis, rows: Mapping[str, tuple[float, float | None]]) -> str:
    """Return a plot of bars, the first drawn as the one that the page is about.

    Args:
        title: What was measured.
        axis: Of the figures, from 0.
        rows: A figure for each name, and one that is marked beyond it, or None.
    """
    height = _TOP + _LINE * 3 // 2 * len(rows) + _BOTTOM
    left, right = _LABELS + 16, WIDTH - 40
    ticks = axis.ticks([value for pair in rows.values() for value in pair if value])

    def at_x(value: float) -> float:
        return left + (right - left) * axis.share(value, ticks)

    parts = []
    for tick in ticks:
        parts.append(grid_line(at_x(tick), _TOP, at_x(tick), height - _BOTTOM))
        parts.append(text(at_x(tick), height - _BOTTOM + 20, _figure(tick), "faint middle"))
    for number, (name, (value, beyond)) in enumerate(rows.items()):
        y = _TOP + _LINE * 3 / 2 * number + 6
        colour = 0 if name.startswith("celery-redlock") else 1
        parts.append(text(left - 10, y + 13, name, "end"))
        parts.append(
            f'<rect class="f{colour}" x="{left}" y="{y}" rx="2" height="{_LINE}" '
            f'width="{at_x(value) - left:.1f}"/>'
        )
        if beyond is not None:
            parts.append(grid_line(at_x(value), y + 9, at_x(beyond), y + 9))
            parts.append(f'<circle class="f{colour}" cx="{at_x(beyond):.1f}" cy="{y + 9}" r="4"/>')
    return drawing(title, axis.label, height, parts)


def drawing(
    title: str, label: str, height: int, parts: Sequence[str], *, width: int = WIDTH
) -> str:
    """Return a whole picture with its background."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n"
        f'<rect width="{width}" height="{height}" rx="6" style="fill: var(--paper)"/>'
    )
    texts = [text(16, 24, title, "title"), text(16, 43, label, "faint")]
    return "\n".join([head, *texts, *parts, "</svg>\n"])


def text(x: float, y: float, said: str, classes: str) -> str:
    """Return a text; `classes` are those of the style."""
    return f'<text class="{classes}" x="{x:.1f}" y="{y:.1f}">{escape(said)}</text>'


def grid_line(x1: float, y1: float, x2: float, y2: float) -> str:
    """Return a line of the grid."""
    return f'<line class="grid" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


def _apart(ends: Mapping[str, float], lowest: float) -> dict[str, float]:
    """Return places for the names of lines, near their ends and not over one another."""
    places: dict[str, float] = {}
    y = -math.inf
    for name in sorted(ends, key=ends.__getitem__):
        places[name] = y = max(ends[name], y + _LINE)
    excess = y - lowest
    for name in reversed(places):
        if excess <= 0:
            break
        places[name] = min(places[name], lowest)
        lowest = places[name] - _LINE
    return places
