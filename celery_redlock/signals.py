"""Signals of this package, to be connected to like Celery's own.

Those of locks are sent in the process that runs the task, with the task as `sender`; those of nodes
in the worker's main process, with the app; those of ticks in beat, without a `sender`. As
with Celery's, an exception in a receiver is logged and changes nothing. SystemExit, and whatever
else is no `Exception`, may end what is at work there: in a prefork pool the task's process.
"""

from __future__ import annotations

from celery.utils.dispatch import Signal

lock_acquired = Signal(name="lock_acquired", providing_args=["task_id", "lease"])
lock_conflict = Signal(name="lock_conflict", providing_args=["task_id", "error", "outcome", "at"])
lock_lost = Signal(name="lock_lost", providing_args=["task_id", "lease"])
lock_released = Signal(name="lock_released", providing_args=["task_id", "lease"])
lock_unavailable = Signal(name="lock_unavailable", providing_args=["task_id", "error", "outcome"])
lock_wait_began = Signal(name="lock_wait_began", providing_args=["task_id", "error"])
lock_wait_ended = Signal(name="lock_wait_ended", providing_args=["task_id", "waited"])
node_down = Signal(name="node_down", providing_args=["node", "error"])
node_up = Signal(name="node_up", providing_args=["node"])
nodes_checked = Signal(name="nodes_checked", providing_args=["votes", "nodes", "needed"])
quorum_degraded = Signal(name="quorum_degraded", providing_args=["votes", "nodes", "needed"])
tick_processed = Signal(name="tick_processed", providing_args=["entry", "slot", "outcome"])
