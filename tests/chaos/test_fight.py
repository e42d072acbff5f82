"""Sixty-four processes fight for one lock on five nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_redlock.testing import Servers
from tests.support.eventually import eventually
from tests.support.judges.fight import KEY, LONGEST_TTL, Hold, disorders, fight, overlaps, twins
from tests.support.judges.nodes import holders_on, ms_left_on

pytestmark = pytest.mark.chaos
SECONDS = 20.0


def judge(holds: list[Hold], five: Servers) -> None:
    assert max(ms_left_on(server, KEY) for server in five) <= LONGEST_TTL * 1000
    assert overlaps(holds) == []
    assert disorders(holds) == []
    assert twins(holds) == []
    assert len(holds) > 50
    assert len({hold.who for hold in holds}) > 16
    eventually(lambda: set(holders_on(five, KEY)) == {None}, "no key outlives its ttl")


def test_nobody_holds_it_with_another_and_tokens_grow(five: Servers, tmp_path: Path) -> None:
    judge(fight(tmp_path, five.urls, processes=64, seconds=SECONDS, crashes=0.0), five)


def test_it_is_so_though_holders_are_killed(five: Servers, tmp_path: Path) -> None:
    judge(fight(tmp_path, five.urls, processes=64, seconds=SECONDS, crashes=0.2), five)


def test_it_is_so_with_a_node_down_and_another_hung(five: Servers, tmp_path: Path) -> None:
    five[0].kill()
    five[1].pause()
    holds = fight(tmp_path, five.urls, processes=64, seconds=SECONDS, crashes=0.05)
    judge(holds, Servers(five[2:]))
    five[1].resume()
    eventually(lambda: holders_on(five[1:], KEY) == [None] * 4)
