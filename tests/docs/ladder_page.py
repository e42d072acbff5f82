"""The runs that docs/explanation/ladder.md shows: `python -m tests.docs.ladder_page` makes them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.integration.ladder.rungs import OURS, RUNGS, Rung, run
from tests.support.evidence import record
from tests.support.root import ROOT

PAGE = ROOT / "docs" / "explanation" / "ladder.md"


def blocks_of(page: Path, rung: Rung) -> tuple[str, str]:
    """Return what a page shows of a rung: the foil's run, and ours."""
    foil, ours = re.findall(_BLOCK, _section(page.read_text(encoding="utf-8"), rung))
    return foil, ours


def main() -> int:
    """Run the whole ladder, write each run into the page; return 1 if a lock did not do as told."""
    text = PAGE.read_text(encoding="utf-8")
    held = dict[tuple[str, bool], bool]()
    for rung in RUNGS:
        runs = [run(rung, is_ours=is_ours) for is_ours in (False, True)]
        held |= {(rung.name, is_ours): runs[is_ours].held for is_ours in (False, True)}
        section = _section(text, rung)
        shown = section
        for block, stage in zip(_BLOCK.findall(section), runs, strict=True):
            shown = shown.replace(f"\n{block}\n```", "\n" + "\n".join(stage.lines) + "\n```", 1)
        text = text.replace(section, shown)
    PAGE.write_text(text, encoding="utf-8")
    foils_failed = sum(not held[rung.name, False] for rung in RUNGS)
    ours_held = sum(held[rung.name, True] for rung in RUNGS)
    record("ladder", rungs=len(RUNGS), foils_failed=foils_failed, ours_held=ours_held)
    sys.stdout.write(f"{foils_failed} foils failed, {OURS} held {ours_held} of {len(RUNGS)}\n")
    return int(min(foils_failed, ours_held) < len(RUNGS))


_BLOCK = re.compile(r"```text\n(.*?)\n```", re.DOTALL)


def _section(text: str, rung: Rung) -> str:
    """Return the part of a page that is under the rung's heading."""
    heading = f"## {RUNGS.index(rung) + 1}. {rung.name}\n"
    _, found, rest = text.partition(heading)
    if not found:
        raise ValueError(f"the page has no heading {heading!r}")
    return heading + re.split(r"^## ", rest, maxsplit=1, flags=re.MULTILINE)[0]


if __name__ == "__main__":
    sys.exit(main())
