"""The protocol in Promela has the verdicts of the table, as the model in Python has them.

Not in tests/model: no Python version and no Celery changes what Spin finds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model.promela.spin import check, is_installed
from tests.model.table import LARGER, TABLE, Row
from tests.model.verdicts import explored
from tests.support.evidence import record
from tests.support.requirements import unmet

ROWS = {row.name: row for row in TABLE}


@pytest.fixture(autouse=True)
def _spin() -> None:
    if not is_installed():
        unmet("Spin and gcc are not on PATH; on Debian: apt-get install spin gcc", "spin")


@pytest.mark.long
@pytest.mark.parametrize("row", TABLE, ids=str)
def test_spin_finds_what_the_table_says(row: Row, tmp_path: Path) -> None:
    checked = check(row, tmp_path)
    assert checked.violation == row.violation, checked.said
    assert checked.holds == row.is_sound, checked.said


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("protocol", "phase[0] == HELD && phase[1] == HELD && token[0] > token[1]"),
        ("protocol, duplicated grant", "duplicates == 0 && phase[0] == HELD && phase[1] == HELD"),
        ("healing with both rules", "phase[0] == RELEASING && phase[1] == RELEASING"),
        ("lost after a majority of raised floors", "phase[0] == LOST && phase[1] == HELD"),
        ("hand over by the floor", "phase[1] == HELD && phase[2] == RELEASING"),
        ("supersede the named owner", "phase[0] == HELD && phase[2] == HELD"),
        ("one node forgets, guard", "forgetting == 0 && phase[0] == HELD && phase[1] == HELD"),
        (
            "one node forgets, admitted",
            "forgetting == 0 && SUM(WAITS, 0) == 0 && phase[0] == RELEASING && phase[1] == HELD",
        ),
    ],
)
def test_a_search_that_holds_is_about_something(name: str, state: str, tmp_path: Path) -> None:
    checked = check(ROWS[name], tmp_path, reaches=state)
    assert checked.violation == "this_state_is_reached", checked.said


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_both_encodings_agree_in_larger_worlds_too(tmp_path: Path) -> None:
    """Their figures are those of the page of evidence."""
    in_python, in_promela = {}, {}
    for number, row in enumerate((*TABLE, *LARGER)):
        in_python[row.name] = explored(row.scope, *row.promises, rules=row.rules)
        (folder := tmp_path / str(number)).mkdir()
        in_promela[row.name] = check(row, folder)
    for row in (*TABLE, *LARGER):
        found, checked = in_python[row.name], in_promela[row.name]
        assert found.violation == checked.violation == row.violation, row.name
        assert found.holds == checked.holds == row.is_sound, row.name
    verdicts = {row.name: row.violation or "holds" for row in (*TABLE, *LARGER)}
    unexpected = 0  # asserted above
    states = {name: found.states for name, found in in_python.items()}
    record("model", states=states, verdicts=verdicts, violations=unexpected)
    states = {name: checked.states for name, checked in in_promela.items()}
    record("promela", states=states, verdicts=verdicts, violations=unexpected)
