"""The page on a terminal."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table as Printed

from .page import Page, Table
from .targets import judged

MISSING = "\N{EN DASH}"


def lines(page: Page) -> Iterator[str]:
    """Return every table, and what the figures depend on."""
    for table in page.tables.values():
        yield from _rendered(_printed(table))
    packages = page.circumstances["packages"]
    yield ", ".join(f"{name} {version or 'missing'}" for name, version in packages.items())
    yield ", ".join(
        f"{name} {said}"
        for name, said in page.circumstances.items()
        if name not in ("packages", "run")
    )


def judgement(page: Page) -> Iterator[str]:
    """Return the table of the targets: which are met."""
    printed = Printed(title="Targets", title_justify="left")
    for heading in ("measure", "result", "target", "floor", ""):
        printed.add_column(heading, justify="left" if heading == "measure" else "right")
    for row in judged(page):
        printed.add_row(*row)
    yield from _rendered(printed)


def shown(value: Any) -> str:
    """Return a figure as people read it; nothing for one that is missing."""
    if value is None:
        return MISSING
    if isinstance(value, (int, float)):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def _printed(table: Table) -> Printed:
    columns = list(dict.fromkeys(name for row in table.rows for name in row))
    printed = Printed(
        title=table.title, title_justify="left", caption=table.note, caption_justify="left"
    )
    for name in columns:
        printed.add_column(
            "" if name == "name" else name, justify="right" if name != "name" else "left"
        )
    for row in table.rows:
        printed.add_row(*(shown(row.get(name)) for name in columns))
    return printed


def _rendered(printed: Printed) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=120).print(printed)
    return text.getvalue().splitlines()
