"""View of one lock on all nodes, and what a new call would get now."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from celery_redlock.config.options import LockOptions, OnConflict
from celery_redlock.messages.reservation import is_pending_slot_key, pending_slot_key
from celery_redlock.redlock.inspection import Judgement, State
from celery_redlock.redlock.lease import holder_of, host_of
from celery_redlock.redlock.protocol.quorum import Verdict, grant_verdict, majority
from celery_redlock.redlock.protocol.replies import Busy, Failed, Granted, GrantReply

from .listing import each_done_mark
from .locks import Execution, Kind, Lock, escaped, lock_of, seconds_left, task_in, time_left
from .node_set import NodeSet
from .running import Running, running_tasks
from .target import Target
from .tasks import options_of
from .views import read_views

_AT_EXECUTION = {
    OnConflict.SKIP: "it ends as REVOKED, with DuplicateTask",
    OnConflict.COMPLETE: "it ends as SUCCESS, with lock_conflict_result",
    OnConflict.RAISE: "it ends as FAILURE, with LockHeld",
    OnConflict.RESCHEDULE: "it is requeued, and tries again later",
    OnConflict.WAIT: "it waits in the worker for the holder to end, for lock_wait at most",
    OnConflict.COALESCE: "it takes the pending slot, and runs when the holder has ended",
}


_GRANTS, _SILENT = Granted(0), Failed("")
"""Replies of which only the type counts."""


class NodeRow(NamedTuple):
    """A node's view of a lock as text, or the reason why it has none."""

    node: str
    error: str
    holder: str = "-"
    expires_in: str = "-"
    floor: str = "-"


@dataclass(frozen=True, slots=True)
class LockView:
    """Everything that the nodes store under one key.

    Attributes:
        key: Key of the lock.
        names: Addresses of the nodes.
        views: View of each.
        pending_views: View of each of its pending slot; empty: it has none.
        marks: Its done marks.
        running: What the workers run, as far as it was asked for.
    """

    key: str
    names: Sequence[str]
    views: Sequence[Busy | Failed]
    pending_views: Sequence[Busy | Failed] = ()
    marks: Sequence[Lock] = ()
    running: Running = field(default_factory=Running)

    @property
    def lock(self) -> Lock | None:
        """The lock; None: see `absence`."""
        lock = lock_of(self.key, self.views)
        if lock:
            self.running.tell((lock,))
        return lock

    @property
    def worker(self) -> str | None:
        """Worker and process that hold the lock, or why they are unknown; None: nothing runs."""
        return self._told(str)

    @property
    def arguments(self) -> str | None:
        """Arguments of the call that holds the lock, as `worker`; None also: not to be shown."""
        return self._told(lambda run: run.arguments)

    def _told(self, tell: Callable[[Execution], str | None]) -> str | None:
        lock = self.lock
        if lock is None or not lock.is_run:
            return None
        return tell(lock.execution) if lock.execution else f"unknown: {self.running.why_unknown}"

    @property
    def pending(self) -> Lock | None:
        """Its pending slot; None: see `absence`."""
        key = pending_slot_key(self.key)
        return lock_of(key, self.pending_views) if self.pending_views else None

    @property
    def answers(self) -> int:
        """Number of nodes that answered each question."""
        asked = (self.views, self.pending_views) if self.pending_views else (self.views,)
        return min(sum(isinstance(view, Busy) for view in views) for views in asked)

    @property
    def is_known(self) -> bool:
        """Whether what no node names is not there: else a quorum may have it that didn't answer."""
        return self.answers >= majority(len(self.views))

    @property
    def absence(self) -> str:
        """What it means that no node names a holder: free, or unknown without a quorum."""
        unknown = f"unknown ({self.answers} of {len(self.views)} answered)"
        return "free" if self.is_known else unknown

    @property
    def rows(self) -> Iterator[NodeRow]:
        """Each node's view as text."""
        return map(_row, self.names, self.views)

    def as_json(self, now: float, then: str) -> dict[str, object]:
        """Return the view as plain JSON values; times are in seconds. `then`: see `next_call`."""
        return {
            "key": self.key,
            "answers": self.answers,
            "nodes": list(map(_as_json, self.names, self.views)),
            "lock": self.lock and self.lock.as_json(now),
            "pending": self.pending and self.pending.as_json(now),
            "done": [mark.as_json(now) | {"label": mark.owner} for mark in self.marks],
            "next_call": then,
        }


def _row(node: str, view: Busy | Failed) -> NodeRow:
    if isinstance(view, Failed):
        return NodeRow(node, view.error)
    left = time_left(seconds_left(view.remaining_ms)) if view.holder else "-"
    return NodeRow(node, "", _holder(view) or "-", left, str(view.floor or "-"))


def _holder(view: Busy) -> str | None:
    return holder_of(view.holder) if host_of(view.holder) else None


def _as_json(node: str, view: Busy | Failed) -> dict[str, object]:
    if isinstance(view, Failed):
        return {"node": node, "error": view.error}
    left = seconds_left(view.remaining_ms)
    return {
        "node": node,
        "holder": _holder(view),
        "remaining": None if math.isinf(left) else left,
        "floor": view.floor or None,
    }


def look_closely(target: Target, key: str) -> tuple[LockView, str]:
    """Return the view of one lock, and what a new call of its task would get now.

    Raises:
        ConfigurationError: The number of nodes is even, or one is named twice.
    """
    with target.nodes() as nodes:
        view = view_of(nodes, target.key_prefix, key)
    view = replace(view, running=running_tasks(target, [view.lock] if view.lock else []))
    options = options_of(target.app, task_in(key))
    if options and target.is_switched_off:
        return view, "it runs without a lock: redlock_enabled is False"
    return view, next_call(view, options, target.judge())


def view_of(nodes: NodeSet, prefix: str, key: str) -> LockView:
    """Return the view of one lock."""
    views = read_views(nodes, prefix, key)
    pending = [] if is_pending_slot_key(key) else read_views(nodes, prefix, pending_slot_key(key))
    marks = sorted(each_done_mark(nodes, prefix, escaped(key)), key=lambda mark: mark.owner)
    return LockView(key, nodes.names, views, pending, marks)


def next_call(view: LockView, options: LockOptions | None, judged: Sequence[Judgement]) -> str:
    """Return what a new call of the task would get now, and why.

    Args:
        view: The lock.
        options: Options of the task; None: they are not known.
        judged: Judgement of each node.
    """
    if options and options.lifetime.reserves_at_publish:
        by_slot = options.lifetime.reserves_pending_slot
        reserved = view.pending if by_slot else view.lock
        if reserved and is_taken(view.pending_views if by_slot else view.views, judged):
            return _at_publish(reserved, options)
    verdict = verdict_on(view.views, judged)
    if verdict is Verdict.REACHED:
        return "it acquires the lock: a quorum of the nodes is free"
    if verdict is Verdict.UNAVAILABLE:
        return _no_quorum(view, options, judged)
    if verdict is Verdict.CONTENDED or view.lock is None:
        return "the nodes are split between attempts: it tries again until one has a majority"
    who = _holds(view.lock, "the lock")
    if options is None:
        return f"{who}: it does not run; lock_on_conflict decides what becomes of it"
    waiting = view.pending if options.on_conflict is OnConflict.COALESCE else None
    if waiting and is_taken(view.pending_views, judged):
        both = f"{who}, and {_name(waiting)} has the pending slot"
        return f"{both}: it ends as REVOKED, with DuplicateTask"
    policy = f'lock_on_conflict="{options.on_conflict.value}"'
    return f"{who}: {_AT_EXECUTION[options.on_conflict]} ({policy})"


def is_taken(views: Sequence[Busy | Failed], judged: Sequence[Judgement]) -> bool:
    """Return whether others hold so many of the nodes that a new call is refused."""
    return verdict_on(views, judged) in (Verdict.HELD, Verdict.CONTENDED)


def verdict_on(views: Sequence[Busy | Failed], judged: Sequence[Judgement]) -> Verdict:
    """Return the verdict on an attempt to acquire a lock now, of which the nodes have `views`."""
    return grant_verdict(list(map(_grant_reply, views, judged)))


def _grant_reply(view: Busy | Failed, node: Judgement) -> GrantReply:
    # A node that refuses to write still names the holder.
    if isinstance(view, Failed) or (view.holder and node.state in (State.VOTES, State.REFUSES)):
        return view
    return _GRANTS if node.state is State.VOTES else _SILENT


def _no_quorum(view: LockView, options: LockOptions | None, judged: Sequence[Judgement]) -> str:
    needed = majority(len(judged))
    voting = sum(one.state is State.VOTES for one in judged)
    if voting >= needed:  # but they can't be read, for instance for want of a right
        read = sum(
            isinstance(one, Busy) and node.state is State.VOTES
            for one, node in zip(view.views, judged, strict=True)
        )
        told = [(one.node, one.error) for one in view.rows if one.error]
        what = f"{read} of {voting} nodes that vote could be read"
        return f"unknown: {what}, {needed} are needed ({_reasons(told)})"
    policy = f": {options.on_unavailable.value}" if options else ""
    told = [(one.node, one.why) for one in judged if one.why is not None]
    return (
        f"no quorum: {voting} of {len(judged)} nodes vote, {needed} are needed "
        f"({_reasons(told)}); lock_on_unavailable decides{policy}"
    )


def _reasons(told: Iterable[tuple[str, str]]) -> str:
    return "; ".join(f"{node}: {why}" for node, why in told)


def _at_publish(reserved: Lock, options: LockOptions) -> str:
    who = _holds(reserved, "the pending slot" if reserved.kind is Kind.PENDING else "it")
    if options.on_conflict is OnConflict.RAISE:
        return f"{who}: delay() raises LockHeld, and publishes no message"
    return f"{who}: delay() returns the result of that task, and publishes no message"


def _holds(lock: Lock, what: str) -> str:
    renewed = " unless renewed" if lock.is_run else ""
    expires = math.isfinite(lock.remaining)
    left = f"for another {lock.expires_in}{renewed}" if expires else "and its key never expires"
    return f"{_name(lock)} holds {what}, {left}"


def _name(lock: Lock) -> str:
    return lock.task_id or "another holder"  # as of a value that another program has set
