"""Each rung of the known ladder of Redis locks fails where it is known to; ours holds there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.evidence import record
from tools.docs.ladder_page import read_record

from .rungs import RUNGS, Rung, run


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[tuple[str, bool], bool]]:
    """Which locks held, by rung and whether it was ours; recorded if all have been tried."""
    held: dict[tuple[str, bool], bool] = {}
    yield held
    if len(held) == 2 * len(RUNGS):
        record(
            "ladder",
            rungs=len(RUNGS),
            foils_failed=sum(not held[rung.name, False] for rung in RUNGS),
            ours_held=sum(held[rung.name, True] for rung in RUNGS),
        )


@pytest.mark.long
@pytest.mark.usefixtures("_has_server")
@pytest.mark.parametrize("is_ours", [False, True], ids=["foil", "ours"])
@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name.replace(" ", "-"))
def test_a_rung_fails_where_it_is_known_to_and_ours_holds(
    outcomes: dict[tuple[str, bool], bool], rung: Rung, is_ours: bool
) -> None:
    stage = run(rung, is_ours=is_ours)
    outcomes[rung.name, is_ours] = stage.held
    assert stage.held is is_ours, "\n".join(stage.lines)
    # If only this fails: `python -m tools.docs.ladder_page` records the runs again.
    assert stage.lines == read_record()[rung.name]["ours" if is_ours else "foil"]
