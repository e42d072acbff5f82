"""Snapshots that viewers share."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_redlock.operate import operator_log
from celery_redlock.operate import snapshots as module
from celery_redlock.operate.operator_log import Action, recorded
from celery_redlock.operate.overview import Overview, read_overview
from celery_redlock.operate.snapshots import Snapshots
from tests.support.fakes.operated import Operated
from tests.support.fakes.told import Told, active


def seconds(three: Operated) -> float:
    return three.wall_us() / 1e6


def test_many_viewers_cost_the_nodes_one_look(three: Operated) -> None:
    redlock = three.redlock()
    snapshots = Snapshots(three.target(), 10, lambda: seconds(three))
    first = snapshots.get()
    redlock.acquire("k", 30)
    assert snapshots.get() == first
    assert snapshots.get("k").found == 0
    three.sleep(1.0)
    assert snapshots.get().found == 1


def test_many_filters_cost_the_nodes_one_look(
    three: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    redlock, reads = three.redlock(), []
    for number in range(20):
        redlock.acquire(f"k{number}x", 30)
    redlock.reserve("k1y", 30)

    def counted(*args: Any) -> Overview:
        reads.append(args)
        return read_overview(*args)

    monkeypatch.setattr(module, "read_overview", counted)
    snapshots = Snapshots(three.target(), 10, lambda: seconds(three))
    found = [snapshots.get(f"k{number}x") for number in range(20)]
    assert [([lock.key for lock in one.oldest], one.found) for one in found] == [
        ([f"k{number}x"], 1) for number in range(20)
    ]
    assert snapshots.get(kind="reserved").found == 1
    assert (len(snapshots.get().oldest), snapshots.get().found) == (10, 21)
    assert len(reads) == 1


def test_beyond_what_is_kept_a_filter_says_how_many_it_searches(
    three: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    redlock = three.redlock()
    for number in range(4):
        redlock.acquire(f"k{number}", 30)
        three.sleep(0.1)
    monkeypatch.setattr(module, "_KEPT", 3)
    snapshots = Snapshots(three.target(), 2, lambda: seconds(three))
    assert (snapshots.get().found, snapshots.get().searched) == (4, 3)
    assert snapshots.get("k3").found == 0
    monkeypatch.setattr(module, "_KEPT", 4)
    assert Snapshots(three.target(), 2, lambda: seconds(three)).get().searched is None


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
    assert snapshots.get().at == first.at
    three.sleep(1.0)
    assert snapshots.get().at > first.at


def test_a_clock_that_steps_back_ends_a_snapshot(three: Operated) -> None:
    times = [1000.0]
    snapshots = Snapshots(three.target(), 10, lambda: times[-1])
    assert snapshots.get().at == 1000.0
    times.append(999.9)
    assert snapshots.get().at == 999.9


def test_only_the_latest_ticks_are_kept(three: Operated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_TICKS", 2)
    for entry, minute in (("a", 2), ("b", 0), ("c", 1)):
        three.redlock().reserve(f"%beat:bank@0:{entry}:2026-01-01T00:0{minute}:00Z", 30)
    snapshots = Snapshots(three.target(), 10, lambda: 1_767_225_720.0)
    assert [tick.entry for tick in snapshots.get().ticks] == ["c", "a"]


@pytest.mark.parametrize(
    ("answers", "worker", "problem"),
    [
        ({"celery@vm": [active("task-1")]}, "celery@vm (pid 7)", None),
        ({}, "None", "no worker answered within 1 s"),
    ],
)
def test_a_snapshot_tells_the_workers_or_why_they_are_unknown(
    three: Operated,
    monkeypatch: pytest.MonkeyPatch,
    answers: dict[str, object],
    worker: str,
    problem: str | None,
) -> None:
    app = Celery("bank", broker="memory://", set_as_current=False)
    Told(app, monkeypatch, answers)
    three.redlock().acquire("k", 30, label="task-1")
    seen = Snapshots(three.target(app=app), 10, lambda: seconds(three)).get()
    assert ([str(lock.execution) for lock in seen.oldest], seen.problem) == ([worker], problem)


def test_ticks_are_kept_for_an_hour_after_the_nodes_forgot_them(three: Operated) -> None:
    three.redlock().reserve("%beat:bank@0:poll:2026-01-01T00:00:00Z", 30, label="id")
    time = 1_767_225_600.0
    snapshots = Snapshots(three.target(), 10, lambda: time)
    assert [tick.entry for tick in snapshots.get().ticks] == ["poll"]
    three.sleep(31.0)
    time += 3600
    assert [tick.entry for tick in snapshots.get().ticks] == ["poll"]
    time += 1
    assert snapshots.get().ticks == ()


def test_claims_are_not_among_the_locks(three: Operated) -> None:
    three.redlock().reserve("%beat:bank@0:poll:2026-01-01T00:00:00Z", 30, label="id")
    overview = Snapshots(three.target(), 10, lambda: seconds(three)).get()
    assert (overview.oldest, overview.found, overview.counts) == ([], 0, {"published": 1})


@pytest.mark.parametrize(("late", "state"), [(5, "claim"), (60, "claim"), (61, "published")])
def test_the_end_of_a_mark_is_no_new_claim(three: Operated, late: float, state: str) -> None:
    three.redlock().reserve("%beat:bank@0:poll:2026-01-01T00:00:00Z", 9, label="id")
    [tick] = Snapshots(three.target(), 10, lambda: 1_767_225_600.0 + late).get().ticks
    assert tick.state == state


def test_a_published_tick_is_no_claim_when_its_mark_is_about_to_end(three: Operated) -> None:
    three.redlock().reserve("%beat:bank@0:poll:2026-01-01T00:00:00Z", 30, label="id")
    times = [1_767_225_605.0]
    snapshots = Snapshots(three.target(), 10, lambda: times[-1])
    assert [tick.state for tick in snapshots.get().ticks] == ["published"]
    three.sleep(29.0)
    times.append(times[0] + 29)
    assert [tick.state for tick in snapshots.get().ticks] == ["published"]


def test_a_missed_tick_is_shown_as_such_until_it_is_published(three: Operated) -> None:
    key, at = "%beat:bank@0:poll:2026-01-01T00:00:00Z", 1_767_225_600.0
    redlock = three.redlock()
    times = [at + 10]
    snapshots = Snapshots(three.target(), 10, lambda: times[-1])
    redlock.reserve(key, 9, label="id")  # its claimant died
    assert [tick.state for tick in snapshots.get().ticks] == ["claim"]
    redlock.reserve(f"{key}:missed", 86_400, label="id")
    for later in (20, 120):
        times.append(at + later)
        snapshot = snapshots.get()
        assert [tick.state for tick in snapshot.ticks] == ["missed"]
        assert [tick.slot for tick in snapshot.missed] == ["2026-01-01T00:00:00Z"]
        assert snapshot.counts["missed"] == 1
    three.sleep(10)
    redlock.reserve(key, 120, label="id")
    times.append(at + 200)
    assert [tick.state for tick in snapshots.get().ticks] == ["published"]
    assert snapshots.get().missed == []


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
            assert snapshots.get().at == first.at
        finally:
            may_end.set()
        assert renewed.result(60).at > first.at


def test_the_latest_actions_come_first_and_without_a_quorum_they_are_unknown(
    three: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_log, "time", SimpleNamespace(time=lambda: seconds(three)))
    for number in range(21):
        with three.target().nodes() as nodes:
            action = Action("release", "alice@ops", f"lock {number}")
            with recorded(three.target(), nodes, action) as result:
                result.text = "released"
        three.sleep(1.0)
    snapshots = Snapshots(three.target(), 10, lambda: seconds(three))
    assert [one.what for one in snapshots.get().actions] == [
        f"lock {number}" for number in range(20, 0, -1)
    ]
    for number, knows in ((0, True), (1, False)):
        three[number].refused["LRANGE"] = "NOPERM"
        three.sleep(10.0)
        overview = snapshots.get()
        assert overview.knows_actions is knows
        assert len(overview.unread) == number + 1
        assert len(overview.actions) == 20


def test_without_a_viewer_of_actions_none_are_read(three: Operated) -> None:
    for node in three.nodes:
        node.refused["LRANGE"] = "NOPERM"  # type: ignore[attr-defined]
    overview = read_overview(three.target(), 10)
    assert (overview.actions, overview.unread, overview.knows_actions) == ([], {}, True)
