"""Bugs put into the execution of messages and its policies, that a simulation must find."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from celery_redlock.execution import attempt, decision, entry, execution, outcomes
from celery_redlock.execution.decision import Action, Outcome
from celery_redlock.execution.message import Message
from celery_redlock.execution.run import Run, Successor
from celery_redlock.messages import delivery, headers, requeue, reservation
from celery_redlock.messages.delivery import Delivery
from celery_redlock.messages.reservation import Reservation
from celery_redlock.pools.lease_record import LeaseRecord
from celery_redlock.pools.orphaned_leases import OrphanedLeases
from celery_redlock.pools.prefork_keeper import PreforkKeeper
from celery_redlock.redlock.errors import LockHeld, QuorumUnavailable
from celery_redlock.redlock.keeper import Keeper
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.task import publication, singleton
from celery_redlock.worker import signal_handlers

Bug = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, Bug] = {}
KNOWN_SEEDS = {
    "acknowledged_though_not_published": 1_000_030_079,
    "acknowledged_before_published": 1_000_030_004,
    "copy_is_a_duplicate": 1_000_030_004,
    "copy_runs_beside": 1_000_030_004,
    "copy_is_dropped": 1_000_030_006,
    "done_mark_is_ignored": 1_000_030_004,
    "done_before_the_result": 1_000_030_049,
    "copy_stores_a_result": 1_000_030_004,
    "runs_without_a_quorum": 1_000_030_022,
    "dropped_without_a_quorum": 1_000_070_085,
    "coalesced_into_the_run_before": 1_000_070_019,
    "lock_is_not_released": 1_000_070_000,
    "slot_outlives_its_delivery": 1_000_054_523,
    "rest_of_a_slot_is_a_copy": 1_000_050_357,
    "slot_is_held_during_the_run": 2_000_000_011,
    "retry_of_a_run_once_more_has_run": 1_000_013_489,
    "lock_is_not_handed_over": 2_000_000_105,
    "retry_is_a_duplicate": 2_000_000_002,
    "requeued_without_its_expiry": 1_000_110_074,
    "discarded_with_its_reservation": 2_000_110_069,
    "time_limit_leaves_the_reservation": 2_000_110_072,
    "time_limit_in_a_release_leaves_it": 1_000_400_614,
    "lock_of_a_dead_child_stays": 3_010_000_132,
    "leases_of_children_are_not_renewed": 3_010_000_009,
    "deadlines_of_children_are_not_watched": 3_010_000_016,
    "next_look_comes_too_late": 3_010_000_014,
    "reservation_outlives_its_publication": 2_000_000_035,
    "dropped_without_its_reservation": 2_000_000_080,
    "reservation_is_not_taken_over": 2_000_000_003,
    "delay_of_an_orphan_begins_anew": 3_000_021_355,
    "lost_lock_is_handed_over": 2_000_022_775,
    "left_release_begins_a_delay": 3_000_020_326,
}
"""A schedule that was picked because it finds the bug."""
FOUND_WITHIN = {
    "acknowledged_though_not_published": 1_000,
    "acknowledged_before_published": 50,
    "copy_is_a_duplicate": 200,
    "copy_runs_beside": 100,
    "copy_is_dropped": 200,
    "done_mark_is_ignored": 100,
    "done_before_the_result": 500,
    "copy_stores_a_result": 100,
    "runs_without_a_quorum": 200,
    "dropped_without_a_quorum": 200,
    "coalesced_into_the_run_before": 200,
    "lock_is_not_released": 50,
    "slot_outlives_its_delivery": 10_000,
    "rest_of_a_slot_is_a_copy": 5_000,
    "slot_is_held_during_the_run": 5_000,
    "retry_of_a_run_once_more_has_run": 100_000,
    "lock_is_not_handed_over": 200,
    "retry_is_a_duplicate": 50,
    "requeued_without_its_expiry": 2_000,
    "discarded_with_its_reservation": 200,
    "time_limit_leaves_the_reservation": 10_000,
    "time_limit_in_a_release_leaves_it": 10_000,
    "lock_of_a_dead_child_stays": 1_000,
    "leases_of_children_are_not_renewed": 100,
    "deadlines_of_children_are_not_watched": 1_000,
    "next_look_comes_too_late": 100,
    "reservation_outlives_its_publication": 5_000,
    "dropped_without_its_reservation": 200,
    "reservation_is_not_taken_over": 100,
    "delay_of_an_orphan_begins_anew": 5_000,
    "lost_lock_is_handed_over": 10_000,
    "left_release_begins_a_delay": 10_000,
}
"""Fresh schedules of the same kind in which each is found: ten times the mean of several tries."""


def _bug(make: Bug) -> Bug:
    BUGS[make.__name__.removeprefix("_")] = make
    return make


@_bug
def _acknowledged_though_not_published(patch: pytest.MonkeyPatch) -> None:
    publish = requeue.requeue_message

    def requeue_message(*args: Any, **how: Any) -> float:
        try:
            return publish(*args, **how)
        except Reject:
            return 0.0

    patch.setattr(requeue, "requeue_message", requeue_message)


@_bug
def _acknowledged_before_published(patch: pytest.MonkeyPatch) -> None:
    publish = requeue.requeue_message

    def requeue_message(delivery: Any, *args: Any, **how: Any) -> float:
        delivery.task.app.part.request.acknowledge()
        return publish(delivery, *args, **how)

    patch.setattr(requeue, "requeue_message", requeue_message)


def _skip(message: Message, held: LockHeld | None = None) -> None:
    """End an execution as that of a duplicate, of another task's run unless the holder is given."""
    held = held or LockHeld(message.key, None, 0.0, owner="0:nobody@nowhere")
    outcomes.announce(message, held, "skip")
    message.release_reservation()
    outcomes.store_skipped(message, held)


@_bug
def _copy_is_a_duplicate(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Delivery, "has_owner", lambda *_: False)


@_bug
def _copy_runs_beside(patch: pytest.MonkeyPatch) -> None:
    """A copy takes the lock from its original, which may be running."""
    second = attempt._second_request

    def again(first: Any, held: LockHeld, *, is_holding: bool) -> Any:
        if first.message.delivery.has_owner(held.owner):
            return first._replace(supersedes=held.owner)
        return second(first, held, is_holding=is_holding)

    patch.setattr(attempt, "_second_request", again)


@_bug
def _copy_is_dropped(patch: pytest.MonkeyPatch) -> None:
    def park(message: Message, reason: Exception, after: float) -> None:
        raise Ignore from reason

    patch.setattr(outcomes, "park", park)


@_bug
def _done_mark_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Delivery, "marks_to_check", ())


@_bug
def _done_before_the_result(patch: pytest.MonkeyPatch) -> None:
    """The done mark that a run leaves with its lock counts before the result is stored."""
    for module in (entry, decision):
        patch.setattr(module, "is_provisional", lambda _: False)


@_bug
def _copy_stores_a_result(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(outcomes, "end_copy", _skip)


@_bug
def _runs_without_a_quorum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decision, "_without_quorum", lambda _: Outcome(Action.RUN))


@_bug
def _dropped_without_a_quorum(patch: pytest.MonkeyPatch) -> None:
    conclude = outcomes.conclude

    def drop(message: Message, refused: Any) -> Any:
        if isinstance(refused, QuorumUnavailable):
            _skip(message)
        return conclude(message, refused)

    patch.setattr(outcomes, "conclude", drop)


@_bug
def _coalesced_into_the_run_before(patch: pytest.MonkeyPatch) -> None:
    """A call is dropped for a run that began before it, and may not cover it."""
    decide = decision.decide

    def skip(situation: Any, refused: Any) -> Outcome:
        outcome = decide(situation, refused)
        is_dropped = outcome.action is Action.COALESCE
        return Outcome(Action.SKIP, "skip", releases=True) if is_dropped else outcome

    patch.setattr(outcomes, "decide", skip)


@_bug
def _lock_is_not_released(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Run, "_release", lambda _: None)


@_bug
def _slot_outlives_its_delivery(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Message, "release_left_slot", lambda _: None)
    patch.setattr(reservation, "release_left_slot", lambda *_: None)


@_bug
def _rest_of_a_slot_is_a_copy(patch: pytest.MonkeyPatch) -> None:
    """An earlier owner of a message's slot, left on one node, is taken for another copy's."""
    reserve = Message.reserve_slot

    def mistaken(self: Message, after: float) -> Reservation:
        try:
            return reserve(self, after)
        except LockHeld as held:
            held.contended = held.contended and not self.delivery.has_owner(held.owner)
            raise

    patch.setattr(Message, "reserve_slot", mistaken)


@_bug
def _slot_is_held_during_the_run(patch: pytest.MonkeyPatch) -> None:
    """A call is a duplicate of a message that runs already, and may have read what it changed."""
    release_slot, release = Message.release_slot, Run._release

    def release_both(run: Run, *, is_lost: bool) -> None:
        release(run, is_lost=is_lost)
        release_slot(run.message)

    patch.setattr(Message, "release_slot", lambda _: True)
    patch.setattr(Run, "_release", release_both)


@_bug
def _retry_of_a_run_once_more_has_run(patch: pytest.MonkeyPatch) -> None:
    """The retry of a run that others rely on is taken for the one that has run."""
    publish = headers.headers_to_publish

    def headers_to_publish(*args: Any) -> dict[str, Any]:
        published = publish(*args)
        published.pop(headers.ONCE_MORE_HEADER, None)
        return published

    patch.setattr(singleton, "headers_to_publish", headers_to_publish)


@_bug
def _lock_is_not_handed_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Run, "_hand_over", lambda *_: False)


@_bug
def _retry_is_a_duplicate(patch: pytest.MonkeyPatch) -> None:
    """A retry is published like any other call, and meets the lock of its own run."""
    send_again = publication.Publication._send_again

    def send_as_new(self: publication.Publication, send: Any) -> Any:
        key = publication.reserved_key(self.lock.lifetime, self.key)
        held = self.redlock.read_holder(key) if key else None
        if not held:
            return send_again(self, send)
        if not self._may_be_dropped(held):
            raise held
        return self.task.AsyncResult(str(held.task_id))

    patch.setattr(publication.Publication, "_send_again", send_as_new)


@_bug
def _requeued_without_its_expiry(patch: pytest.MonkeyPatch) -> None:
    publish = requeue.requeue_message

    def requeue_message(*args: Any, expires: Any) -> float:
        return publish(*args, expires=None)

    patch.setattr(requeue, "requeue_message", requeue_message)


@_bug
def _discarded_with_its_reservation(patch: pytest.MonkeyPatch) -> None:
    """A message that expires, or is revoked, leaves its reservation."""
    patch.setattr(signal_handlers, "_release", lambda *_: None)


@_bug
def _time_limit_leaves_the_reservation(patch: pytest.MonkeyPatch) -> None:
    release = Message.release_reservation

    def unless_limited(self: Message) -> None:
        if not isinstance(sys.exc_info()[1], SoftTimeLimitExceeded):
            release(self)

    patch.setattr(Message, "release_reservation", unless_limited)


@_bug
def _time_limit_in_a_release_leaves_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(execution, "_insist", lambda release, *args: release(*args))


@_bug
def _lock_of_a_dead_child_stays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PreforkKeeper, "_collect", lambda *_: None)


@_bug
def _leases_of_children_are_not_renewed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PreforkKeeper, "_keep", lambda *_: None)


@_bug
def _deadlines_of_children_are_not_watched(patch: pytest.MonkeyPatch) -> None:
    """A body runs on though its lease has ended, while the main process stands still."""
    patch.setattr(Keeper, "watch", lambda *_: None)


@_bug
def _next_look_comes_too_late(patch: pytest.MonkeyPatch) -> None:
    """The keeper promises to look again, and a child relies on it, but it looks later."""
    look = PreforkKeeper._look

    def late(self: PreforkKeeper, redlock: Any) -> None:
        look(self, redlock)
        self._looks_at += 5.0

    patch.setattr(PreforkKeeper, "_look", late)


@_bug
def _reservation_outlives_its_publication(patch: pytest.MonkeyPatch) -> None:
    """A publication that failed leaves its reservation for as long as a message may wait."""
    patch.setattr(publication, "release_reservation", lambda *_: None)


@_bug
def _dropped_without_its_reservation(patch: pytest.MonkeyPatch) -> None:
    """A message is dropped if its reservation has expired, or was forgotten."""

    def drop(_message: Message, _reservation: Reservation, *, was_held: bool) -> None:
        if not was_held:
            raise Ignore

    patch.setattr(entry, "_warn_if_expired", drop)


@_bug
def _reservation_is_not_taken_over(patch: pytest.MonkeyPatch) -> None:
    """A message meets its own reservation as if somebody else held the lock."""
    patch.setattr(delivery, "reservation_of", lambda *_: None)
    patch.setattr(attempt, "is_reservation", lambda _: False)


@_bug
def _delay_of_an_orphan_begins_anew(patch: pytest.MonkeyPatch) -> None:
    """Each release of a dead process's lease, until one is confirmed, begins the lock delay."""
    release_all = OrphanedLeases.release_all

    def begin_anew(self: OrphanedLeases, redlock: TaskLock) -> None:
        for held in self._unreleased:
            delayed_until = redlock.clock.now() + held.lease.lock_delay_ms / 1000
            held.keep_until = max(delayed_until, held.record.min_hold_until)
        release_all(self, redlock)

    patch.setattr(OrphanedLeases, "release_all", begin_anew)


@_bug
def _lost_lock_is_handed_over(patch: pytest.MonkeyPatch) -> None:
    """The retry of a run that has lost its lease begins before the lock delay is over."""
    hand_over = Run._hand_over

    def at_once(self: Run, successor: Successor) -> bool:
        without_delay = replace(self.lease, lock_delay_ms=0)
        return hand_over(replace(self, lease=without_delay), successor)

    patch.setattr(Run, "_hand_over", at_once)


@_bug
def _left_release_begins_a_delay(patch: pytest.MonkeyPatch) -> None:
    """A run that has ended in time, and whose process ends after it, is taken for a dead one."""
    patch.setattr(LeaseRecord, "_replace", lambda record, **_: record)
