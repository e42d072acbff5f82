"""End of a run by an operator: the workers are asked over the broker, and the nodes what it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from celery_redlock.redlock.errors import RedlockError, shown
from celery_redlock.redlock.lease import is_period
from celery_redlock.redlock.protocol.quorum import majority
from celery_redlock.redlock.protocol.replies import Busy

from .brokers import reason_in
from .lock_view import LockView, view_of
from .locks import Kind, Lock, lock_of
from .node_set import NodeSet
from .operator_log import Action, recorded
from .target import Target
from .views import read_views
from .workers import remote_control

CONSEQUENCE = (
    "its run is ended where it runs. A process of the prefork pool is terminated, and the task "
    "ends as REVOKED; in pools of threads or greenlets LeaseLost is raised in the body, and the "
    "task ends as FAILURE. Its message does not come again, and the lock is free once the run has "
    "ended"
)
SIGNALS = ("TERM", "KILL")
"""Signals for a process of the prefork pool; the first is the default."""
_LONGEST_REASON = 500
_REPLIES_S = 2.0
_LOOK_EVERY_S = 0.2
_LOOKS = 50
"""Looks at the nodes: for 10 s."""
_NOBODY = (
    "no worker has answered that it runs it. A worker of the solo pool hears no command while it "
    "runs a task, and without pidfds, as on macOS, a worker does not know what its prefork pool "
    "runs; nor does any worker answer for a lock whose worker is dead, that is held outside of a "
    "task, or that lock_min_hold keeps after its run"
)
_UNANSWERED = (
    "but no worker has answered that it ended the run. The run may have come to its own end; if "
    "its worker is dead or unreachable, its message may come again"
)
_GOES_ON = (
    "the lock has not been released since. The body may be inside of C code, as in a query or in "
    "time.sleep(), or go on in spite of the interrupt; with lock_min_hold, or with lock_delay "
    "after a kill, the key stays for a while"
)


class Order(NamedTuple):
    """What an operator orders.

    Attributes:
        author: Who does.
        reason: Why, of which the first 500 characters are told; '': it is not said.
        signal: Signal for a process of the prefork pool, one of `SIGNALS`.
    """

    author: str
    reason: str = ""
    signal: str = SIGNALS[0]


@dataclass(frozen=True, slots=True)
class Ending:
    """What became of a run that was to be ended.

    Attributes:
        outcome: Who has the lock now, or why the run goes on; a sentence without a full stop.
        is_ended: Whether a worker has ended it, and its owner is gone from the nodes.
    """

    outcome: str
    is_ended: bool = False


def held_by_nothing(view: LockView) -> tuple[str, Lock] | None:
    """Return what is under a key if no run holds it, and which lock or mark to release instead.

    None: a run holds it, or there is nothing.
    """
    lock = view.lock
    if lock is None:
        rest = [one for one in (view.pending, *view.marks) if one]
        return (_WHAT[rest[0].kind], rest[0]) if rest else None
    if lock.is_run:
        return None
    return ("the period of a throttle" if is_period(lock.owner) else _WHAT[lock.kind]), lock


def run_in(view: LockView) -> Lock | str:
    """Return the lock of the run that can be ended, or why there is none, without a full stop."""
    if nothing := held_by_nothing(view):
        return f"it is {nothing[0]}"
    return view.lock or ("nobody holds it" if view.is_known else f"its holder is {view.absence}")


def run_under(target: Target, nodes: NodeSet, key: str) -> Lock | str:
    """Return what `run_in` does, of a key; without an app no worker can be told."""
    if target.app is None:
        return "without an app, no worker can be told"
    return run_in(view_of(nodes, target.key_prefix, key))


_WHAT = {
    Kind.RESERVED: "a reservation, whose message waits",
    Kind.PENDING: "a pending slot, whose message waits",
    Kind.CLAIM: "a claim of beat",
    Kind.PUBLISHED: "beat's mark of a published tick",
    Kind.MISSED: "a note of a missed tick",
    Kind.DONE: "a done mark",
}


def end(
    target: Target, nodes: NodeSet, lock: Lock, order: Order, sleep: Callable[[float], object]
) -> Ending:
    """End the run that holds a lock, and wait until its owner is gone from the nodes.

    The run of the next holder is not touched. Waits for some 10 s at most, and records it.

    Args:
        target: The nodes, and the app.
        nodes: Connections to them.
        lock: The lock, with the owner whose run is meant.
        order: Who ends it, and how.
        sleep: Waits for a number of seconds.

    Raises:
        RedlockError: The broker has no remote control, or could not be reached.
    """
    action = Action.on(lock, "end", order.author, order.reason)
    with recorded(target, nodes, action) as result:
        became = _end(target, nodes, lock, order, sleep)
        result.text = became.outcome
    return became


def end_held_by(
    target: Target,
    nodes: NodeSet,
    key: str,
    expected: str,
    order: Order,
    sleep: Callable[[float], object],
) -> Ending:
    """End the run that holds a key as `end` does, if the holder's id is still `expected`.

    Raises:
        RedlockError: As with `end`.
    """
    run = run_under(target, nodes, key)
    if isinstance(run, str):
        return Ending(f"Not ended: {run}")
    if run.id != expected:
        return Ending("Not ended: it has another holder by now")
    if order.signal not in SIGNALS:
        return Ending(f"Not ended: the signal must be one of {', '.join(SIGNALS)}")
    return end(target, nodes, run, order, sleep)


def _end(
    target: Target, nodes: NodeSet, lock: Lock, order: Order, sleep: Callable[[float], object]
) -> Ending:
    answers, seen = _ask(target.app, lock, order), list[Busy]()
    for look in range(_LOOKS):
        if refused := [f"worker {by}: {said['error']}" for by, said in answers if "error" in said]:
            return Ending(f"Not ended: {'; '.join(refused)}")
        views = read_views(nodes, target.key_prefix, lock.key)
        seen = [view for view in views if isinstance(view, Busy)]
        if len(seen) >= majority(len(nodes)) and all(one.holder != lock.owner for one in seen):
            follower = lock_of(lock.key, views)
            who = f"{follower.holder('another holder')} has" if follower else "nobody has"
            if answers:
                return Ending(f"Ended: {who} the lock now", is_ended=True)
            return Ending(f"Not known to have ended: {who} the lock now, {_UNANSWERED}")
        if look or answers:
            sleep(_LOOK_EVERY_S)
        else:
            # A worker that is ready hears nothing yet for up to 1 s: Redis drops the question.
            answers = _ask(target.app, lock, order)
    if len(seen) < majority(len(nodes)):
        return Ending(f"Not known to have ended: {len(seen)} of {len(nodes)} nodes answered")
    if not answers:
        return Ending(f"Still held: {_NOBODY}")
    done = "; ".join(f"worker {name}: {said.get('ok')}" for name, said in answers)
    return Ending(f"Still held: {done}; {_GOES_ON}")


def _ask(app: Any, lock: Lock, order: Order) -> list[tuple[str, dict[str, Any]]]:
    """Ask all workers to end the run; return the answers of those that run it."""
    told = order._replace(reason=order.reason[:_LONGEST_REASON])
    arguments = {"key": lock.key, "id": lock.id, **told._asdict()}
    try:
        with remote_control(app) as connection:
            replies = connection and app.control.broadcast(
                "redlock_end", arguments, connection=connection, reply=True, timeout=_REPLIES_S
            )
    except Exception as error:
        raise RedlockError(f"the workers could not be asked: {reason_in(error)}") from error
    if replies is None:
        raise RedlockError("the broker has no remote control, by which workers are asked")
    pairs = [(shown(name), said) for reply in replies for name, said in reply.items()]
    return [(name, said) for name, said in pairs if isinstance(said, dict) and "runs_here" in said]
