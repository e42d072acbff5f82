"""The page docs/reference/compatibility.md: `python -m tests.integration.compat.page [--check]`.

It is made from what the last `make compat` wrote down. With ``--check`` the page is only compared.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from celery_redlock.config.options import Lifetime
from tests.support.root import ROOT

from .libraries import LIBRARIES, TRIES, Library

PAGE = ROOT / "docs" / "reference" / "compatibility.md"
ROWS = ROOT / "build" / "compat" / "rows"
_PAGE = """\
# Beside other libraries

<!-- Made by `make compat`. -->

Singleton tasks were run in a real worker and published by a real producer,
with each of these libraries active as its documentation says.
With each of them, under all {lifetimes} [lifetimes](endings.md):

- of two calls at the same time one runs, and two that may both run do so one after the other;
- the run has its fencing token, if its lifetime holds the lock meanwhile;
- the key is free afterwards (with `until_expired`: held for the period).

Other versions may work as well; these were tried.
`make compat` tries all of them again, and so does continuous integration with each change.

{table}
"""


def write_row(library: Library, tried: str) -> None:
    """Write down that what was tried with a library holds."""
    ROWS.mkdir(parents=True, exist_ok=True)
    row = {"name": library.name, "version": library.tested, "tried": tried}
    (ROWS / f"{library}--{tried}.json").write_text(json.dumps(row))


def page(rows: Path = ROWS) -> str:
    """Return the page.

    Raises:
        LookupError: Something was not tried, or does not hold.
    """
    found = [json.loads(file.read_text()) for file in rows.glob("*.json")]
    held = {(row["name"], row["version"], row["tried"]) for row in found}
    wanted = {(one.name, one.tested, tried) for one in LIBRARIES for tried in one.tries}
    if missing := sorted(wanted - held):
        raise LookupError(f"not tried, or does not hold: {missing}")
    lines = ["| library | version | tried | remarks |", "| --- | --- | --- | --- |"]
    for one in LIBRARIES:
        tried = ", ".join(TRIES[name] for name in one.tries)
        name = " + ".join((one.name, *one.beside))
        lines.append(f"| {name} | {one.shown} | {tried} | {one.remark} |")
    return _PAGE.format(lifetimes=len(Lifetime), table="\n".join(lines))


def main(arguments: list[str]) -> int:
    """Write the page, or compare it; return 1 if it can't be made or is another one."""
    try:
        made = page()
    except LookupError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if "--check" not in arguments:
        PAGE.write_text(made, encoding="utf-8")
    elif made != PAGE.read_text(encoding="utf-8"):
        sys.stderr.write("docs/reference/compatibility.md: run `make compat` to write it again\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
