"""View of one lock on all nodes, and what a new call would get now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from celery_redlock.config.options import LockOptions, OnConflict
from celery_redlock.messages.reservation import is_pending_slot_key, pending_slot_key
from celery_redlock.redlock.lease import holder_of
from celery_redlock.redlock.protocol.quorum import majority
from celery_redlock.redlock.protocol.replies import Failed

from .listing import each_done_mark
from .locks import Kind, Lock, View, escaped, lock_of
from .node_set import NodeSet
from .views import look

_AT_EXECUTION = {
    OnConflict.SKIP: "it ends as REVOKED, with DuplicateTask",
    OnConflict.COMPLETE: "it ends as SUCCESS, with lock_conflict_result",
    OnConflict.RAISE: "it ends as FAILURE, with LockHeld",
    OnConflict.RESCHEDULE: "it is requeued, and tries again later",
    OnConflict.WAIT: "it waits in the worker for the holder to end, for lock_wait at most",
    OnConflict.COALESCE: "it takes the pending slot, and runs when the holder has ended",
}


@dataclass(frozen=True, slots=True)
class LockView:
    """Everything that the nodes store under one key.

    Attributes:
        key: Key of the lock.
        names: Addresses of the nodes.
        views: View of each.
        pending_views: View of each of its pending slot; empty: it has none.
        marks: Its done marks.
    """

    key: str
    names: Sequence[str]
    views: Sequence[View | Failed]
    pending_views: Sequence[View | Failed] = ()
    marks: Sequence[Lock] = ()

    @property
    def lock(self) -> Lock | None:
        """The lock; None: it is free."""
        return lock_of(self.key, self.views)

    @property
    def pending(self) -> Lock | None:
        """Its pending slot; None: it is free."""
        key = pending_slot_key(self.key)
        return lock_of(key, self.pending_views) if self.pending_views else None

    @property
    def answers(self) -> int:
        """Number of nodes that answered."""
        return sum(isinstance(view, View) for view in self.views)

    @property
    def floor(self) -> int:
        """Highest floor of any node; 0: none has one."""
        return max((view.floor for view in self.views if isinstance(view, View)), default=0)

    def as_json(self, now: float, options: LockOptions | None) -> dict[str, object]:
        """Return the view as plain JSON values; times are in seconds."""
        return {
            "key": self.key,
            "nodes": [
                {"node": name, "error": view.error}
                if isinstance(view, Failed)
                else {
                    "node": name,
                    "holder": holder_of(view.owner) or None,
                    "remaining": round(view.remaining, 3),
                    "floor": view.floor or None,
                }
                for name, view in zip(self.names, self.views, strict=True)
            ],
            "lock": self.lock and self.lock.as_json(now),
            "pending": self.pending and self.pending.as_json(now),
            "done": [mark.as_json(now) | {"label": mark.owner} for mark in self.marks],
            "next_call": next_call(self, options),
        }


def view_of(nodes: NodeSet, prefix: str, key: str) -> LockView:
    """Return the view of one lock."""
    views = look(nodes, prefix, key)
    pending = [] if is_pending_slot_key(key) else look(nodes, prefix, pending_slot_key(key))
    marks = sorted(each_done_mark(nodes, prefix, escaped(key)), key=lambda mark: mark.owner)
    return LockView(key, nodes.names, views, pending, marks)


def next_call(view: LockView, options: LockOptions | None) -> str:
    """Return what a new call of the task would get now, and why.

    Args:
        view: The lock.
        options: Options of the task; None: they are not known.
    """
    quorum = majority(len(view.views))
    if view.answers < quorum:
        policy = f": {options.on_unavailable.value}" if options else ""
        return (
            f"no quorum: {view.answers} of {len(view.views)} nodes answered, {quorum} are needed; "
            f"lock_on_unavailable decides{policy}"
        )
    if options and options.lifetime.reserves_at_publish:
        by_slot = options.lifetime.reserves_pending_slot
        if is_taken(view.pending_views if by_slot else view.views):
            return _at_publish(view.pending if by_slot else view.lock, options)
    if not is_taken(view.views):
        return "it acquires the lock: a quorum of the nodes is free"
    if view.lock is None or not view.lock.has_majority:
        return "the nodes are split between attempts: it tries again until one has a majority"
    who = f"{view.lock.task_id or 'another holder'} holds the lock"
    if options is None:
        return f"{who}: it does not run; lock_on_conflict decides what becomes of it"
    if options.on_conflict is OnConflict.COALESCE and is_taken(view.pending_views):
        waiting = view.pending.task_id if view.pending else None
        return f"{who}, and {waiting} has the pending slot: it ends as REVOKED, with DuplicateTask"
    policy = f'lock_on_conflict="{options.on_conflict.value}"'
    return f"{who}: {_AT_EXECUTION[options.on_conflict]} ({policy})"


def is_taken(views: Sequence[View | Failed]) -> bool:
    """Return whether no quorum of the nodes is free."""
    free = sum(isinstance(view, View) and not view.owner for view in views)
    return free < majority(len(views)) if views else False


def _at_publish(reserved: Lock | None, options: LockOptions) -> str:
    holder = reserved.task_id if reserved else None
    verb = "holds the pending slot" if reserved and reserved.kind is Kind.PENDING else "holds it"
    if options.on_conflict is OnConflict.RAISE:
        return f"{holder} {verb}: delay() raises LockHeld, and publishes no message"
    return f"{holder} {verb}: delay() returns the result of that task, and publishes no message"
