"""Figures of a run, kept for docs/evidence: one JSON file per kind of test."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tools.evidence.runs import run_now

from .root import ROOT


def record(kind: str, **figures: object) -> Path:
    """Write what a run has counted, and of which code, in place of what its last run wrote.

    Args:
        kind: What was run; the file's name: "simulation".
        figures: What was counted, by name; JSON can hold each.

    Returns:
        The file, in REDLOCK_EVIDENCE_INTO, or build/evidence.
    """
    folder = Path(os.environ.get("REDLOCK_EVIDENCE_INTO", ROOT / "build" / "evidence"))
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{kind}.json"
    whole = {**figures, "run": run_now(kind.partition("--")[0])}
    file.write_text(json.dumps(whole, indent=2, sort_keys=True) + "\n")
    return file


def recorded(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the figures in a folder, by kind; those of its parts (`kind--part`) are one's.

    Of which code they are, `tools.evidence.runs.runs_in` says.
    """
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(folder.glob("*.json")):
        kind, _, part = file.stem.partition("--")
        figures = found.setdefault(kind, {})
        read = json.loads(file.read_text())
        read.pop("run", None)
        for name, figure in read.items():
            is_sum = part and isinstance(figure, dict)
            figures[name] = figures.get(name, {}) | figure if is_sum else figure
    return found


class HostileInputs:
    """Counts of one kind of input that was made to do harm: those tried, and those refused.

    A test that counts fails at the first violation: there is none where they are recorded.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.tried = 0
        self.refused: int | None = None

    def refuse(self) -> None:
        """Count one that was refused."""
        self.refused = (self.refused or 0) + 1

    def record(self) -> None:
        """Write them to a part of the figures of hostile input."""
        refused = {} if self.refused is None else {"refused": {self.kind: self.refused}}
        part = self.kind.replace(" ", "_")
        record(f"hostile_input--{part}", tried={self.kind: self.tried}, violations=0, **refused)


@contextmanager
def hostile_inputs(kind: str, session: pytest.Session) -> Iterator[HostileInputs]:
    """Count inputs of a kind, and record them unless a test fails meanwhile."""
    counts, failed = HostileInputs(kind), session.testsfailed
    yield counts
    if session.testsfailed == failed:
        counts.record()
