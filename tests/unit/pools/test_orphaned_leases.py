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
from tests.support.fakes.one_node import OneNode
from tests.support.fakes.simulated_network import Network


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
        will_be_redelivered: bool | None = None,
        min_hold_until: float = 0.0,
        task_id: str = "task-1",
    ) -> HeldLease:
        lease = Lease("k", new_owner(task_id), 7, 10_000, deadline=10.0, clock=self.clock)
        record = LeaseRecord.of(
            lease,
            pid=1,
            min_hold_until=min_hold_until,
            done=done,
            will_be_redelivered=will_be_redelivered,
        )
        return HeldLease(record, lease, will_be_redelivered)

    def step(self, *holding: HeldLease) -> None:
        self.orphans.apply_task_outcomes(self.nodes, holding)
        self.orphans.release_all(self.nodes)


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.nodes.close()


def test_a_mark_is_provisional_until_celery_has_decided(stage: Stage) -> None:
    stage.orphans.add_held(stage.held())
    stage.step()
    assert stage.nodes.released == [(0.0, "mark", 10.0)]
    stage.orphans.record_task_outcome("task-1", will_be_redelivered=False)
    stage.step()
    assert stage.nodes.released[1:] == [(0.0, "mark", DONE_S)]


def test_a_message_that_comes_again_gets_no_second_mark(stage: Stage) -> None:
    stage.orphans.add_held(stage.held())
    stage.step()
    stage.orphans.record_task_outcome("task-1", will_be_redelivered=True)
    stage.step()
    assert len(stage.nodes.released) == 1


@pytest.mark.parametrize(("will_be_redelivered", "mark"), [(True, None), (False, "mark")])
def test_an_outcome_before_the_death_decides_on_the_mark(
    stage: Stage, will_be_redelivered: bool, mark: str | None
) -> None:
    held = stage.held()
    stage.orphans.record_task_outcome("task-1", will_be_redelivered=will_be_redelivered)
    stage.step(held)
    stage.orphans.add_held(held)
    stage.step()
    assert [done for _, done, _ in stage.nodes.released] == [mark]


def test_the_outcome_of_another_task_changes_nothing(stage: Stage) -> None:
    stage.orphans.add_held(stage.held())
    stage.orphans.record_task_outcome("task-2", will_be_redelivered=False)
    stage.step()
    assert stage.nodes.released == [(0.0, "mark", PROVISIONAL_S)]


def test_an_outcome_is_for_its_own_task_among_many(stage: Stage) -> None:
    for task_id in ("task-1", "task-2", "task-3"):
        stage.orphans.add_held(stage.held(done=task_id, task_id=task_id))
    stage.step()
    stage.nodes.released.clear()
    stage.orphans.record_task_outcome("task-2", will_be_redelivered=False)
    stage.step()
    assert stage.nodes.released == [(0.0, "task-2", DONE_S)]
    stage.orphans.record_task_outcome("task-2", will_be_redelivered=False)
    stage.orphans.record_task_outcome("task-3", will_be_redelivered=False)
    stage.step()
    assert stage.nodes.released[1:] == [(0.0, "task-3", DONE_S)], "each once"


@pytest.mark.parametrize("task_id", ["\ud800", "x" * 1_200_000], ids=["surrogate", "long"])
def test_the_outcome_of_a_task_of_any_id_is_applied(stage: Stage, task_id: str) -> None:
    stage.orphans.add_held(stage.held(task_id=task_id))
    stage.step()
    stage.orphans.record_task_outcome(task_id, will_be_redelivered=False)
    stage.step()
    assert stage.nodes.released[1:] == [(0.0, "mark", DONE_S)]


def test_a_lease_without_a_mark_waits_for_no_outcome(stage: Stage) -> None:
    stage.orphans.add_held(stage.held(done=None))
    stage.step()
    stage.orphans.record_task_outcome("task-1", will_be_redelivered=False)
    stage.step()
    assert stage.nodes.released == [(0.0, None, PROVISIONAL_S)]


def test_the_mark_of_a_known_outcome_is_not_set_again(stage: Stage) -> None:
    stage.orphans.add_held(stage.held(will_be_redelivered=False))
    stage.step()
    stage.orphans.record_task_outcome("task-1", will_be_redelivered=False)
    stage.step()
    assert stage.nodes.released == [(0.0, "mark", DONE_S)]


def test_an_outcome_counts_for_a_minute(stage: Stage) -> None:
    stage.orphans.add_held(stage.held())
    stage.step()
    stage.clock.move(60.0)
    stage.orphans.record_task_outcome("task-1", will_be_redelivered=False)
    stage.step()
    assert len(stage.nodes.released) == 2


@pytest.mark.parametrize(("will_be_redelivered", "mark"), [(False, "mark"), (True, None)])
def test_an_outcome_that_is_known_stays_known(
    stage: Stage, will_be_redelivered: bool, mark: str | None
) -> None:
    stage.orphans.add_held(stage.held(will_be_redelivered=will_be_redelivered))
    stage.orphans.record_task_outcome("task-2", will_be_redelivered=not will_be_redelivered)
    stage.step()
    [(_, done, ttl)] = stage.nodes.released
    assert done == mark
    assert ttl in (DONE_S, 0.0)


def test_an_outcome_after_a_minute_changes_nothing(stage: Stage) -> None:
    stage.orphans.add_held(stage.held())
    stage.step()
    stage.clock.move(60.1)
    stage.orphans.record_task_outcome("task-1", will_be_redelivered=False)
    stage.step()
    assert len(stage.nodes.released) == 1


def test_one_release_that_fails_holds_up_no_other(stage: Stage) -> None:
    failing, other = stage.held(done="failing"), stage.held(done="other")
    release = stage.nodes.release

    def release_or_fail(lease: Lease, **how: Any) -> None:
        if lease is failing.lease:
            raise QuorumUnavailable("k", {}, 1, "release")
        release(lease, **how)

    stage.nodes.release = release_or_fail  # type: ignore[method-assign]
    stage.orphans.add_held(failing)
    stage.orphans.add_held(other)
    stage.step()
    assert stage.nodes.released == [(0.0, "other", PROVISIONAL_S)]


def test_a_key_stays_for_the_rest_of_its_min_hold(stage: Stage) -> None:
    stage.clock.move(1.0)
    stage.orphans.add_held(stage.held(min_hold_until=4.0))
    stage.step()
    assert stage.nodes.released[0][0] == 3.0


def test_a_key_stays_for_the_lock_delay_of_a_dead_process(stage: Stage) -> None:
    held = stage.held(min_hold_until=4.0)
    held.lease.lock_delay_ms = 5000
    stage.orphans.add_held(held)
    stage.step()
    assert stage.nodes.released[0][0] == 5.0


def test_a_repeated_release_does_not_begin_the_lock_delay_anew(stage: Stage) -> None:
    stage.nodes.is_down = True
    held = stage.held()
    held.lease.lock_delay_ms = 5000
    stage.orphans.add_held(held)
    stage.step()
    stage.clock.move(2.0)
    stage.nodes.is_down = False
    stage.step()
    stage.clock.move(2.0)
    stage.orphans.record_task_outcome("task-1", will_be_redelivered=False)
    stage.step()
    assert [keep for keep, _, _ in stage.nodes.released] == [3.0, 1.0]


def test_the_lock_delay_of_a_lost_lease_begins_at_its_deadline(stage: Stage) -> None:
    held = stage.held()
    held.lease.lock_delay_ms = 5000
    stage.clock.move(12.0)
    stage.orphans.add_held(held)
    stage.step()
    assert stage.nodes.released[0][0] == 3.0


# --- the lock of a task that Celery retries -------------------------------------------------------

RETRY = new_owner("task-1", is_reservation=True)
OTHERS = new_owner("task-2", is_reservation=True)


class Dead:
    """A process that died while it held the key `k` at 0 s, of whose task Celery may retry."""

    def __init__(self, *, min_hold_until: float = 0.0, lock_delay: float = 0.0) -> None:
        self.node = OneNode()
        self.orphans = OrphanedLeases()
        began = self.node.clock.now()
        lease = self.node.acquire("k", 10.0, label="task-1")
        lease.lock_delay_ms = round(lock_delay * 1000)
        record = LeaseRecord.of(
            lease,
            pid=1,
            min_hold_until=began + min_hold_until,
            done=None,
            will_be_redelivered=None,
            successor=RETRY,
        )
        self.held = HeldLease(record, lease, will_be_redelivered=None)

    def step(self, *holding: HeldLease) -> None:
        self.orphans.apply_task_outcomes(self.node, holding)
        self.orphans.release_all(self.node)

    def die(self) -> str | None:
        """Return the owner of the key after the death of the process."""
        self.orphans.add_held(self.held)
        self.step()
        return self.node.owner_of("k")

    def end(self, *, will_be_redelivered: bool) -> str | None:
        """Return the owner of the key after Celery has decided."""
        self.orphans.record_task_outcome("task-1", will_be_redelivered=will_be_redelivered)
        self.step()
        return self.node.owner_of("k")


def test_the_lock_waits_for_the_retry_of_a_dead_process() -> None:
    dead = Dead()
    assert dead.die() == RETRY
    dead.node.clock.move(PROVISIONAL_S - 0.1)
    assert dead.node.owner_of("k") == RETRY
    dead.node.clock.move(0.2)
    assert dead.node.owner_of("k") is None


def test_the_lock_is_free_as_soon_as_there_is_no_retry() -> None:
    dead = Dead()
    dead.die()
    assert dead.end(will_be_redelivered=False) is None


def test_the_reservation_of_a_published_retry_stays() -> None:
    dead = Dead()
    dead.die()
    published = new_owner("task-1", is_reservation=True)
    dead.node.reserve("k", 60.0, owner=published, supersedes=RETRY)
    assert dead.end(will_be_redelivered=False) == published


def test_the_lock_waits_for_a_message_that_comes_again() -> None:
    dead = Dead()
    dead.die()
    assert dead.end(will_be_redelivered=True) == RETRY


def test_a_task_that_ended_before_its_process_died_has_no_successor() -> None:
    dead = Dead()
    dead.orphans.record_task_outcome("task-1", will_be_redelivered=False)
    dead.step(dead.held)
    assert dead.die() is None


def test_a_min_hold_outlasts_a_retry_that_there_is_not() -> None:
    dead = Dead(min_hold_until=20.0)
    dead.die()
    assert dead.end(will_be_redelivered=False) == RETRY
    dead.node.clock.move(19.9)
    assert dead.node.owner_of("k") == RETRY
    dead.node.clock.move(0.2)
    assert dead.node.owner_of("k") is None


def test_nobody_follows_a_dead_process_during_its_lock_delay() -> None:
    dead = Dead(lock_delay=5.0)
    assert dead.die() != RETRY


@pytest.mark.parametrize("is_up", [False, True])
def test_a_lock_that_can_not_be_reserved_for_the_retry_is_released(
    caplog: pytest.LogCaptureFixture, is_up: bool
) -> None:
    """Another owner has it, for the lease was lost; or no quorum answers."""
    dead = Dead()
    dead.node.held["k"] = OTHERS, 1e9
    dead.node.is_up = is_up
    dead.die()
    assert bool(dead.orphans) is not is_up
    assert "not reserved for the retry of a dead process key=k" in caplog.text
    assert dead.node.held["k"][0] == OTHERS


def test_a_release_that_is_repeated_keeps_the_lock_for_the_retry() -> None:
    dead = Dead()
    release, dead.node.release = dead.node.release, _fail  # type: ignore[method-assign]
    dead.die()
    dead.node.release = release  # type: ignore[method-assign]
    dead.step()
    assert not dead.orphans
    assert dead.node.owner_of("k") == RETRY


def _fail(*_: Any, **__: Any) -> None:
    raise QuorumUnavailable("k", {}, 1, "release")


def test_a_release_repeated_late_begins_no_second_lock_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    five = Network(5, monkeypatch)
    redlock, orphans = five.redlock(), OrphanedLeases()
    lease = redlock.acquire("k", 20.0, lock_delay=10.0)
    record = LeaseRecord.of(lease, pid=1, min_hold_until=0.0, done=None, will_be_redelivered=True)
    orphans.add_held(HeldLease(record, lease, will_be_redelivered=True))
    for node in five.nodes:
        node.is_up = False
    orphans.release_all(redlock)
    assert orphans
    five.pass_(lease.deadline - five.time + 1.0)
    for node in five.nodes:
        node.is_up = True
    orphans.release_all(redlock)
    assert redlock.acquire("k").token > lease.token


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


def test_a_release_that_always_raises_holds_up_no_other(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor does it go on after the lease's ttl."""
    release, tries = stage.nodes.release, []

    def fail(lease: Lease, **how: Any) -> None:
        if how.get("done") == "bad":
            tries.append(stage.clock.now())
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")
        release(lease, **how)

    monkeypatch.setattr(stage.nodes, "release", fail)
    for done in ("bad", "good"):
        stage.orphans.add_held(stage.held(done=done))
    for _ in range(30):
        stage.step()
        stage.clock.move(1.0)
    assert [done for _, done, _ in stage.nodes.released] == ["good"]
    assert tries[-1] == 10.0
    assert [record.getMessage() for record in caplog.records] == ["lock not released key=k"]
