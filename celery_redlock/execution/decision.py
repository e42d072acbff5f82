"""What becomes of an execution that may not run under its lock: decided here, without any I/O.

`decide` is given what is known of the message and of the holder, and `outcomes.conclude` does what
it answers. Its whole table is in docs/reference/endings.md.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from celery_redlock.config.options import OnConflict, OnUnavailable
from celery_redlock.pools import orphaned_leases
from celery_redlock.redlock.errors import AlreadyDone, LockHeld, QuorumUnavailable

SHORTEST_S = 0.25
"""Shortest pause, in seconds: each one costs a message."""
HALF, QUARTER = 0.5, 0.25
_NO_QUORUM_S = 5.0
"""How long a message without a quorum is requeued for, in seconds."""
PARKED = "parked"
"""What signals, events and logs say of a parked message; of others they say the policy's name."""


Refused = AlreadyDone | LockHeld | QuorumUnavailable
"""Why an execution may not run under its lock."""


class Action(Enum):
    """How an execution ends, or goes on without its lock."""

    SKIP = "skip"
    """It ends as REVOKED: `get()` raises `DuplicateTask`."""
    COMPLETE = "complete"
    """It ends as SUCCESS, with the task's `lock_conflict_result`."""
    RAISE = "raise"
    """It ends as FAILURE: `get()` raises the error of the acquisition."""
    RESCHEDULE = "reschedule"
    """The message is requeued: the state is RETRY until it runs."""
    COALESCE = "coalesce"
    """The message is requeued with the pending slot; another one's slot is decided on once more."""
    PARK = "park"
    """The message is requeued as a copy, and the stored result is untouched."""
    DISCARD = "discard"
    """The message is acknowledged, and the stored result is untouched."""
    RUN = "run"
    """The body runs without a lock."""


class Outcome(NamedTuple):
    """What is to be done with a message.

    Attributes:
        action: What is done.
        announced: Its name in signals, events and logs; None: they say nothing.
        after: Seconds after which a requeued message is to run.
        releases: Whether the message's reservation is released before.
    """

    action: Action
    announced: str | None = None
    after: float = 0.0
    releases: bool = False


class Situation(NamedTuple):
    """What is known of a message, and of the holder of its lock.

    Attributes:
        on_conflict: Policy of the task.
        on_unavailable: Policy of the task.
        ttl: Of the task's leases, seconds.
        is_eager: Whether the task runs without a message, where it is called.
        has_queue: Whether the message can be requeued.
        is_copy: Whether the message was delivered before, or is a copy by its headers.
        is_shutting_down: Whether the worker is being shut down.
        is_own: Whether the holder is an execution of the same publication, or its reservation.
        is_slot: Whether the pending slot is held, instead of the lock itself.
        has_result: Whether the task's result is that of another run: of the holder, if it has the
            same task id, or of the run before one more.
    """

    on_conflict: OnConflict
    on_unavailable: OnUnavailable
    ttl: float
    is_eager: bool = False
    has_queue: bool = True
    is_copy: bool = False
    is_shutting_down: bool = False
    is_own: bool = False
    is_slot: bool = False
    has_result: bool = False


def decide(situation: Situation, refused: Refused) -> Outcome:
    """Return what becomes of an execution that was refused its lock."""
    if isinstance(refused, QuorumUnavailable):
        return _without_quorum(situation)
    if isinstance(refused, LockHeld):
        return _beside_holder(situation, refused)
    if is_provisional(refused):
        # The run that left the mark may not have stored its result, and may die before it does.
        return _park(situation, None, refused.remaining)
    # A tick that beat published twice has a reservation of its own.
    return Outcome(Action.DISCARD, releases=True)


def decide_on_slot(situation: Situation, waiting: LockHeld) -> Outcome | None:
    """Return what becomes of a message whose pending slot another one holds; None: it is requeued.

    Contended, no message is known to wait. The owner may even be an earlier one of this very
    message, on a node that the renewals of its slot have not reached.
    """
    if waiting.contended:
        return None
    if situation.is_own:
        return Outcome(Action.DISCARD)
    action = Action.DISCARD if situation.has_result else Action.SKIP
    return Outcome(action, OnConflict.SKIP.value)


def _beside_holder(situation: Situation, held: LockHeld) -> Outcome:
    policy, has_queue = situation.on_conflict, situation.has_queue
    if situation.is_own and has_queue and not situation.is_slot:
        # If the holder dies, this message has to run, whatever the policy.
        return _park(situation, PARKED, pause_after(held, situation.ttl))
    if held.contended and policy is not OnConflict.RAISE:
        # No holder is known to run, so this message may not be skipped.
        policy = OnConflict.RESCHEDULE
    elif policy is OnConflict.WAIT:
        # Its wait is over, or a shutdown has cut it short.
        is_cut_short = situation.is_shutting_down and not situation.is_eager
        policy = OnConflict.RESCHEDULE if is_cut_short else OnConflict.SKIP
    if policy in (OnConflict.RESCHEDULE, OnConflict.COALESCE):
        if not has_queue:  # it has waited instead
            return _drop(situation, Action.SKIP, policy)
        is_pending = policy is OnConflict.COALESCE
        pause = pause_after(held, situation.ttl, QUARTER if is_pending else HALF)
        # A key has one message that waits, so it may look often: the run of the message that held
        # the pending slot begins about now.
        after = SHORTEST_S if situation.is_slot else pause
        return Outcome(Action(policy.value), policy.value, after)
    if situation.has_result:
        policy = OnConflict.SKIP
    return _drop(situation, Action(policy.value), policy)


def _drop(situation: Situation, action: Action, policy: OnConflict) -> Outcome:
    action = Action.DISCARD if situation.has_result else action
    return Outcome(action, policy.value, releases=True)


def _without_quorum(situation: Situation) -> Outcome:
    policy = situation.on_unavailable
    if policy is OnUnavailable.RUN:
        return Outcome(Action.RUN, policy.value, releases=True)
    if situation.is_copy:
        # The first copy may be running, or have ended: without a quorum neither is known.
        return _park(situation, PARKED, _NO_QUORUM_S)
    if policy is OnUnavailable.RAISE or not situation.has_queue:
        return Outcome(Action.RAISE, policy.value, releases=True)
    return Outcome(Action.RESCHEDULE, policy.value, _NO_QUORUM_S)


def _park(situation: Situation, announced: str | None, after: float) -> Outcome:
    if not situation.has_queue:  # nothing can be done but leave the task to its first copy
        return Outcome(Action.DISCARD, announced)
    return Outcome(Action.PARK, announced, after)


def is_provisional(done: AlreadyDone) -> bool:
    """Return whether the run that left this mark may not have ended yet."""
    return done.remaining <= orphaned_leases.PROVISIONAL_S


def pause_after(held: LockHeld, ttl: float, share: float = HALF) -> float:
    """Return how long a message waits before it tries a held lock again, in seconds.

    A lease that is renewed does not tell when its run will end. But a message that waits for a
    share of the time for which the run has lasted starts late by at most that share of the run, and
    has tried a number of times that grows with the logarithm of the run's duration.

    Not past the end of the lease: the holder's process may have died. Nor for longer than `ttl`: it
    may die during the pause. So from then on the pauses stay the same.

    Args:
        held: Error of the last attempt.
        ttl: Ttl of the task's leases, seconds.
        share: Share of the holder's age so far.
    """
    if held.owner is None:  # nobody has a majority, nor leads
        return SHORTEST_S
    longest = min(held.remaining or ttl, ttl)  # 0.0: the lock key has no expiry
    pause = longest if held.age is None else min(held.age * share, longest)
    return max(SHORTEST_S, pause)
