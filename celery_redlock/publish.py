"""Reservations: a lock taken when a message is published, and given back when it is needed no more.

Its owner travels in the message's headers; the worker's lease supersedes it. A reservation only
saves work: a message whose reservation has expired is run all the same.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.utils import uuid
from celery.utils.time import maybe_iso8601, maybe_make_aware

from .options import Lifetime, LockOptions, OnConflict, OnUnavailable
from .redlock import Redlock
from .redlock.errors import LockHeld, QuorumUnavailable, RedlockError
from .redlock.lease import new_owner, task_of
from .run import TICK_HEADER, Successor, current
from .signals import lock_conflict

if TYPE_CHECKING:
    from celery import Task

logger = logging.getLogger(__name__)
HEADER = "redlock_reservation"
_AFTER_EXPIRY_S = 1.0
_NEXT = "%next"
"""Ends the name of the lock that the next in line holds. No name of a task's lock can end so: in
what comes from arguments every % is escaped."""

_CANVAS = frozenset(
    {"chain", "chord", "group_id", "group_index", "link", "link_error", "parent_id", "root_id",
     "replaced_task_nesting"}
)  # fmt: skip
"""Options of a message that belongs to a canvas. To answer with another task's result would hang
it: such a message is always published, and locked when it is executed."""


class Reservation(NamedTuple):
    """A lock held by a message.

    Attributes:
        key: Name of the lock.
        owner: Under which it is held.
    """

    key: str
    owner: str

    @property
    def header(self) -> dict[str, list[str]]:
        """What the message carries of it."""
        return {HEADER: [self.key, self.owner]}


def reservation_in(headers: Mapping[str, Any] | None) -> Reservation | None:
    """Return the reservation that a message with these headers holds, or held."""
    match (headers or {}).get(HEADER):
        case [str(key), str(owner)]:
            return Reservation(key, owner)
    return None


def reserved_key(lifetime: Lifetime, name: str) -> str | None:
    """Return which lock a message holds while it waits, or None if it holds none."""
    match lifetime:
        case Lifetime.WHILE_EXECUTING:
            return None
        case Lifetime.UNTIL_AND_WHILE_EXECUTING:
            return next_in_line(name)
    return name


def next_in_line(name: str) -> str:
    """Return the lock of the one message that waits for the holder of `name` to end."""
    return name + _NEXT


def is_in_canvas(options: Mapping[str, Any]) -> bool:
    """Tell whether a message published with these options belongs to a canvas."""
    return any(options[option] for option in _CANVAS & options.keys())


def is_from_beat(options: Mapping[str, Any]) -> bool:
    """Tell whether beat publishes, into which nothing may be raised."""
    return is_tick(options) or bool((options.get("headers") or {}).get("celery_beat_task"))


def is_tick(options: Mapping[str, Any]) -> bool:
    """Tell whether a replica of our beat publishes, as another one may have tried to."""
    return TICK_HEADER in (options.get("headers") or {})


def message_ttl(lock: LockOptions, options: Mapping[str, Any]) -> float:
    """Return for how long a message published with these options may hold its reservation, s."""
    if lock.lifetime is Lifetime.UNTIL_EXPIRED:
        return lock.ttl
    starts_in = seconds_until(options.get("countdown") or options.get("eta")) or 0.0
    expires_in = seconds_until(options.get("expires"))
    ttl = lock.queue_ttl + max(0.0, starts_in)
    return ttl if expires_in is None else min(ttl, max(0.0, expires_in) + _AFTER_EXPIRY_S)


def reserve(
    redlock: Redlock, key: str, ttl: float, task_id: str | None, replaces: Reservation | None = None
) -> Reservation:
    """Return a new reservation, in the place of another if one is given.

    Raises:
        LockHeld: Another message, or an execution, holds it.
        QuorumUnavailable: Fewer nodes than a quorum could answer.
    """
    supersedes = replaces.owner if replaces and replaces.key == key else None
    lease = redlock.reserve(key, ttl, label=task_id, supersedes=supersedes)
    return Reservation(key, lease.owner)


def give_back(redlock: Redlock, reservation: Reservation) -> None:
    """Free a reservation that is of no use any more; what can't be freed ends with its ttl."""
    try:
        redlock.drop(reservation.key, reservation.owner)
    except RedlockError as error:
        logger.warning("reservation not given back key=%s error=%s", reservation.key, error)


class Publication(NamedTuple):
    """A message that is about to be published.

    Attributes:
        task: Its task.
        redlock: The lock.
        lock: Its task's options.
        name: Of its lock.
        task_id: The id it is to have, if the caller gave one.
        options: As given to `apply_async`, with the task's own below them.
    """

    task: Task[Any, Any]
    redlock: Redlock
    lock: LockOptions
    name: str
    task_id: str | None
    options: Mapping[str, Any]

    def send(self, send: Callable[..., Any]) -> Any:
        """Publish, under a reservation if the lifetime wants one.

        Args:
            send: `celery.Task.apply_async`, with the arguments of the call.

        Returns:
            The new message's result, or that of the message which this is a duplicate of.

        Raises:
            LockHeld: It is a duplicate, and the policy is `raise`.
            QuorumUnavailable: No quorum, and that policy is `raise`.
        """
        if self.task_id is not None and self.task_id == self.task.request.id:
            return self._send_again(send)
        key = reserved_key(self.lock.lifetime, self.name)
        if key is None or is_in_canvas(self.options):
            return send(self.task_id, {})
        task_id = self.task_id or uuid()
        try:
            reservation = reserve(self.redlock, key, self._ttl, task_id)
        except LockHeld as held:
            if held.contended or self._is_tick_again(held):
                return send(task_id, {})
            return self._duplicate(held)
        except QuorumUnavailable as error:
            if self.lock.on_unavailable is OnUnavailable.RAISE:
                raise
            # The worker's lock is the one that counts.
            logger.warning("published without a reservation key=%s error=%s", key, error)
            return send(task_id, {})
        try:
            return send(task_id, reservation.header)
        except BaseException:
            give_back(self.redlock, reservation)
            raise

    def _is_tick_again(self, held: LockHeld) -> bool:
        """Tell whether another replica of beat reserved this tick, and may have died over it."""
        return is_tick(self.options) and task_of(held.holder) == self.task_id

    @property
    def _ttl(self) -> float:
        return message_ttl(self.lock, self.options)

    def _send_again(self, send: Callable[..., Any]) -> Any:
        """Send a message by which a run publishes itself again.

        A retry whose lock lasts until it is executed gets an owner of its own, to which the run
        hands the lock over as it ends.
        """
        run, request = current.get(), self.task.request
        is_retry = (self.options.get("retries") or 0) > (request.retries or 0)
        if (
            not is_retry
            or self.lock.lifetime is not Lifetime.UNTIL_EXECUTED
            or run is None
            or run.request is not request
            or run.lease.key != self.name  # with other arguments it has another lock
        ):
            return send(self.task_id, {})
        owner = new_owner(self.task_id, is_reservation=True)
        sent = send(self.task_id, Reservation(self.name, owner).header)
        run.successor = Successor(owner, self._ttl)
        return sent

    def _duplicate(self, held: LockHeld) -> Any:
        holder = task_of(held.holder)
        becomes = self.lock.on_conflict.value
        logger.info(
            "not published key=%s task=%s holder_task_id=%s remaining_s=%.3f becomes=%s",
            held.key, self.task.name, holder, held.remaining, becomes,
        )  # fmt: skip
        lock_conflict.send(sender=self.task, task_id=self.task_id, error=held, becomes=becomes)
        if self.lock.on_conflict is OnConflict.RAISE and not is_from_beat(self.options):
            raise held
        return self.task.AsyncResult(str(holder))


def seconds_until(moment: Any) -> float | None:
    """Return how far off a countdown, eta or expiry is, in seconds, or None if there is none.

    Args:
        moment: Seconds from now; a moment, or one in ISO 8601, in UTC if it names no zone: workers
            take it so, whatever the app's time zone.
    """
    if isinstance(moment, str):
        moment = maybe_iso8601(moment)
    if isinstance(moment, dt.datetime):
        return (maybe_make_aware(moment) - dt.datetime.now(dt.timezone.utc)).total_seconds()
    return None if moment is None else float(moment)
