"""Durations, sizes and numbers as text."""

from __future__ import annotations

import pytest

from celery_redlock import units


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0.04, "0.0 s"), (119.9, "119.9 s"), (120, "2 min"), (7200, "2 h"), (2e5, "2 d")],
)
def test_a_duration_is_shown_in_the_unit_that_fits(value: float | None, shown: str) -> None:
    assert units.seconds(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "-"), (0.0123, "+12.3 ms"), (-60.0, "-60.00 s"), (0, "+0.0 ms")]
)
def test_a_clock_s_offset_has_a_sign(value: float | None, shown: str) -> None:
    assert units.milliseconds(value, sign="+") == shown


def test_sizes_and_counts_are_plain() -> None:
    assert (units.size(None), units.size(1_234_567)) == ("-", "1.2 MB")
    assert (units.count(1, "node"), units.count(0, "node")) == ("1 node", "0 nodes")
