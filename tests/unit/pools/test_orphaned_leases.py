"""Leases of dead pool processes are released with the done mark that their messages need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from celery_redlock.pools.lease_record import LeaseRecord
from celery_redlock.pools.orphaned_leases import PROVISIONAL_S, HeldLease, OrphanedLeases
from celery_redlock.redlock import Lease, QuorumUnavailable
from celery_redlock.redlock.lease import new_owner
from celery_redlock.redlock.release import DONE_S
from celery_redlock.redlock.task_lock import TaskLock
from tests.support.fakes.fake_clock import FakeClock


class Nodes(TaskLock):
    """A lock that notes the key that stays, the done mark and its ttl, of each release."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(["redis://127.0.0.1:1"], clock=clock)
        self.released: list[tuple[float, str | None, float]] = []
        self.is_down = False

    def release(self, lease: Lease, **how: Any) -> None:
        if self.is_down:
            raise QuorumUnavailable(lease.key, {}, 1, "release")
        self.released.append((how["keep"], how["done"], how["done_ttl"]))


class Stage:
    """The leases of dead processes, at 0 s."""

    def __init__(self) -> None:
        self.clock = FakeClock(0.0)
        self.nodes = Nodes(self.clock)
        self.orphans = OrphanedLeases()

    def held(
        self,
        *,
        done: str | None = "mark",
        comes_again: bool | None = None,
        min_hold_until: float = 0.0,
    ) -> HeldLease:
        lease = Lease("k", new_owner("task-1"), 7, 10_000, deadline=10.0, clock=self.clock)
        record = LeaseRecord.of(
            lease,
            pid=1,
            min_hold_until=min_hold_until,
            done=done,
            comes_again=comes_again,
        )
        return HeldLease(record, lease, comes_again)

    def step(self, *holding: HeldLease) -> None:
        self.orphans.apply_task_outcomes(self.nodes, holding)
        self.orphans.release_due(self.nodes)


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.nodes.close()


def test_a_mark_is_provisional_until_celery_has_decided(stage: Stage) -> None:
    stage.orphans.add_held(stage.held())
    stage.step()
    assert stage.nodes.released == [(0.0, "mark", PROVISIONAL_S)]
    stage.orphans.record_task_outcome("task-1", comes_again=False)
    stage.step()
    assert stage.nodes.released[1:] == [(0.0, "mark", DONE_S)]


def test_a_message_that_comes_again_gets_no_second_mark(stage: Stage) -> None:
    stage.orphans.add_held(stage.held())
    stage.step()
    stage.orphans.record_task_outcome("task-1", comes_again=True)
    stage.step()
    assert len(stage.nodes.released) == 1


@pytest.mark.parametrize(("comes_again", "mark"), [(True, None), (False, "mark")])
def test_an_outcome_before_the_death_decides_on_the_mark(
    stage: Stage, comes_again: bool, mark: str | None
) -> None:
    held = stage.held()
    stage.orphans.record_task_outcome("task-1", comes_again=comes_again)
    stage.step(held)
    stage.orphans.add_held(held)
    stage.step()
    assert [done for _, done, _ in stage.nodes.released] == [mark]


def test_the_outcome_of_another_task_changes_nothing(stage: Stage) -> None:
    stage.orphans.add_held(stage.held())
    stage.orphans.record_task_outcome("task-2", comes_again=False)
    stage.step()
    assert stage.nodes.released == [(0.0, "mark", PROVISIONAL_S)]


def test_an_outcome_after_a_minute_changes_nothing(stage: Stage) -> None:
    stage.orphans.add_held(stage.held())
    stage.step()
    stage.clock.move(60.1)
    stage.orphans.record_task_outcome("task-1", comes_again=False)
    stage.step()
    assert len(stage.nodes.released) == 1


def test_a_key_stays_for_the_rest_of_its_min_hold(stage: Stage) -> None:
    stage.clock.move(1.0)
    stage.orphans.add_held(stage.held(min_hold_until=4.0))
    stage.step()
    assert stage.nodes.released[0][0] == 3.0


def test_a_failed_release_is_repeated_without_a_warning(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.nodes.is_down = True
    stage.orphans.add_held(stage.held())
    for _ in range(3):
        stage.step()
    assert stage.orphans
    assert caplog.messages == []
    stage.nodes.is_down = False
    stage.step()
    assert not stage.orphans
    assert len(stage.nodes.released) == 1


def test_a_release_that_fails_after_the_deadline_is_a_warning(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.nodes.is_down = True
    stage.orphans.add_held(stage.held(done=None))
    stage.clock.move(10.0)
    stage.step()
    assert not stage.orphans
    [line] = caplog.messages
    assert line.startswith("lock not released key=k error=")
