"""The instructions that the benchmarks count: how they are read, and judged."""

from __future__ import annotations

import pytest

from tools.benchmarks.instructions import over_plain, regressions, total
from tools.benchmarks.names import OURS, PLAIN

PROFILE = """\
# callgrind format
version: 1
creator: callgrind-3.19.0
pid: 31814
cmd:  python -m tools.benchmarks.counted totals: 7

positions: line
events: Ir

fn=(1) totals: 8
16 3
+1 5

totals: 2642023958
"""


def test_the_total_is_the_one_below_all_functions() -> None:
    assert total(PROFILE) == 2_642_023_958


@pytest.mark.parametrize("profile", ["", PROFILE.partition("\ntotals")[0], "totals: \n"])
def test_a_profile_without_a_total_is_an_error(profile: str) -> None:
    with pytest.raises(LookupError, match="counted nothing"):
        total(profile)


@pytest.mark.parametrize(
    ("to_execute", "is_refused"), [(400.0, False), (411.0, False), (413.0, True)]
)
def test_a_task_may_cost_three_percent_more_than_by_the_baseline(
    to_execute: float, is_refused: bool
) -> None:
    plain = {"name": PLAIN, "to_publish": 100.0, "to_execute": 100.0}
    counted = over_plain([plain, {"name": OURS, "to_publish": 110.0, "to_execute": to_execute}])
    refused = regressions(counted, {OURS: {"to_publish": 1.1, "to_execute": 4.0}})
    expected = (
        f"{OURS}, to_execute: {to_execute / 100} times a task without a lock, 4.0 by the baseline"
    )
    assert refused == [expected] * is_refused
