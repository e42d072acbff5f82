"""The files made from a page: its JSON, the plots, and the documentation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jinja2

from tests.support.root import ROOT
from tools.evidence.runs import Run

from . import names
from .node_peers import versions
from .page import Page
from .plots import plots
from .report import MISSING, shown
from .targets import judged

DOCUMENTATION, FOLDER, RESULTS = "performance.md", "performance", "results.json"


def write(page: Page, into: Path) -> None:
    """Write the documentation into a folder, and the JSON and the plots into one of its folders.

    Raises:
        LookupError, jinja2.UndefinedError: The page lacks a measure or a row.
    """
    files = {into / FOLDER / name: text for name, text in plots(page)}
    files[into / DOCUMENTATION] = documentation(page)
    page.save(into / FOLDER / RESULTS)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")


def documentation(page: Page) -> str:
    """Return the documentation with the figures of a page.

    Raises:
        LookupError, jinja2.UndefinedError: The page lacks a measure or a row.
    """
    return _rendered("performance.md.j2", page)


def report(page: Page) -> str:
    """Return the report of all measures of a page; raise as `documentation` does."""
    return _rendered("measurements.md.j2", page)


def _rendered(name: str, page: Page) -> str:
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  # Markdown, of our own figures
    )
    environment.filters |= {"us": _us, "ms": _ms, "seconds": _seconds, "n": shown, "x": _x}
    template = environment.from_string(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    constants = {name: said for name, said in vars(names).items() if name.isupper()}
    text = template.render(
        page=page,
        run=page.circumstances,
        has_changed=bool(Run(**page.circumstances["run"]).changed("performance")),
        node_versions=versions(),
        targets=list(judged(page)),
        cells=_cells,
        **constants,
    )
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return re.sub(r"\n{3,}", "\n\n", lines) + "\n"


def _cells(row: dict[str, Any], columns: list[str], scale: float = 1.0) -> str:
    """Return figures of a row as the cells of a table."""
    if "missing" in row:
        return " | ".join([MISSING] * len(columns))
    return " | ".join(
        MISSING if row[name] is None else shown(row[name] * scale) for name in columns
    )


def _us(us: float) -> str:
    return f"{shown(us)} µs"


def _ms(us: float) -> str:
    return f"{shown(us / 1000)} ms"


def _seconds(seconds: float) -> str:
    return f"{shown(seconds)} s"


def _x(ratio: float) -> str:
    return f"{ratio:.2f}"


def main() -> None:
    """Write the documentation again, with the figures that it has."""
    folder = ROOT / "docs" / "explanation"
    write(Page.load(folder / FOLDER / RESULTS), folder)


if __name__ == "__main__":
    main()
