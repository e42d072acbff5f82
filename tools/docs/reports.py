"""The reports behind the page of evidence: made of recorded data as the site is built, not kept.

    python -m tools.docs.reports [FOLDER]

It writes them into FOLDER, build/reports by default.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.evidence import recorded
from tests.support.root import ROOT
from tools.benchmarks.page import Page
from tools.benchmarks.publication import report as measurements
from tools.docs import equivalent_mutants_page, known_bugs_page, ladder_page
from tools.docs.first_hour import page as first_hour_page
from tools.evidence.publication import report as runs
from tools.evidence.runs import FOLDER, PERFORMANCE, runs_in

REPORTS: Mapping[str, Callable[[], str]] = {
    "runs": lambda: runs(recorded(FOLDER), runs_in(FOLDER)),
    "measurements": lambda: measurements(Page.load(PERFORMANCE)),
    "ladder": lambda: ladder_page.report(ladder_page.read_record()),
    "known-bugs": known_bugs_page.report,
    "equivalent-mutants": equivalent_mutants_page.report,
    "first-hour": lambda: first_hour_page.report(first_hour_page.read_record()),
}
"""What returns each report, by its name in docs/evidence/."""


def title(text: str) -> str:
    """Return the title of a report."""
    return text.partition("\n")[0].removeprefix("# ")


def main(arguments: list[str]) -> None:
    """Write each report into a folder."""
    into = Path(arguments[0]) if arguments else ROOT / "build" / "reports"
    into.mkdir(parents=True, exist_ok=True)
    for name, made in REPORTS.items():
        (into / f"{name}.md").write_text(made(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
