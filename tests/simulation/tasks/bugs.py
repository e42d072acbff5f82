"""Bugs put into the execution of messages and its policies, that a simulation must find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery.exceptions import Ignore, Reject

from celery_redlock.config.options import OnConflict
from celery_redlock.execution import attempt, entry, execution, no_quorum, outcomes, policies
from celery_redlock.execution.attempt import Attempt
from celery_redlock.execution.message import Message
from celery_redlock.execution.policies import skip
from celery_redlock.execution.run import Run
from celery_redlock.messages import requeue
from celery_redlock.messages.headers import is_of
from celery_redlock.messages.pending_slot import PendingSlot
from celery_redlock.messages.reservation import Reservation
from celery_redlock.redlock.errors import LockHeld, QuorumUnavailable
from celery_redlock.task import publication

Bug = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, Bug] = {}
KNOWN_SEEDS = {
    "acknowledged_though_not_published": 1_000_030_007,
    "acknowledged_before_published": 1_000_030_004,
    "copy_is_a_duplicate": 1_000_030_004,
    "copy_runs_beside": 1_000_030_004,
    "copy_is_dropped": 1_000_030_006,
    "done_mark_is_ignored": 1_000_030_004,
    "done_before_the_result": 1_000_030_015,
    "copy_stores_a_result": 1_000_030_004,
    "runs_without_a_quorum": 1_000_030_006,
    "dropped_without_a_quorum": 1_000_070_016,
    "coalesced_into_the_run_before": 1_000_070_019,
    "lock_is_not_released": 1_000_070_000,
    "slot_outlives_its_delivery": 1_000_050_319,
    "reservation_outlives_its_publication": 2_000_000_035,
    "dropped_without_its_reservation": 2_000_000_080,
    "reservation_is_not_taken_over": 2_000_000_001,
}
"""A seed that found each bug."""


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

    def requeue_message(task: Any, *args: Any, **how: Any) -> float:
        task.app.part.request.acknowledge()
        return publish(task, *args, **how)

    patch.setattr(requeue, "requeue_message", requeue_message)


@_bug
def _copy_is_a_duplicate(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(policies, "is_of", lambda *_: False)
    patch.setattr(attempt, "is_of", lambda *_: False)


@_bug
def _copy_runs_beside(patch: pytest.MonkeyPatch) -> None:
    """A copy takes the lock from its original, which may be running."""
    second = Attempt._second_attempt

    def again(self: Attempt, held: LockHeld, *, is_holding: bool) -> dict[str, Any] | None:
        if is_of(held.owner, self.message.request):
            return {"supersedes": held.owner}
        return second(self, held, is_holding=is_holding)

    patch.setattr(Attempt, "_second_attempt", again)


@_bug
def _copy_is_dropped(patch: pytest.MonkeyPatch) -> None:
    def park(message: Message, reason: Exception, after: float) -> None:
        raise Ignore from reason

    patch.setattr(outcomes, "park", park)


@_bug
def _done_mark_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attempt, "mark_to_heed", lambda _: None)


@_bug
def _done_before_the_result(patch: pytest.MonkeyPatch) -> None:
    """The done mark that a run leaves with its lock counts before the result is stored."""
    for module in (entry, execution):
        patch.setattr(module, "is_provisional", lambda _: False)


@_bug
def _copy_stores_a_result(patch: pytest.MonkeyPatch) -> None:
    def end_copy(message: Message) -> None:
        skip.apply(message, LockHeld(message.key, None, 0.0, owner="0:nobody@nowhere"))

    patch.setattr(outcomes, "end_copy", end_copy)


@_bug
def _runs_without_a_quorum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(no_quorum, "end", lambda message, _: message.body(None))


@_bug
def _dropped_without_a_quorum(patch: pytest.MonkeyPatch) -> None:
    def end(message: Message, _error: QuorumUnavailable) -> None:
        skip.apply(message, LockHeld(message.key, None, 0.0, owner="0:nobody@nowhere"))

    patch.setattr(no_quorum, "end", end)


@_bug
def _coalesced_into_the_run_before(patch: pytest.MonkeyPatch) -> None:
    """A call is dropped for a run that began before it, and may not cover it."""
    patch.setitem(policies._APPLY, OnConflict.COALESCE, skip.apply)


@_bug
def _lock_is_not_released(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Run, "_release", lambda _: None)


@_bug
def _slot_outlives_its_delivery(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PendingSlot, "release_left", lambda _: None)


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
    patch.setattr(Message, "reservation", None)
    patch.setattr(attempt, "is_reservation", lambda _: False)
