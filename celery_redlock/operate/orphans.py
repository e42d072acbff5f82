"""Reservations whose message is gone: the queue was purged, or the broker lost it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from celery_redlock.config.options import OnConflict
from celery_redlock.config.task_config import task_lock_config
from celery_redlock.redlock.lease import is_period

from .brokers import Brokers
from .listing import each_lock
from .locks import Kind, Lock
from .node_set import NodeSet
from .target import Target
from .tasks import singleton_tasks
from .workers import consumed_queues, rate_limited, task_ids


def orphans(
    target: Target,
    nodes: NodeSet,
    grace: float,
    sleep: Callable[[float], object],
    queues: Collection[str] = (),
) -> tuple[list[Lock], list[str]]:
    """Return the reservations of the app's tasks that no message carries, and what was not seen.

    What was not seen are messages that could not be looked for, in a sentence each.

    A message that is being published, or on its way between queue and worker, is in neither for a
    moment: so a reservation counts only if its message is missing twice.

    Args:
        target: The nodes, and the app.
        nodes: Connections to them.
        grace: Time between the two looks, seconds.
        sleep: Waits for a number of seconds.
        queues: Queues to look at beside those that the app declares and its workers consume.

    Raises:
        MessagesUnknown: Messages may be left that can't be seen, of any of the reservations.
    """
    brokers = Brokers(target.app)
    kinds = _kinds_by_task(target.app)
    missing = [
        lock
        for lock in each_lock(nodes, target.key_prefix)
        if lock.kind in kinds.get(lock.task, ())
        and not is_period(lock.owner)  # it does not belong to the message
    ]
    unseen = list[str]()
    with brokers.reachable():
        if missing:
            missing, unseen = _without_message(target.app, brokers, missing, queues)
        if missing and grace:
            sleep(grace)
            missing, unseen = _without_message(target.app, brokers, missing, queues)
    return missing, unseen


def _kinds_by_task(app: Any) -> dict[str, set[Kind]]:
    """Return the kinds of locks that belong to a message, by the task's name."""
    kinds = {}
    for task in singleton_tasks(app).values():
        kinds[task.name] = {Kind.RESERVED, Kind.PENDING}
        policy = task_lock_config(task, app).options.on_conflict
        if policy is OnConflict.WAIT and not task.acks_late:
            # Its message waits in a worker, and is acknowledged: nothing else may tell of it.
            kinds[task.name].remove(Kind.PENDING)
    return kinds


def _without_message(
    app: Any, brokers: Brokers, locks: Collection[Lock], queues: Collection[str]
) -> tuple[list[Lock], list[str]]:
    """Return the locks whose message is in no queue and with no worker, and what is not seen."""
    consumed = consumed_queues(app)
    names = {*app.amqp.queues, *queues}.union(*consumed.values())
    # In this order, which is that of a message on its way.
    owners = brokers.owners_in_messages(names, consumed)
    ids = task_ids(app, consumed)
    missing = [lock for lock in locks if lock.owner not in owners and lock.task_id not in ids]
    if brokers.keep_delivered:
        return missing, []
    limited = rate_limited(app, consumed)
    unseen = [
        "the messages of a worker that is shutting down, and those in queues other than "
        + ", ".join(sorted(names)),
        *(
            f"those of {task} that wait in a worker for its rate limit: its reservations are kept"
            for task in sorted(limited.intersection(lock.task for lock in missing))
        ),
    ]
    return [lock for lock in missing if lock.task not in limited], unseen
