"""Lock options of a task: their names, and the values that they may have."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Lifetime(str, Enum):
    """Lifetime of a task's lock. The names are those of sidekiq-unique-jobs."""

    WHILE_EXECUTING = "while_executing"
    UNTIL_EXECUTING = "until_executing"
    UNTIL_EXECUTED = "until_executed"
    UNTIL_AND_WHILE_EXECUTING = "until_and_while_executing"
    UNTIL_EXPIRED = "until_expired"

    @property
    def reserves_at_publish(self) -> bool:
        """Whether a message holds a reservation while it waits in the queue."""
        return self is not Lifetime.WHILE_EXECUTING

    @property
    def reserves_pending_slot(self) -> bool:
        """Whether that reservation is of the pending slot, and not of the lock itself."""
        return self is Lifetime.UNTIL_AND_WHILE_EXECUTING

    @property
    def holds_while_running(self) -> bool:
        """Whether the body runs under a lease."""
        return self not in (Lifetime.UNTIL_EXECUTING, Lifetime.UNTIL_EXPIRED)

    @property
    def holds_across_retries(self) -> bool:
        """Whether a run that retries hands its lock over to the retry's message."""
        return self is Lifetime.UNTIL_EXECUTED

    @property
    def is_throttle(self) -> bool:
        """Whether the reservation lasts for `lock_ttl`, whatever becomes of the message."""
        return self is Lifetime.UNTIL_EXPIRED


class OnConflict(str, Enum):
    """Conflict policy: the outcome of an execution whose lock is held."""

    SKIP = "skip"
    COMPLETE = "complete"
    RAISE = "raise"
    RESCHEDULE = "reschedule"
    WAIT = "wait"
    COALESCE = "coalesce"


class OnUnavailable(str, Enum):
    """Outcome of an execution when no quorum of nodes answers."""

    RESCHEDULE = "reschedule"
    RAISE = "raise"
    RUN = "run"


class OnLost(str, Enum):
    """Outcome of a running task whose lease is lost."""

    ABORT = "abort"
    CONTINUE = "continue"


_SIMPLE = frozenset({OnConflict.SKIP, OnConflict.COMPLETE, OnConflict.RAISE})
ALLOWED: dict[Lifetime, frozenset[OnConflict]] = {
    Lifetime.WHILE_EXECUTING: frozenset(OnConflict),
    # Nothing is locked while the body runs, so there is nothing to wait for.
    Lifetime.UNTIL_EXECUTING: _SIMPLE,
    Lifetime.UNTIL_EXPIRED: _SIMPLE,
    # A duplicate is stopped at publish, whether the first call waits or runs already, so a call
    # that came during the run could not be made up for.
    Lifetime.UNTIL_EXECUTED: frozenset(OnConflict) - {OnConflict.COALESCE},
    Lifetime.UNTIL_AND_WHILE_EXECUTING: frozenset(OnConflict),
}
"""The conflict policies that each lifetime allows."""


class LockOptions(NamedTuple):
    """Lock options of one task. Times are in seconds.

    The names of a task's options (`lock_ttl`) and of their default settings (`redlock_ttl`) are
    derived from these fields.

    Attributes:
        ttl: Duration of the lease, renewed while the task runs; > 0, at most `redlock_max_ttl`.
        key: `lock_key` as declared; `keys.key_rule` checks it against the task's parameters.
        lifetime: When the lock is held.
        on_conflict: Outcome of an execution whose lock is held.
        on_unavailable: Outcome of an execution when no quorum answers.
        on_lost: Outcome of the running task when its lease is lost.
        delay: Time for which the lock stays after a run that has died, or lost its lease, >= 0.
        min_hold: Shortest time for which the lock is held, >= 0.
        max_hold: Longest time for which the lease is renewed. None: the task's time limit, or 24 h.
        wait: Longest wait with `on_conflict="wait"`. None: without limit.
        queue_ttl: Longest time for which a queued message holds its reservation.
        conflict_result: Result of a task that ends by `on_conflict="complete"`.
    """

    ttl: float
    key: object
    lifetime: Lifetime
    on_conflict: OnConflict
    on_unavailable: OnUnavailable
    on_lost: OnLost
    delay: float
    min_hold: float
    max_hold: float | None
    wait: float | None
    queue_ttl: float
    conflict_result: object


KNOWN_OPTIONS = frozenset(f"lock_{name}" for name in LockOptions._fields)


def setting_of(option: str) -> str:
    """Return the name of the setting that gives a lock option its default."""
    return f"redlock_{option.removeprefix('lock_')}"
