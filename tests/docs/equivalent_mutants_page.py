"""The tables of equivalent mutants: `python -m tests.docs.equivalent_mutants_page` writes them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from tests.mutation.scores import Equivalent, equivalents
from tests.support.root import ROOT

PAGE = ROOT / "docs" / "explanation" / "equivalent-mutants.md"
_BEGIN = "<!-- equivalent mutants -->"


def page() -> str:
    """Return the page, with the tables of the mutants that are known to change nothing."""
    text = PAGE.read_text(encoding="utf-8").partition(_BEGIN)[0]
    return "\n".join([text + _BEGIN, *_tables()]) + "\n"


def _tables() -> Iterator[str]:
    by_file = sorted(equivalents(), key=lambda one: one.file)
    for file, group in groupby(by_file, key=lambda one: one.file):
        yield from ["", f"## `{file}`", "", "| before | after | reason |", "| --- | --- | --- |"]
        yield from map(_row, group)


def _row(one: Equivalent) -> str:
    lines = one.change.splitlines()
    before, after = (_code(line[2:] for line in lines if line[0] == sign) for sign in "-+")
    return f"| {before} | {after} | {one.reason} |"


def _code(lines: Iterator[str]) -> str:
    return "<br>".join(f"`{line}`".replace("|", "\\|") for line in lines)


def main() -> None:
    """Write the tables."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
