"""Signals of this package, to be connected to like Celery's own.

They are sent in the process that runs the task, with the task as `sender`. As with Celery's,
whatever a receiver raises is logged and changes nothing.
"""

from __future__ import annotations

from celery.utils.dispatch import Signal

lock_acquired = Signal(name="lock_acquired", providing_args=["task_id", "lease"])
lock_conflict = Signal(name="lock_conflict", providing_args=["task_id", "error", "becomes"])
lock_released = Signal(name="lock_released", providing_args=["task_id", "lease"])
lock_lost = Signal(name="lock_lost", providing_args=["task_id", "lease"])
