"""Runs of the calling process: the innermost one, and one for each execution."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from celery.utils.dispatch import Signal

from celery_redlock.config.options import OnLost
from celery_redlock.redlock import Lease
from celery_redlock.redlock.errors import LeaseLost
from celery_redlock.redlock.lease import owner_id

if TYPE_CHECKING:
    from celery.app.task import Context

    from .run import Run

current: ContextVar[Run | None] = ContextVar("celery_redlock_run", default=None)
"""Innermost run of the calling code."""
executions: WeakKeyDictionary[Context, Run | None] = WeakKeyDictionary()
"""Run of each request that is being executed, until `task_postrun`; None before there is one.

Not an attribute of the request: Celery makes attributes of a message's headers, which any publisher
can set.
"""
began_without_lease = Signal(name="began_without_lease", providing_args=["key"])
"""Sent as a body begins without a lease, with its task as `sender`; `lock_acquired` is sent for the
others."""
deferred_to_main: list[Run] = []
"""Runs of this pool process that ended by SystemExit, for the main process to release."""


def current_lease() -> Lease | None:
    """Return the lease of the calling code, or None outside a singleton task."""
    run = current.get()
    return run.lease if run else None


def run_with_id(key: str, holder_id: str) -> Run | None:
    """Return the run of this process whose lease on `key` has an owner with this id, or None."""
    # At once: other threads begin and end executions meanwhile.
    for request in executions.keyrefs():
        context = request()
        run = executions.get(context) if context is not None else None
        if run and run.lease.key == key and owner_id(run.lease.owner) == holder_id:
            return run
    return None


def is_held_by_caller(owner: str | None) -> bool:
    """Return whether `owner` is that of a run that the calling code is part of."""
    run = current.get()
    while run is not None:
        if run.lease.owner == owner:
            return True
        run = run.outer
    return False


def interrupt_current() -> bool:
    """Raise LeaseLost in the signal handler if a run of the calling code has lost its lease.

    Returns:
        Whether the signal was for a run of the calling code.
    """
    run = current.get()
    while run is not None:
        if not (run.is_over or run.is_interrupted) and run.lease.lost:
            run.is_interrupted = True
            run.report_loss()
            if run.message.options.on_lost is OnLost.ABORT:
                raise LeaseLost(run.lease.key)
            return True
        run = run.outer
    return False


def release_deferred_to_main() -> None:
    """Release the runs left to the main process, after a SystemExit that this process survived."""
    while deferred_to_main:
        deferred_to_main.pop().end_after_exit()
