"""Plain text for terminals and pipes: columns, durations, sizes."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

_GAP = "  "
_UNITS = (("d", 86_400.0), ("h", 3600.0), ("min", 60.0))


def columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table without lines; its columns are as wide as their widest cell."""
    table = [header, *rows]
    widths = widths_of(table)
    return "\n".join(padded(row, widths) for row in table)


def widths_of(table: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of the widest cell of each column."""
    return [max(map(_width, column)) for column in zip(*table, strict=True)]


def padded(row: Sequence[str], widths: Sequence[int]) -> str:
    """Return a line of a table."""
    cells = [cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)]
    return _GAP.join(cells).rstrip()


def _width(cell: str) -> int:
    return len(click.unstyle(cell)) if "\x1b" in cell else len(cell)


def seconds(value: float | None) -> str:
    """Return a duration in the unit that fits; '-' for None."""
    if value is None:
        return "-"
    for name, unit in _UNITS:
        # Two of a unit say more than one of the next.
        if abs(value) >= 2 * unit:
            return f"{value / unit:.0f} {name}"
    return f"{value:.1f} s"


def milliseconds(value: float | None, *, sign: str = "") -> str:
    """Return a duration in ms, or from a second on in s; '-' for None."""
    if value is None:
        return "-"
    return f"{value:{sign}.2f} s" if abs(value) >= 1 else f"{value * 1000:{sign}.1f} ms"


def size(value: int | None) -> str:
    """Return a number of bytes in MB; '-' for None."""
    return "-" if value is None else f"{value / 1e6:.1f} MB"


def count(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def document(value: object) -> str:
    """Return a value as JSON for people and programs."""
    return json.dumps(value, indent=2, ensure_ascii=False)
