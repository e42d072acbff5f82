"""What becomes of an execution that is refused its lock: the table of the reference, row by row.

Of the rows that fit, the first one counts. Each condition stands here in words and in code, a
second time beside `decide`: the two are each other's test.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from celery_redlock.config.options import OnConflict, OnUnavailable
from celery_redlock.execution.decision import Action, Situation

COALESCE, COMPLETE, RAISE = OnConflict.COALESCE, OnConflict.COMPLETE, OnConflict.RAISE
RESCHEDULE, WAIT = OnConflict.RESCHEDULE, OnConflict.WAIT
BY_CONFLICT = "reschedule or coalesce"
"""The policy by which the message would be requeued."""
BY_UNAVAILABLE = "reschedule or raise"
"""The task's own `lock_on_unavailable`."""


class Refusal(Enum):
    """Why an execution was refused its lock, as the table says it."""

    DONE = "a copy of this message has run"
    IN_DOUBT = "a copy of this message has run, and its result may not be stored yet"
    HELD = "the lock is held"
    CONTENDED = "the lock is held: a split vote"
    SLOT_HELD = "another message holds the pending slot"
    NO_QUORUM = "no quorum"


class Row(NamedTuple):
    """Row of the table.

    Attributes:
        condition: In words.
        policies: Of the task, in words.
        action: What becomes of the message.
        announced: Its name in signals and logs; None: they say nothing.
        releases: Whether the message's reservation is released.
        fits: Whether the row is one of a situation.
    """

    condition: str
    policies: str
    action: Action
    announced: str | None
    releases: bool
    fits: Callable[[Refusal, Situation], bool]


ENDS = {
    Action.SKIP: "`REVOKED`",
    Action.COMPLETE: "`SUCCESS`",
    Action.RAISE: "`FAILURE`",
    Action.RESCHEDULE: "requeued, `RETRY`",
    Action.COALESCE: "requeued with the pending slot, `RETRY`; if another message holds that, "
    'as with `"skip"`',
    Action.PARK: "parked",
    Action.DISCARD: "ends silently",
    Action.RUN: "runs without a lock",
}
"""What each action is called in the reference."""


def _comes_back_by(refusal: Refusal, of: Situation) -> OnConflict | None:
    """Return the policy by which a message is requeued, or would be if it had a queue."""
    if refusal is Refusal.CONTENDED and of.on_conflict is not RAISE:
        return RESCHEDULE
    if of.on_conflict is WAIT and of.is_shutting_down and not of.is_eager:
        return RESCHEDULE
    return of.on_conflict if of.on_conflict in (RESCHEDULE, COALESCE) else None


ROWS = (
    Row(
        "A copy of this message has run, and its result may not be stored yet", "any",
        Action.PARK, None, False,
        lambda why, of: why is Refusal.IN_DOUBT and of.has_queue,
    ),
    Row(
        "The same, of a message without a queue", "any", Action.DISCARD, None, False,
        lambda why, _: why is Refusal.IN_DOUBT,
    ),
    Row(
        "A copy of this message has run", "any", Action.DISCARD, None, True,
        lambda why, _: why is Refusal.DONE,
    ),
    Row(
        "No quorum", '`lock_on_unavailable="run"`', Action.RUN, "run", True,
        lambda why, of: why is Refusal.NO_QUORUM and of.on_unavailable is OnUnavailable.RUN,
    ),
    Row(
        "No quorum, for a message that was delivered before", "all others", Action.PARK, "parked",
        False,
        lambda why, of: why is Refusal.NO_QUORUM and of.is_copy and of.has_queue,
    ),
    Row(
        "The same, of a message without a queue", "all others", Action.DISCARD, "parked", False,
        lambda why, of: why is Refusal.NO_QUORUM and of.is_copy,
    ),
    Row(
        "No quorum", '`lock_on_unavailable="reschedule"`', Action.RESCHEDULE, "reschedule", False,
        lambda why, of: (
            why is Refusal.NO_QUORUM
            and of.on_unavailable is OnUnavailable.RESCHEDULE and of.has_queue
        ),
    ),
    Row(
        "No quorum", "all others, and messages without a queue", Action.RAISE, BY_UNAVAILABLE, True,
        lambda why, _: why is Refusal.NO_QUORUM,
    ),
    Row(
        "A copy of this message holds the lock", "any", Action.PARK, "parked", False,
        lambda why, of: why is not Refusal.SLOT_HELD and of.is_own and of.has_queue,
    ),
    Row(
        "A split vote", 'all but `"raise"`', Action.RESCHEDULE, "reschedule", False,
        lambda why, of: (
            why is Refusal.CONTENDED and of.on_conflict is not RAISE and of.has_queue
        ),
    ),
    Row(
        "A shutdown has ended the wait", '`"wait"`', Action.RESCHEDULE, "reschedule", False,
        lambda why, of: (
            of.on_conflict is WAIT and _comes_back_by(why, of) is RESCHEDULE and of.has_queue
        ),
    ),
    Row(
        "The lock is held", '`"reschedule"`', Action.RESCHEDULE, "reschedule", False,
        lambda _, of: of.on_conflict is RESCHEDULE and of.has_queue,
    ),
    Row(
        "The lock is held", '`"coalesce"`', Action.COALESCE, "coalesce", False,
        lambda _, of: of.on_conflict is COALESCE and of.has_queue,
    ),
    Row(
        "It would be requeued, but has no queue, and the holder has the same task id", "any",
        Action.DISCARD, BY_CONFLICT, True,
        lambda why, of: of.has_result and _comes_back_by(why, of) is not None,
    ),
    Row(
        "The holder has the same task id, or this message has run and was to run once more",
        "all others", Action.DISCARD, "skip", True,
        lambda _, of: of.has_result,
    ),
    Row(
        "It would be requeued, but has no queue", "any", Action.SKIP, BY_CONFLICT, True,
        lambda why, of: _comes_back_by(why, of) is not None,
    ),
    Row(
        "The lock is held", '`"complete"`', Action.COMPLETE, "complete", True,
        lambda _, of: of.on_conflict is COMPLETE,
    ),
    Row(
        "The lock is held", '`"raise"`', Action.RAISE, "raise", True,
        lambda _, of: of.on_conflict is RAISE,
    ),
    Row(
        "The lock is held", '`"skip"`, and `"wait"` after its wait', Action.SKIP, "skip", True,
        lambda *_: True,
    ),
)  # fmt: skip


def announced_of(row: Row, refusal: Refusal, of: Situation) -> str | None:
    """Return what signals and logs say of a message, also where the row leaves that open."""
    if row.announced == BY_UNAVAILABLE:
        return of.on_unavailable.value
    if row.announced == BY_CONFLICT:
        policy = _comes_back_by(refusal, of)
        return policy and policy.value
    return row.announced
