"""The report of the ladder: what each lock did, as `python -m tools.docs.ladder_page` records it.

The words are in ladder.md.j2; `tools.docs.reports` writes the report.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import jinja2

from tests.integration.ladder.rungs import OURS, RUNGS, run
from tests.support.evidence import record
from tests.support.root import ROOT

RECORD = ROOT / "docs" / "evidence" / "ladder" / "runs.json"
_WORDS = Path(__file__).with_name("ladder.md.j2")
Runs = Mapping[str, Mapping[str, list[str]]]
"""The lines of each rung's run, by its name: those of the "foil", and of "ours"."""


def read_record() -> Runs:
    """Return the recorded runs."""
    runs: Runs = json.loads(RECORD.read_text(encoding="utf-8"))
    return runs


def report(runs: Runs) -> str:
    """Return the report that shows these runs.

    Raises:
        jinja2.UndefinedError: One is missing.
    """
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  # Markdown, of our own runs
    )
    return environment.from_string(_WORDS.read_text(encoding="utf-8")).render(runs=runs)


def main() -> int:
    """Run the whole ladder, and record each run; return 1 if a lock did not do as told."""
    stages = {rung.name: [run(rung, is_ours=one) for one in (False, True)] for rung in RUNGS}
    lines = {
        name: {"foil": foil.lines, "ours": ours.lines} for name, (foil, ours) in stages.items()
    }
    RECORD.write_text(json.dumps(lines, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    foils_failed = sum(not foil.held for foil, _ in stages.values())
    ours_held = sum(ours.held for _, ours in stages.values())
    record("ladder", rungs=len(RUNGS), foils_failed=foils_failed, ours_held=ours_held)
    sys.stdout.write(f"{foils_failed} foils failed, {OURS} held {ours_held} of {len(RUNGS)}\n")
    return int(min(foils_failed, ours_held) < len(RUNGS))


if __name__ == "__main__":
    sys.exit(main())
