"""How many mutants of each file were killed, live, or change nothing that a test could see."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.support.evidence import record, recorded
from tests.support.root import ROOT

PACKAGE = "celery_redlock"
_EQUIVALENT = Path(__file__).with_name("equivalent.json")
PUBLISHED = ROOT / "docs" / "evidence"
RECORDED = ROOT / "build" / "evidence"
_VERDICTS = ("killed", "survived", "equivalent")


class Equivalent(NamedTuple):
    """A change that changes nothing, and why.

    Attributes:
        file: File, below the package.
        change: Lines that it removes and adds, without their indentation.
        reason: Why no test can tell.
    """

    file: str
    change: str
    reason: str


def equivalents() -> list[Equivalent]:
    """Return the changes that are known to change nothing, in the order in which they are kept."""
    known = json.loads(_EQUIVALENT.read_text(encoding="utf-8"))
    return [
        Equivalent(one["file"], "\n".join(change), one["reason"])
        for one in known
        for change in one["changes"]
    ]


class Scores:
    """Verdicts on mutants, by file."""

    def __init__(self) -> None:
        self._by_file: dict[str, Counter[str]] = {}
        self._known = {(one.file, one.change): one.reason for one in equivalents()}
        self._met: set[tuple[str, str]] = set()

    def kill(self, file: str, count: int = 1) -> None:
        """Count mutants that a test has noticed."""
        self._add(file, "killed", count)

    def judge(self, file: str, change: str) -> None:
        """Count a mutant that no test has noticed; print it unless its reason is known."""
        if (file, change) in self._known:
            self._met.add((file, change))
            self._add(file, "equivalent")
            return
        self._add(file, "survived")
        sys.stdout.write(f"survived: {file}\n{change}\n\n")

    def told(self, *, is_complete: bool) -> int:
        """Print the scores, and record them if every mutant was tried.

        A file that was not mutated keeps the figures of its last run.

        Returns:
            1 if a mutant lives without a reason, or a reason without its mutant; else 0.
        """
        outdated = [
            f"{file}\n{change}\n\n"
            for file, change in self._known
            if is_complete and file in self._by_file and (file, change) not in self._met
        ]
        sys.stdout.write(
            "".join(f"killed or gone, but in {_EQUIVALENT.name}: {x}" for x in outdated)
        )
        for file, counts in sorted(self._by_file.items()):
            sys.stdout.write(f"{file}: {_told(counts)}\n")
        total: Counter[str] = sum(self._by_file.values(), Counter())
        sys.stdout.write(f"all: {_told(total)}\n")
        if is_complete:
            self._record()
        return int(bool(outdated or total["survived"]))

    def _add(self, file: str, verdict: str, count: int = 1) -> None:
        self._by_file.setdefault(file, Counter())[verdict] += count

    def _record(self) -> None:
        rows = _last() | {
            file: {verdict: counts[verdict] for verdict in _VERDICTS}
            for file, counts in self._by_file.items()
        }
        total = {verdict: sum(row[verdict] for row in rows.values()) for verdict in _VERDICTS}
        record("mutants", by_file=rows, **total)


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in _VERDICTS)


def _last() -> dict[str, dict[str, int]]:
    """Return the figures of the last run, or else of the documentation, for files that exist."""
    for folder in (RECORDED, PUBLISHED):
        by_file = recorded(folder).get("mutants", {}).get("by_file")
        if isinstance(by_file, dict):
            return {file: row for file, row in by_file.items() if (ROOT / PACKAGE / file).is_file()}
    return {}
