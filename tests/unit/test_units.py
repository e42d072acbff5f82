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


@pytest.mark.parametrize(("value", "shown"), [(0.999, "999.0 ms"), (1, "1.00 s"), (0, "0.0 ms")])
def test_a_duration_is_shown_in_ms_below_a_second(value: float, shown: str) -> None:
    assert units.milliseconds(value) == shown


@pytest.mark.parametrize(
    ("most", "shown"), [(8, "abcdefgh"), (7, "abc…fgh"), (6, "abc…gh"), (5, "ab…gh"), (3, "a…h")]
)
def test_a_long_name_keeps_its_beginning_and_its_end(most: int, shown: str) -> None:
    assert units.middle("abcdefgh", most) == shown


def test_sizes_and_counts_are_plain() -> None:
    assert (units.size(None), units.size(1_234_567)) == ("-", "1.2 MB")
    assert units.size(10**11) == "100000.0 MB"
    assert (units.count(1, "node"), units.count(0, "node")) == ("1 node", "0 nodes")
