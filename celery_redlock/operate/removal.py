"""Release of a lock by an operator: what it means for the holder, and the release itself."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Collection

from celery_redlock.config.options import LockOptions, OnLost
from celery_redlock.redlock.errors import QuorumUnavailable
from celery_redlock.redlock.lease import is_period
from celery_redlock.redlock.protocol.quorum import majority
from celery_redlock.redlock.protocol.replies import Failed
from celery_redlock.redlock.protocol.scripts import done_key

from .listing import each_of
from .lock_view import view_of
from .locks import Kind, Lock, by_age, task_in
from .node_set import NodeSet, refusal_in
from .operator_log import Action, recorded
from .target import Target
from .tasks import options_of


def removal_of(
    target: Target, nodes: NodeSet, key: str, label: str | None
) -> tuple[Lock, str] | None:
    """Return the lock under a key, and what the holder and the next call notice of its release.

    Args:
        target: The nodes, and the app.
        nodes: Connections to them.
        key: Key of the lock.
        label: Done mark of the key that is meant; None: the lock is.

    Returns:
        None: There is nothing to release.

    Raises:
        QuorumUnavailable: No node that answered has it, and fewer than a quorum answered.
    """
    view = view_of(nodes, target.key_prefix, key)
    lock = view.lock
    if label is not None:
        lock = next((mark for mark in view.marks if mark.owner == label), None)
    if lock is None:
        if not view.is_known:
            pairs = zip(view.names, view.views, strict=True)
            errors = {name: one.error for name, one in pairs if isinstance(one, Failed)}
            raise QuorumUnavailable(key, errors, len(nodes), "release")
        return None
    return lock, consequence(lock, options_of(target.app, task_in(key)))


def locks_of(
    nodes: NodeSet,
    prefix: str,
    task: str,
    kinds: Collection[str],
    older_than: float | None,
    now: float,
) -> tuple[list[Lock], int]:
    """Return the locks of a task, the oldest first, and how many are left out for want of an age.

    Args:
        nodes: Connections to the nodes.
        prefix: Start of every key.
        task: Name of the task.
        kinds: Kinds of the locks, as text.
        older_than: Least age, seconds; None: any, also an unknown one.
        now: Time, seconds since the epoch.
    """
    # At once: the nodes can't be asked for anything else while they scan.
    found = [lock for lock in each_of(nodes, prefix, kinds) if lock.task == task]
    found.sort(key=by_age)
    if older_than is None:
        return found, 0
    ages = [(lock, lock.age(now)) for lock in found]
    old = [lock for lock, age in ages if age is not None and age >= older_than]
    return old, sum(age is None for _, age in ages)


def consequence(lock: Lock, options: LockOptions | None) -> str:
    """Return what the holder, and the next call, will notice of a release.

    Args:
        lock: The lock or done mark.
        options: Options of the task; None: they are not known.
    """
    match lock.kind:
        case Kind.DONE:
            return "a copy of that message, if one is delivered again, runs the task once more"
        case Kind.CLAIM | Kind.PUBLISHED:
            return "a replica of beat that looks back so far publishes the tick again"
        case Kind.MISSED:
            return "the tick is not shown as missed any more"
        case Kind.PENDING:
            return (
                "the waiting message still comes back and runs; until then, further messages are "
                "not skipped for it any more"
            )
        case Kind.RESERVED:
            return (
                "the message stays in the queue, and runs; but a second call can be published "
                "beside it"
            )
    if is_period(lock.owner):
        return "nothing runs under it: it is the period of a throttle, and the next call may run"
    aborts = options is None or options.on_lost is OnLost.ABORT
    then = "LeaseLost is raised in it" if aborts else "its lease is lost, and it goes on"
    return (
        "its task may be running: the next renewal, within a third of lock_ttl, fails, and "
        f"{then}. Until then two tasks may run at once; only a resource that checks the token "
        "refuses the older one"
    )


def operator() -> str:
    """Return the name of the user of this process, ``<user>@<hostname>``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user has no name here
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def remove(target: Target, nodes: NodeSet, lock: Lock, author: str, reason: str = "") -> bool:
    """Release a lock, or delete a done mark, if its owner is still that of `lock`; record it.

    Args:
        target: The nodes.
        nodes: Connections to them.
        lock: The lock or done mark.
        author: Who releases it, for the holder and the log to tell.
        reason: Why, for the log; '': nobody says.

    Returns:
        Whether it is released; False: another owner has it by now, or nobody.

    Raises:
        QuorumUnavailable: Fewer nodes than a quorum answered, or confirmed.
    """
    with recorded(target, nodes, Action.on(lock, "release", author, reason)) as result:
        if lock.kind is Kind.DONE:
            is_removed = _delete_mark(target, nodes, lock)
        else:
            # A person waits, and the machine may be far from the nodes.
            with target.redlock(target.patience) as redlock:
                is_removed = redlock.drop_owner(lock.key, lock.owner, author)
        result.text = "released" if is_removed else "not released"
    return is_removed


def remove_held_by(
    target: Target,
    nodes: NodeSet,
    key: str,
    label: str | None,
    expected: str | None,
    author: str,
    reason: str,
) -> bool:
    """Release what `removal_of` finds, as `remove` does, if its id is still `expected`.

    Raises:
        QuorumUnavailable: As with `removal_of` and `remove`.
    """
    removal = removal_of(target, nodes, key, label)
    if removal is None or removal[0].id != expected:
        return False
    return remove(target, nodes, removal[0], author, reason)


def _delete_mark(target: Target, nodes: NodeSet, mark: Lock) -> bool:
    """Delete a done mark; return whether any node had it."""
    replies = nodes.ask([("DEL", done_key(target.key_prefix, mark.key, mark.owner))])
    refusals = zip(nodes.names, map(refusal_in, replies), strict=True)
    errors = {name: why for name, why in refusals if why is not None}
    if len(nodes) - len(errors) < majority(len(nodes)):
        raise QuorumUnavailable(mark.key, errors, len(nodes), "release")
    return [1] in replies
