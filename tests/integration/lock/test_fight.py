"""Sixteen processes fight for one lock; `tests/chaos` has the long version."""

from __future__ import annotations

from pathlib import Path

from celery_redlock.testing import Servers
from tests.support.eventually import eventually
from tests.support.judges.fight import (
    KEY,
    LONGEST_TTL,
    Hold,
    disorders,
    fight,
    overlaps,
    twins,
)
from tests.support.judges.nodes import holders_on, ms_left_on


def test_nobody_holds_it_with_another_and_tokens_grow(five: Servers, tmp_path: Path) -> None:
    holds: list[Hold] = []

    def have_held() -> bool:
        holds[:] = fight(tmp_path, five.urls, processes=16, seconds=6, crashes=0.05)
        return len(holds) > 10 and len({hold.who for hold in holds}) > 3

    eventually(have_held, "enough to judge by: on a busy machine it takes several fights")
    assert max(ms_left_on(server, KEY) for server in five) <= LONGEST_TTL * 1000
    assert overlaps(holds) == []
    assert disorders(holds) == []
    assert twins(holds) == []
    eventually(lambda: holders_on(five, KEY) == [None] * 5)
