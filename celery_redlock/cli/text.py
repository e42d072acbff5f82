"""Plain text for terminals and pipes: columns and documents."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import click

_GAP = "  "


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
    if "\x1b" not in "".join(row):  # as in most lines, of which there may be many
        return _GAP.join(map(str.ljust, row, widths)).rstrip()
    cells = [cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)]
    return _GAP.join(cells).rstrip()


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
    if text.replace("\n", "").isprintable() and _is_encodable(text):
        return text
    return json.dumps(value, indent=indent).replace("\x7f", r"\u007f")


def _is_encodable(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        return False
    return True
