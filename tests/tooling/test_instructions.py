"""The reader of callgrind's files, by which the benchmarks count instructions."""

from __future__ import annotations

import pytest

from tests.benchmarks.instructions import total

PROFILE = """\
# callgrind format
version: 1
creator: callgrind-3.19.0
pid: 31814
cmd:  python -m tests.benchmarks.counted totals: 7

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
