"""End of a run by an operator, in the worker that runs it."""

from __future__ import annotations

import logging
import os
import signal as signals
from typing import Any

from celery.worker.state import active_requests

from celery_redlock.execution.running import run_with_id
from celery_redlock.pools.lease_record import LeaseRecord
from celery_redlock.redlock.errors import shown
from celery_redlock.redlock.labels import label_of
from celery_redlock.redlock.lease import task_of

from .signal_handlers import keepers

logger = logging.getLogger(__name__)
SIGNALS = ("TERM", "KILL")


def end_run(pool: Any, key: str, holder_id: str, why: str, signal: str) -> str | None:
    """End the run of this worker that holds a lock; return what was done.

    Args:
        pool: Pool of the worker.
        key: Key of the lock.
        holder_id: Id of its owner, as `owner_id` returns it: the next holder has another.
        why: Who ends the run, and why.
        signal: Signal that ends a process of the prefork pool, one of `SIGNALS`.

    Returns:
        None: No run of this worker holds the lock.

    Raises:
        ValueError: The run can't be ended; the message says why.
    """
    _, keeper = keepers.get(os.getpid(), (None, None))
    record = keeper.lease_with_id(key, holder_id) if keeper else None
    run = run_with_id(key, holder_id)
    if record:
        done = _terminate(pool, record, signal)
        task_id = task_of(record.owner)
    elif run:
        task_id = run.message.request.id
        if not run.abort(why):
            raise ValueError("its body can't be interrupted, or has just ended")
        done = "LeaseLost is raised in its body"
    else:
        return None
    logger.warning(
        "run ended by an operator key=%s task_id=%s by=%s action=%s",
        shown(key), shown(task_id), shown(why), done,
    )  # fmt: skip
    return done


def _terminate(pool: Any, record: LeaseRecord, signal: str) -> str:
    """Terminate the pool process that holds a lease."""
    if signal not in SIGNALS:
        raise ValueError(f"signal must be one of {', '.join(SIGNALS)}, got {shown(signal)}")
    # With Celery's event loop, which calls this, no process gets its next task meanwhile.
    running = [one for one in list(active_requests) if one.worker_pid == record.pid]
    own = [one for one in running if label_of(one.id) == task_of(record.owner)]
    if own:
        # Its message is acknowledged, and its state REVOKED, before the process is dead.
        own[0].terminate(pool, signal)
    elif running:
        raise ValueError(f"it runs in the body of another task, {shown(running[0].id)}: end that")
    else:
        # Celery has not heard of its start yet, or an earlier signal did not end it.
        pool.terminate_job(record.pid, getattr(signals, f"SIG{signal}"))
    return f"SIG{signal} is sent to its process {record.pid}"
