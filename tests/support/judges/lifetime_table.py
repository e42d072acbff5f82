"""What each lifetime does with each conflict policy: the data of docs/reference/endings.md.

`tests/integration/task/test_lifetimes.py` plays every row with a real worker, `tests/docs` compares
the page with it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum

from celery_redlock.config.options import Lifetime, OnConflict

Pair = tuple[Lifetime, OnConflict]


class Fate(Enum):
    """What becomes of a call for a key that another message has. The value is the page's cell."""

    RETURNS_IT = "returns it"
    RAISES = "raises `LockHeld`"
    REVOKED = "`REVOKED`"
    SUCCESS = "`SUCCESS`"
    FAILURE = "`FAILURE`"
    AFTER = "runs after it"
    AT_ONCE = "runs at once"


@dataclass(frozen=True, slots=True)
class Fates:
    """What becomes of a second call of one lifetime and policy.

    Attributes:
        waits: Of `delay()`, while the first waits in the queue.
        runs: Of `delay()`, while the first runs.
        by_name_waits: Of `send_task()`, taken by a worker while the first waits in the queue.
        by_name_runs: Of `send_task()`, taken by a worker while the first runs.
    """

    waits: Fate
    runs: Fate
    by_name_waits: Fate
    by_name_runs: Fate


SCENES = tuple(field.name for field in fields(Fates))

_AT_PUBLISH = dict.fromkeys(OnConflict, Fate.RETURNS_IT) | {OnConflict.RAISE: Fate.RAISES}
_AT_WORKER = {
    OnConflict.SKIP: Fate.REVOKED,
    OnConflict.COMPLETE: Fate.SUCCESS,
    OnConflict.RAISE: Fate.FAILURE,
    OnConflict.RESCHEDULE: Fate.AFTER,
    OnConflict.WAIT: Fate.AFTER,
    OnConflict.COALESCE: Fate.AFTER,
}


def _fates(lifetime: Lifetime, policy: OnConflict) -> Fates:
    at_publish, at_worker, at_once = _AT_PUBLISH[policy], _AT_WORKER[policy], Fate.AT_ONCE
    match lifetime:
        case Lifetime.WHILE_EXECUTING:
            return Fates(at_worker, at_worker, at_once, at_worker)
        case Lifetime.UNTIL_EXECUTING:
            return Fates(at_publish, at_once, at_worker, at_once)
        case Lifetime.UNTIL_AND_WHILE_EXECUTING:
            return Fates(at_publish, at_worker, at_once, at_worker)
    return Fates(at_publish, at_publish, at_worker, at_worker)


_ALL = tuple(OnConflict)
_SIMPLE = (OnConflict.SKIP, OnConflict.COMPLETE, OnConflict.RAISE)
_ROWS = {
    Lifetime.WHILE_EXECUTING: _ALL,
    Lifetime.UNTIL_EXECUTING: _SIMPLE,
    Lifetime.UNTIL_EXECUTED: (*_SIMPLE, OnConflict.RESCHEDULE, OnConflict.WAIT),
    Lifetime.UNTIL_AND_WHILE_EXECUTING: _ALL,
    Lifetime.UNTIL_EXPIRED: _SIMPLE,
}
FATES: dict[Pair, Fates] = {
    (lifetime, policy): _fates(lifetime, policy)
    for lifetime, policies in _ROWS.items()
    for policy in policies
}


class Held(Enum):
    """What a message holds on the nodes."""

    NOTHING = "nothing"
    LOCK = "the lock"
    PENDING_SLOT = "the pending slot"


class Copy(Enum):
    """What becomes of a second copy of a message whose first copy runs."""

    PARKED = "waits, then ends silently"
    RUNS = "runs at once"


@dataclass(frozen=True, slots=True)
class Stages:
    """What a message holds from publish on.

    Attributes:
        waiting: While it waits in the queue.
        running: While its body runs.
        between: After `retry()`, until the next attempt runs.
        after: When it has ended.
        copy: What becomes of it when it is delivered again while it runs.
    """

    waiting: Held
    running: Held
    between: Held
    after: Held
    copy: Copy


_NOTHING, _LOCK, _SLOT = Held.NOTHING, Held.LOCK, Held.PENDING_SLOT
STAGES = {
    Lifetime.WHILE_EXECUTING: Stages(_NOTHING, _LOCK, _NOTHING, _NOTHING, Copy.PARKED),
    Lifetime.UNTIL_EXECUTING: Stages(_LOCK, _NOTHING, _NOTHING, _NOTHING, Copy.RUNS),
    Lifetime.UNTIL_EXECUTED: Stages(_LOCK, _LOCK, _LOCK, _NOTHING, Copy.PARKED),
    Lifetime.UNTIL_AND_WHILE_EXECUTING: Stages(_SLOT, _LOCK, _NOTHING, _NOTHING, Copy.PARKED),
    Lifetime.UNTIL_EXPIRED: Stages(_LOCK, _LOCK, _LOCK, _LOCK, Copy.RUNS),
}
