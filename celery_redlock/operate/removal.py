"""Release of a lock by an operator: what it means for the holder, and the release itself."""

from __future__ import annotations

from dataclasses import dataclass

from celery_redlock.config.options import LockOptions, OnLost
from celery_redlock.redlock.errors import QuorumUnavailable
from celery_redlock.redlock.lease import Lease, is_reservation
from celery_redlock.redlock.protocol.quorum import majority
from celery_redlock.redlock.protocol.replies import Failed
from celery_redlock.redlock.protocol.scripts import done_key

from .lock_view import LockView, view_of
from .locks import Kind, Lock, lock_of, task_in
from .node_set import NodeSet
from .target import Target
from .tasks import options_of
from .views import look

_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Removal:
    """Removal of a lock or a done mark, before it is made.

    Attributes:
        target: The nodes, and the app.
        nodes: Connections to them.
        view: Everything under the key.
        lock: The lock or done mark.
        meaning: What the holder, and the next call, will notice.
    """

    target: Target
    nodes: NodeSet
    view: LockView
    lock: Lock
    meaning: str

    def make(self) -> bool:
        """Release the lock, or delete the done mark, if it is still the one that was shown.

        Returns:
            Whether it is released; False: another owner has it by now, or nobody.

        Raises:
            QuorumUnavailable: No quorum confirmed.
        """
        if self.lock.kind is Kind.DONE:
            return delete_mark(self.target, self.nodes, self.lock)
        return release(self.target, self.nodes, self.view, self.lock)


def removal_of(target: Target, nodes: NodeSet, key: str, label: str | None) -> Removal | None:
    """Return the removal of the lock under a key; None: there is nothing to release.

    Args:
        target: The nodes, and the app.
        nodes: Connections to them.
        key: Key of the lock.
        label: Done mark of the key that is meant; None: the lock is.
    """
    view = view_of(nodes, target.key_prefix, key)
    lock = view.lock
    if label is not None:
        lock = next((mark for mark in view.marks if mark.owner == label), None)
    if lock is None:
        return None
    meaning = consequence(lock, options_of(target.app, task_in(key)))
    return Removal(target, nodes, view, lock, meaning)


def consequence(lock: Lock, options: LockOptions | None) -> str:
    """Return what the holder, and the next call, will notice of a release.

    Args:
        lock: The lock or done mark.
        options: Options of the task; None: they are not known.
    """
    match lock.kind:
        case Kind.DONE:
            return "a copy of that message, if one is delivered again, runs the task once more"
        case Kind.CLAIM:
            return "a replica of beat that looks back so far publishes the tick again"
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
    if options and options.lifetime.is_throttle:
        return "nothing runs under it: it is the period of a throttle, and the next call may run"
    then = "LeaseLost is raised in it" if _aborts(options) else "its lease is lost, and it goes on"
    return (
        "its task may be running: the next renewal, within a third of lock_ttl, fails, and "
        f"{then}. Until then two tasks may run at once; only a resource that checks the token "
        "refuses the older one"
    )


def _aborts(options: LockOptions | None) -> bool:
    return options is None or options.on_lost is OnLost.ABORT


def release(target: Target, nodes: NodeSet, view: LockView, lock: Lock) -> bool:
    """Release a lock if its owner is still that of `lock`.

    The floor is raised above the token, so that no renewal revives the lock.

    Returns:
        Whether it is released; False: another owner has it by now, or nobody.

    Raises:
        QuorumUnavailable: No quorum confirmed.
    """
    before = lock_of(lock.key, look(nodes, target.key_prefix, lock.key))
    if before is None or before.owner != lock.owner:
        return False
    redlock = target.new_redlock()
    try:
        if is_reservation(lock.owner):
            return redlock.release_owner(lock.key, lock.owner)
        clock = redlock.clock
        token = max(lock.token, view.floor)
        redlock.release(Lease(lock.key, lock.owner, token, 1000, clock.now() + _WITHIN_S, clock))
        return True
    finally:
        redlock.close()


def delete_mark(target: Target, nodes: NodeSet, mark: Lock) -> bool:
    """Delete a done mark; return whether any node had it.

    Raises:
        QuorumUnavailable: Fewer nodes than a quorum answered.
    """
    replies = nodes.ask([("DEL", done_key(target.key_prefix, mark.key, mark.owner))])
    deleted = [one[0] for one in replies if isinstance(one, list) and isinstance(one[0], int)]
    if len(deleted) < majority(len(nodes)):
        errors = {
            name: one.error if isinstance(one, Failed) else str(one[0])
            for name, one in zip(nodes.names, replies, strict=True)
            if isinstance(one, Failed) or not isinstance(one[0], int)
        }
        raise QuorumUnavailable(mark.key, errors, len(nodes), "release")
    return any(deleted)
