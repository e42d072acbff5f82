"""Figures of a run, kept for docs/explanation/evidence.md: one JSON file per kind of test."""

from __future__ import annotations

import json
import os
from pathlib import Path

from .root import ROOT


def record(kind: str, **figures: object) -> Path:
    """Write what a run has counted, in place of what its last run wrote.

    Args:
        kind: What was run; the file's name: "simulation".
        figures: What was counted, by name; JSON can hold each.

    Returns:
        The file, in REDLOCK_EVIDENCE_INTO, or build/evidence.
    """
    folder = Path(os.environ.get("REDLOCK_EVIDENCE_INTO", ROOT / "build" / "evidence"))
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{kind}.json"
    file.write_text(json.dumps(figures, indent=2, sort_keys=True) + "\n")
    return file


def recorded(folder: Path) -> dict[str, dict[str, object]]:
    """Return the figures in a folder, by kind."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}
