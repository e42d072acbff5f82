"""Sixty-four processes fight for one lock on five nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_redlock.testing import Server, Servers
from tests.support.eventually import eventually
from tests.support.evidence import record
from tests.support.judges import linearizability
from tests.support.judges.fenced_register import (
    FencedRegister,
    history_in,
    refused_in,
    updates_lost,
)
from tests.support.judges.fight import KEY, LONGEST_TTL, Hold, disorders, fight, overlaps, twins
from tests.support.judges.nodes import holders_on, ms_left_on

pytestmark = pytest.mark.chaos
FIGHT_S = 20.0


def judge(holds: list[Hold], five: Servers) -> None:
    assert max(ms_left_on(server, KEY) for server in five) <= LONGEST_TTL * 1000
    assert overlaps(holds) == []
    assert disorders(holds) == []
    assert twins(holds) == []
    assert len(holds) > 20
    assert len({hold.who for hold in holds}) > 16
    eventually(lambda: set(holders_on(five, KEY)) == {None}, "no key outlives its ttl")


def test_nobody_holds_it_with_another_and_tokens_grow(five: Servers, tmp_path: Path) -> None:
    judge(fight(tmp_path, five.urls, processes=64, seconds=FIGHT_S, crashes=0.0), five)


def test_it_is_so_though_holders_are_killed(five: Servers, tmp_path: Path) -> None:
    judge(fight(tmp_path, five.urls, processes=64, seconds=FIGHT_S, crashes=0.2), five)


def test_it_is_so_with_a_node_down_and_another_hung(five: Servers, tmp_path: Path) -> None:
    five[0].kill()
    five[1].pause()
    holds = fight(tmp_path, five.urls, processes=64, seconds=FIGHT_S, crashes=0.05)
    judge(holds, Servers(five[2:]))
    five[1].resume()
    eventually(lambda: holders_on(five[1:], KEY) == [None] * 4)


# ---- what a user relies on: the resource behind the lock


@pytest.fixture
def register() -> Iterator[Server]:
    """A server with a register that the holders count up; it is no node of the lock."""
    with Server() as server:
        yield server


def test_a_fenced_register_refuses_who_wakes_too_late(
    five: Servers, register: Server, tmp_path: Path
) -> None:
    fight(tmp_path, five.urls, register=register.url, processes=16, seconds=FIGHT_S, crashes=0.05)
    history = history_in(tmp_path)
    judgement = linearizability.judge(history, FencedRegister())
    assert judgement.is_linearizable, str(judgement)
    assert updates_lost(history) == {}
    assert refused_in(history) > 0, "nobody was late: the fence was not tried"
    record(
        "histories",
        checked=judgement.keys,
        operations=len(history),
        refused_stale_writes=refused_in(history),
        violations=0,  # asserted above
    )


def test_a_register_without_a_fence_is_found_out(
    five: Servers, register: Server, tmp_path: Path
) -> None:
    """Holders sleep past their deadline, and write: what the lock alone can't prevent."""
    fight(
        tmp_path, five.urls, register=register.url, processes=16, seconds=FIGHT_S, crashes=0.0,
        is_fenced=False,
    )  # fmt: skip
    history = history_in(tmp_path)
    assert not linearizability.judge(history, FencedRegister()).is_linearizable
    assert updates_lost(history)
