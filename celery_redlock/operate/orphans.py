"""Reservations whose message is gone: the queue was purged, or the broker lost it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from celery_redlock.config.task_config import task_lock_config
from celery_redlock.messages.reservation import reservation_in
from celery_redlock.redlock.errors import ConfigurationError

from .listing import each_lock
from .locks import Kind, Lock
from .node_set import NodeSet
from .target import Target
from .tasks import singleton_tasks

_BATCH = 500
_BINDINGS = "_kombu.binding.*"
_SEPARATOR = "\x06\x16"


def orphans(
    target: Target, nodes: NodeSet, grace: float, sleep: Callable[[float], object]
) -> list[Lock]:
    """Return the reservations of the app's tasks that no message carries.

    A message that is being published, or on its way between queue and worker, is in neither for a
    moment: so a reservation counts only if its message is missing twice.

    Args:
        target: The nodes, and the app.
        nodes: Connections to them.
        grace: Time between the two looks, seconds.
        sleep: Waits for a number of seconds.

    Raises:
        ConfigurationError: The broker is not Redis: no other one shows its messages.
    """
    # A throttle's period does not belong to the message.
    tasks = {
        task.name
        for task in singleton_tasks(target.app)
        if not task_lock_config(task, target.app).options.lifetime.is_throttle
    }
    found = [
        lock
        for lock in each_lock(nodes, target.key_prefix)
        if lock.kind in (Kind.RESERVED, Kind.PENDING) and lock.task in tasks
    ]
    missing = _without_message(target.app, found)
    if missing and grace:
        sleep(grace)
        missing = _without_message(target.app, missing)
    return missing


def _without_message(app: Any, locks: list[Lock]) -> list[Lock]:
    owners = set(_owners_in_messages(app))
    return [lock for lock in locks if lock.owner not in owners]


def _owners_in_messages(app: Any) -> Iterator[str]:
    """Yield the owners that the messages in the broker carry: queued, and not acknowledged."""
    with app.connection_for_read() as connection:
        if connection.transport.driver_type != "redis":
            raise ConfigurationError(
                f"the broker is {connection.transport.driver_type}: only with Redis can messages "
                "be looked at without consuming them; release each reservation by its key"
            )
        channel = connection.default_channel
        client = channel.client
        for queue in _queues(app, client):
            for step in channel.priority_steps:
                name = channel._q_for_pri(queue, step)  # noqa: SLF001  # kombu has no other way
                yield from _owners_in_list(client, name)
        for _, raw in client.hscan_iter(channel.unacked_key, count=_BATCH):
            yield from _owners_in(json.loads(raw)[0])


def _queues(app: Any, client: Any) -> set[str]:
    """Return the queues that the app knows, and those that anybody has bound at this broker."""
    names = set(app.amqp.queues)
    for key in client.scan_iter(_BINDINGS, count=_BATCH):
        for member in client.smembers(key):
            text = member.decode() if isinstance(member, bytes) else member
            names.add(text.rpartition(_SEPARATOR)[2])
    return names


def _owners_in_list(client: Any, name: str) -> Iterator[str]:
    # New messages come in at the front, and move those that were read to the back: read twice, none
    # is missed.
    start = 0
    while raws := client.lrange(name, start, start + _BATCH - 1):
        for raw in raws:
            yield from _owners_in(json.loads(raw))
        start += len(raws)


def _owners_in(message: Any) -> Iterator[str]:
    reservation = reservation_in(message.get("headers"))
    if reservation:
        yield reservation.owner
