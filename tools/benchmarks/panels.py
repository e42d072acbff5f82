"""Panels of a dashboard as SVG, laid out by its grid; in the colours of the plots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .svg import COLOURS, Axis, drawing, grid_line, text

_COLUMN, _ROW, _GAP = 50, 27, 10
_MARGIN, _TITLE, _LEGEND_LINE = 46, 34, 15
_UNITS = {"s": "seconds", "ops": "per second", "short": ""}

_STYLE = ".frame { fill: none; stroke: var(--grid) } .big { font-size: 56px; font-weight: 600 }"

Points = Sequence[tuple[float, float]]
"""Time in seconds and value, in order."""


@dataclass(frozen=True)
class Panel:
    """A panel with what its queries returned.

    Attributes:
        title: Its title.
        unit: Unit of its values, as Grafana names it.
        place: x, y, w and h in the grid of 24 columns.
        series: Values of each line, by its legend.
        is_number: Whether it shows its last value alone.
    """

    title: str
    unit: str
    place: Mapping[str, int]
    series: Mapping[str, Points]
    is_number: bool = False


def sheet(title: str, note: str, panels: Sequence[Panel], times: tuple[float, float]) -> str:
    """Return a picture of all panels.

    Args:
        title: Title of the dashboard.
        note: What a reader of the picture has to know.
        panels: The panels.
        times: First and last time of all lines, seconds.
    """
    parts: list[str] = []
    for panel in panels:
        parts += _drawn(panel, times)
    bottom = max(panel.place["y"] + panel.place["h"] for panel in panels) * _ROW + 62
    parts.insert(0, f"<style>{_STYLE}</style>")
    return drawing(title, note, bottom, parts, width=24 * _COLUMN + 2 * _GAP)


def _drawn(panel: Panel, times: tuple[float, float]) -> list[str]:
    left, top = panel.place["x"] * _COLUMN + _GAP * 2, panel.place["y"] * _ROW + 56
    width, height = panel.place["w"] * _COLUMN - _GAP, panel.place["h"] * _ROW - _GAP
    unit = _UNITS.get(panel.unit, panel.unit)
    parts = [
        f'<rect class="frame" x="{left}" y="{top}" width="{width}" height="{height}" rx="4"/>',
        text(left + 10, top + 20, panel.title, "title"),
        text(left + width - 10, top + 20, unit, "faint end"),
    ]
    values = [value for points in panel.series.values() for _, value in points]
    if not values:
        return [*parts, text(left + width / 2, top + height / 2, "no data", "faint middle")]
    if panel.is_number:
        last = max(points[-1] for points in panel.series.values())[1]
        return [*parts, text(left + width / 2, top + height / 2 + 30, _figure(last), "big middle")]
    legend = _legend(panel.series, left + 10, top + height - 8, width - 20)
    low, high = top + height - 30 - _LEGEND_LINE * len({y for _, y, _, _ in legend}), top + _TITLE
    ticks = Axis("").ticks([*values, 0.0])
    first, last_time = times

    def at(time: float, value: float) -> str:
        x = left + _MARGIN + (width - _MARGIN - 12) * (time - first) / (last_time - first)
        return f"{x:.1f},{low - (low - high) * max(value, 0.0) / ticks[-1]:.1f}"

    for tick in ticks:
        y = low - (low - high) * tick / ticks[-1]
        parts.append(grid_line(left + _MARGIN, y, left + width - 12, y))
        parts.append(text(left + _MARGIN - 6, y + 4, _figure(tick), "faint end"))
    for seconds in range(0, int(last_time - first) + 1, 30):
        x = float(at(first + seconds, 0).partition(",")[0])
        parts.append(text(x, low + 15, f"{seconds} s", "faint middle"))
    for number, points in enumerate(panel.series.values()):
        path = "M" + " L".join(at(*point) for point in points)
        parts.append(f'<path class="s{number % COLOURS} thin" d="{path}"/>')
    parts += [text(x, y, name, f"f{colour}") for x, y, name, colour in legend]
    return parts


def _legend(
    series: Mapping[str, Points], left: float, bottom: float, width: float
) -> list[tuple[float, float, str, int]]:
    """Return place, name and colour of each entry, in as few lines as they need."""
    lines: list[list[tuple[float, str, int]]] = [[]]
    x = 0.0
    for number, name in enumerate(series):
        room = 7.2 * len(name) + 16
        if lines[-1] and x + room > width:
            lines.append([])
            x = 0.0
        lines[-1].append((left + x, name, number % COLOURS))
        x += room
    return [
        (x, bottom - _LEGEND_LINE * (len(lines) - 1 - at), name, colour)
        for at, line in enumerate(lines)
        for x, name, colour in line
    ]


def _figure(value: float) -> str:
    return f"{value:,.0f}" if math.isclose(value, round(value)) else f"{value:.3g}"
