"""The real lock, in hundreds of schedules of faults; `make simulate` runs more."""

from __future__ import annotations

import pytest

from .campaign import campaign, explained

# Split, so that several processes share them.
_EACH = 80


@pytest.mark.parametrize("part", range(4))
def test_no_schedule_breaks_a_promise(part: int) -> None:
    counts = campaign(range(part * _EACH, (part + 1) * _EACH))
    assert counts.failed == [], explained(counts.failed[0][0])
    assert counts.schedules == _EACH
    # A simulation in which nothing happens finds nothing.
    assert counts.acquisitions > 2 * _EACH
    assert len(counts.faults) > 10
