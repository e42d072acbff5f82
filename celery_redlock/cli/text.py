"""Plain text for terminals and pipes: columns and documents."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import click

from celery_redlock.units import middle

_GAP = "  "


def columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table without lines; its columns are as wide as their widest cell."""
    table = [header, *rows]
    widths = widths_of(table)
    return "\n".join(padded(row, widths) for row in table)


class Fit(NamedTuple):
    """What gives way in a table that is too wide.

    Attributes:
        shortened: Columns whose cells are shortened in the middle, one after the other, with the
            width that each keeps.
        dropped: Columns to leave out if that is not enough, one after the other.
    """

    shortened: Mapping[str, int]
    dropped: Sequence[str]


def fitted(header: Sequence[str], rows: Sequence[Sequence[str]], width: int, fit: Fit) -> list[str]:
    """Return the lines of a table, at most `width` wide as far as `fit` lets it be.

    The first line is the header, in bold.
    """
    table = [dict(zip(header, row, strict=True)) for row in (header, *rows)]
    widths = dict(zip(header, widths_of([header, *rows]), strict=True))
    for name in fit.dropped:
        least = {one: min(wide, fit.shortened.get(one, wide)) for one, wide in widths.items()}
        if _total(least) <= width:
            break
        widths.pop(name, None)
    for name, kept in fit.shortened.items():
        excess = max(0, _total(widths) - width)
        if name in widths:
            widths[name] = max(min(kept, widths[name]), widths[name] - excess)
    lines = [
        padded([_cut(row[name], wide) for name, wide in widths.items()], list(widths.values()))
        for row in table
    ]
    return [click.style(lines[0], bold=True), *lines[1:]]


def _total(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + len(_GAP) * (len(widths) - 1)


def _cut(cell: str, width: int) -> str:
    return cell if _width(cell) <= width else middle(cell, width)


def widths_of(table: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of the widest cell of each column."""
    return [max(map(_width, column)) for column in zip(*table, strict=True)]


def padded(row: Sequence[str], widths: Sequence[int]) -> str:
    """Return a line of a table."""
    # No color is in most lines, of which there may be many.
    fill = _filled if "\x1b" in "".join(row) else str.ljust
    return _GAP.join(map(fill, row, widths)).rstrip()


def _filled(cell: str, width: int) -> str:
    return cell + " " * (width - _width(cell))


def _width(cell: str) -> int:
    return len(click.unstyle(cell)) if "\x1b" in cell else len(cell)


def visible(text: str) -> str:
    """Return a text of others on one line, without characters that a terminal acts on."""
    from celery_redlock.redlock.errors import visible as escaped

    return escaped(text)


def document(value: object) -> str:
    """Return a value as JSON for people and programs."""
    return json_text(value, indent=2)


def json_text(value: object, indent: int | None = None) -> str:
    """Return a value as JSON: in ASCII if a terminal would act on it, or the output isn't UTF-8."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if all(map(str.isprintable, text.split("\n"))) and _is_encodable(text):
        return text
    return json.dumps(value, indent=indent)


def _is_encodable(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        return False
    return True
