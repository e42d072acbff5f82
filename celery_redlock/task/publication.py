"""Publication of a call: with a reservation if its lifetime wants one, or as a duplicate."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.utils import uuid

from celery_redlock.config.options import Lifetime, LockOptions, OnConflict, OnUnavailable
from celery_redlock.execution.running import current
from celery_redlock.messages.headers import (
    PUBLICATION_HEADER,
    TICK_HEADER,
    CarriedNonce,
    nonce_in,
    placement_header,
    seconds_until,
)
from celery_redlock.messages.reservation import (
    Reservation,
    pending_slot_key,
    release_reservation,
    reservation_in,
    reserve,
)
from celery_redlock.pools.pool_process import withdraw_attempts
from celery_redlock.redlock.errors import LockHeld, QuorumUnavailable, shown
from celery_redlock.redlock.labels import label_of
from celery_redlock.redlock.lease import (
    is_reservation,
    new_owner,
    publication_of,
    task_id_of,
    task_of,
)
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.signals import lock_conflict, lock_unavailable
from celery_redlock.throttled_log import ThrottledLog

from .circuit_breaker import breaker_of

if TYPE_CHECKING:
    from celery import Task
    from celery.app.task import Context

logger = logging.getLogger(__name__)
_AFTER_EXPIRY_S = 1.0
_unreserved = ThrottledLog()
_CANVAS = frozenset(
    {"chain", "chord", "group_id", "group_index", "link", "link_error", "parent_id", "root_id",
     "replaced_task_nesting"}
)  # fmt: skip
"""Options of a message in a canvas. Another task's result in its place would hang the canvas, so
such a message is always published, and locked only when it is executed."""


def reserved_key(lifetime: Lifetime, key: str) -> str | None:
    """Return the key that a queued message of a call with this lock key reserves, or None."""
    if not lifetime.reserves_at_publish:
        return None
    return pending_slot_key(key) if lifetime.reserves_pending_slot else key


def is_in_canvas(options: Mapping[str, Any]) -> bool:
    """Return whether a message published with these options belongs to a canvas."""
    return any(options[option] for option in _CANVAS & options.keys())


def is_from_beat(options: Mapping[str, Any]) -> bool:
    """Return whether beat publishes; an error would end its tick."""
    return is_tick(options) or bool((options.get("headers") or {}).get("celery_beat_task"))


def is_tick(options: Mapping[str, Any]) -> bool:
    """Return whether a replica of our beat publishes a tick that another may have published."""
    return TICK_HEADER in (options.get("headers") or {})


def is_retry_of(running: Context, task_id: str | None, options: Mapping[str, Any]) -> bool:
    """Return whether a publication with these options is a retry of the running execution."""
    is_next = (options.get("retries") or 0) > (running.retries or 0)
    return task_id is not None and task_id == running.id and is_next


def is_next_step(running: Context | None, task_id: str | None, options: Mapping[str, Any]) -> bool:
    """Return whether the worker publishes what follows the running execution in a canvas.

    The execution itself has succeeded: an error would be stored as its own.
    """
    # A retry is the same task again. From the second on it names itself as its parent.
    if running is None or task_id == running.id:
        return False
    if running.id is not None and options.get("parent_id") == running.id:
        return True
    # A chord's body names no parent. Its last member publishes it, or a task of Celery's own.
    is_chords_end = bool(running.chord) or running.get("task") == "celery.chord_unlock"
    return is_chords_end and task_id is not None


def reserved_for(options: Mapping[str, Any]) -> str | None:
    """Return the key that a call reserved before it is published with these options, or None.

    None also for a message that is published again: what it holds is not of these arguments.
    """
    headers = options.get("headers") or {}
    if options.get("retries") or isinstance(headers.get(PUBLICATION_HEADER), CarriedNonce):
        return None
    reservation = reservation_in(headers)
    return reservation.key if reservation else None


def message_ttl(lock: LockOptions, options: Mapping[str, Any]) -> float:
    """Return how long the reservation of a message with these options lasts, in seconds."""
    if lock.lifetime.is_throttle:
        return lock.ttl
    starts_in = seconds_until(options.get("countdown") or options.get("eta")) or 0.0
    expires_in = seconds_until(options.get("expires"))
    ttl = lock.queue_ttl + max(0.0, starts_in)
    return ttl if expires_in is None else min(ttl, max(0.0, expires_in) + _AFTER_EXPIRY_S)


def _has_expired(options: Mapping[str, Any]) -> bool:
    expires_in = seconds_until(options.get("expires"))
    return expires_in is not None and expires_in <= 0


class Publication(NamedTuple):
    """Publication of one call.

    Attributes:
        task: The task.
        redlock: The app's lock.
        lock: The task's lock options.
        key: The call's lock key.
        task_id: The message's id if the caller gave one.
        options: Options given to `apply_async`, over the task's own.
    """

    task: Task[Any, Any]
    redlock: TaskLock
    lock: LockOptions
    key: str
    task_id: str | None
    options: Mapping[str, Any]

    def send(self, send: Callable[..., Any]) -> Any:
        """Publish the call, with a reservation if the lifetime wants one.

        Args:
            send: `celery.Task.apply_async`, with the arguments of the call.

        Returns:
            The result of the new message, or for a duplicate that of the message that was first.

        Raises:
            LockHeld: Duplicate call, and the conflict policy is `raise`.
            QuorumUnavailable: No quorum, and the policy for that is `raise`.
        """
        if self.task_id is not None and self.task_id == self.task.request.id:
            return self._send_again(send)
        key, is_retry = reserved_key(self.lock.lifetime, self.key), self._is_retry_of_lost_run
        if key is None or (is_in_canvas(self.options) and not is_retry):
            return send(self.task_id, {})
        task_id = self.task_id or uuid()
        try:
            reservation = breaker_of(self.redlock).call(key, partial(self._reserve, key, task_id))
        except LockHeld as held:
            is_sent = held.contended or is_retry or self._is_tick_again(held)
            if is_sent or self._is_left_to_worker(held):
                return send(task_id, {})
            if not self._may_be_dropped(held):
                raise
            return self.task.AsyncResult(str(task_of(held.owner)))
        except QuorumUnavailable as error:
            is_raised = self.lock.on_unavailable is OnUnavailable.RAISE and not is_retry
            outcome = "raise" if is_raised else "unreserved"
            lock_unavailable.send(sender=self.task, task_id=task_id, error=error, outcome=outcome)
            if is_raised:
                raise
            # The reservation only saves work: the worker's lock excludes.
            logger.log(
                _unreserved.occurred(logging.WARNING),
                "published without a reservation key=%s count=%d error=%s",
                key, _unreserved.count, error,
            )  # fmt: skip
            return send(task_id, {})
        try:
            if count := _unreserved.ended():
                logger.warning("published with reservations again count=%d", count)
            return send(task_id, reservation.header | placement_header(self.redlock))
        except BaseException:
            release_reservation(self.redlock, reservation)
            raise
        finally:
            withdraw_attempts()

    def _reserve(self, key: str, task_id: str) -> Reservation:
        publication = nonce_in(self.options.get("headers"))

        def replace(replaces: Reservation | None) -> Reservation:
            ttl, is_period = message_ttl(self.lock, self.options), self.lock.lifetime.is_throttle
            return reserve(
                self.redlock, key, ttl, task_id, publication, replaces, is_period=is_period
            )

        try:
            return replace(None)
        except LockHeld as held:
            is_own = task_of(held.owner) == label_of(task_id) and (
                publication_of(held.owner) == publication
            )
            # The keeper of the pool has kept the lock for the retry, under another owner.
            if not (self._is_retry_of_lost_run and is_own and is_reservation(held.owner)):
                raise
            return replace(Reservation(key, str(held.owner)))

    @property
    def _is_retry_of_lost_run(self) -> bool:
        """Whether a retry is published by another process than that of its run, which has died.

        It is published in any case, but with a reservation if the lifetime holds across retries.
        """
        is_retry = self.task_id is not None and bool(self.options.get("retries"))
        return is_retry and self.lock.lifetime.holds_across_retries

    def _is_tick_again(self, held: LockHeld) -> bool:
        """Return whether another replica of beat reserved this tick, and may have died since."""
        return is_tick(self.options) and task_of(held.owner) == label_of(self.task_id)

    def _is_left_to_worker(self, held: LockHeld) -> bool:
        """Return whether a worker is to decide on a duplicate of a holder without a result.

        Nobody stores one under the name of a process. `get()` would wait for ever.
        """
        return self.lock.on_conflict is not OnConflict.RAISE and task_id_of(held.owner) is None

    def _send_again(self, send: Callable[..., Any]) -> Any:
        """Publish a message of the running execution itself: a retry, or a replacement.

        With a lifetime that holds across retries, the retry gets an owner of its own, to which the
        run hands its lock over at its end.
        """
        run, request = current.get(), self.task.request
        if (
            not is_retry_of(request, self.task_id, self.options)
            or not self.lock.lifetime.holds_across_retries
            or run is None
            or run.message.request is not request
            or run.lease.key != self.key  # other arguments have another key
            # It is discarded, perhaps before the run ends: nobody would release the lock.
            or _has_expired(self.options)
        ):
            return send(self.task_id, {})
        owner = new_owner(
            self.task_id,
            publication=nonce_in(self.options.get("headers")),
            is_reservation=True,
            since_us=self.redlock.clock.wall_us(),
        )
        sent = send(self.task_id, Reservation(self.key, owner).header)
        run.hand_over_to(owner, message_ttl(self.lock, self.options))
        return sent

    def _may_be_dropped(self, held: LockHeld) -> bool:
        """Announce that the call is a duplicate; return whether its policy ends it silently."""
        outcome = self.lock.on_conflict.value
        held.name_task(self.task.name)
        logger.info(
            "not published key=%s task=%s holder_task_id=%s remaining_s=%.3f outcome=%s",
            held.key, self.task.name, shown(task_of(held.owner)), held.remaining, outcome,
        )  # fmt: skip
        lock_conflict.send(
            sender=self.task, task_id=self.task_id, error=held, outcome=outcome, at="publish"
        )
        return self.lock.on_conflict is not OnConflict.RAISE or is_from_beat(self.options)
