"""Snapshots that viewers share."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from celery_redlock.operate import snapshots as module
from celery_redlock.operate.overview import Overview, read_overview
from celery_redlock.operate.snapshots import Snapshots
from tests.support.fakes.operated import Operated


def seconds(three: Operated) -> float:
    return three.wall_us() / 1e6


def test_many_viewers_cost_the_nodes_one_look(three: Operated) -> None:
    redlock = three.redlock()
    snapshots = Snapshots(three.target(), 10, lambda: seconds(three))
    first = snapshots.get()
    redlock.acquire("k", 30)
    assert snapshots.get() is first
    assert snapshots.get("k").overview.found == 1
    three.sleep(1.0)
    assert snapshots.get().overview.found == 1


def test_the_nodes_rest_longer_than_a_look_took(
    three: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*args: Any) -> Overview:
        three.sleep(2.0)
        return read_overview(*args)

    monkeypatch.setattr(module, "read_overview", slow)
    snapshots = Snapshots(three.target(), 10, lambda: seconds(three))
    first = snapshots.get()
    three.sleep(9.0)
    assert snapshots.get() is first
    three.sleep(1.0)
    assert snapshots.get() is not first


def test_ticks_are_kept_for_an_hour_after_the_nodes_forgot_them(three: Operated) -> None:
    three.redlock().reserve("%beat:bank@0:poll:2026-01-01T00:00:00Z", 30, label="id")
    time = 1_767_225_600.0
    snapshots = Snapshots(three.target(), 10, lambda: time)
    assert [tick.entry for tick in snapshots.get().ticks] == ["poll"]
    three.sleep(31.0)
    time += 3599
    assert [tick.entry for tick in snapshots.get().ticks] == ["poll"]
    time += 2
    assert snapshots.get().ticks == ()


def test_claims_are_not_among_the_locks(three: Operated) -> None:
    three.redlock().reserve("%beat:bank@0:poll:2026-01-01T00:00:00Z", 30, label="id")
    overview = Snapshots(three.target(), 10, lambda: seconds(three)).get().overview
    assert (overview.oldest, overview.found, overview.counts) == ([], 0, {"claim": 1})


@pytest.mark.parametrize(("late", "is_published"), [(5, False), (120, True)])
def test_the_end_of_a_mark_is_no_new_claim(
    three: Operated, late: float, *, is_published: bool
) -> None:
    three.redlock().reserve("%beat:bank@0:poll:2026-01-01T00:00:00Z", 9, label="id")
    [tick] = Snapshots(three.target(), 10, lambda: 1_767_225_600.0 + late).get().ticks
    assert tick.is_published is is_published


def test_viewers_get_the_snapshot_before_while_another_is_taken(three: Operated) -> None:
    is_renewing, may_end, times = threading.Event(), threading.Event(), iter([0.0, 0.0])

    def now() -> float:
        for at in times:
            return at
        is_renewing.set()
        may_end.wait(60)
        return 100.0

    snapshots = Snapshots(three.target(), 200, now)
    first = snapshots.get()
    with ThreadPoolExecutor(1) as threads:
        renewed = threads.submit(snapshots.get)
        try:
            assert is_renewing.wait(60)
            assert snapshots.get() is first
        finally:
            may_end.set()
        assert renewed.result(60) is not first
