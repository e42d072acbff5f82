"""Named differences between the Celerys and kombus that are supported.

An expectation that depends on one of them asks here, so that it can be found, and goes when the
oldest version does. What users notice of them is in docs/reference/versions.md.
"""

from __future__ import annotations

from importlib.metadata import version


def _minor(package: str) -> tuple[int, int]:
    major, minor, *_ = version(package).split(".")
    return int(major), int(minor)


_IS_CELERY_5_6 = _minor("celery") >= (5, 6)
_IS_CELERY_5_7 = _minor("celery") >= (5, 7)

REJECT_IS_A_FAILURE = _IS_CELERY_5_7
"""Whether Reject(requeue=False) stores FAILURE; else the task stays PENDING for ever."""

EXIT_IS_A_LOST_WORKER = _IS_CELERY_5_7
"""Whether SystemExit in a pool process ends as WorkerLostError.

Else the worker acknowledges the message, and fails to store what billiard 4.3 tells it: the task
stays PENDING for ever.
"""

COLD_SHUTDOWN_ENDS_SOLO = _IS_CELERY_5_7
"""Whether a cold shutdown ends a solo worker that runs a task; else it goes on after the task."""

RETRIES_LOST_TASKS = _IS_CELERY_5_7
"""Whether there is `retry_on_worker_lost`; else such a task fails."""

SPAWNS_POOLS = _IS_CELERY_5_7
"""Whether there is `worker_pool_start_method`; else a pool is always forked."""


SPARES_BUSY_PROCESSES = _IS_CELERY_5_7
"""Whether a worker still knows which processes are busy when its connection was lost.

Else it may hand a message to the process that is busy with another, or with its first copy.
"""

SURVIVES_WHAT_CAN_NOT_BE_CANCELLED = _IS_CELERY_5_7
"""Whether a worker of threads goes on when a lost connection has it cancel what runs; else it ends.

With `worker_cancel_long_running_tasks_on_connection_loss`.
"""

TELLS_OF_TIMEOUTS = _IS_CELERY_5_7
"""Whether a worker sends `task_failure` for a time limit that gevent's pool enforces."""

REVOKE_SPARES_WHAT_RUNS = _IS_CELERY_5_7 or not _IS_CELERY_5_6
"""Whether `revoke()` leaves the state of a running task alone; else it stores REVOKED at once.

So does 5.6, until the task has a result of its own.
"""

PUTS_BACK_WITHOUT_A_WORD = _IS_CELERY_5_6
"""Whether a late-acked run that a shutdown ends keeps its state; else it becomes RETRY."""

LOOKS_FOR_LOST_MESSAGES_WHEN_TOLD = _minor("kombu") >= (5, 7)
"""Whether kombu has `unacked_restore_interval`; else it looks every hundred seconds."""
