"""Leases of pool processes that have died, and their release with the right done marks."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from celery_redlock.redlock import Lease
from celery_redlock.redlock.labels import label_of
from celery_redlock.redlock.lease import release_or_warn, task_of
from celery_redlock.redlock.release import DONE_S
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.redlock.threads import callbacks

from .lease_record import LeaseRecord

logger = logging.getLogger(__name__)
RETRY_S = 0.05
PROVISIONAL_S = 10.0
"""Time that a done mark lasts while the outcome of its message is unknown, in seconds. Celery was
seen to take up to 5 s to find that a pool process is dead."""
_OUTCOME_WITHIN_S = 60.0


@dataclass(slots=True, eq=False)
class HeldLease:
    """Lease of a pool process, in the main process.

    Attributes:
        record: Record that the pool process sent.
        lease: Lease that the main process renews and releases.
        will_be_redelivered: Whether the message comes again if the process dies; None: not known
            yet.
        is_kept: Whether the main process has begun to renew it.
        keep_until: Time until which the lock key stays after the release, seconds on the clock;
            None: it is not released yet.
        is_handed_over: Whether the lock is reserved for the retry that Celery may publish.
    """

    record: LeaseRecord
    lease: Lease
    will_be_redelivered: bool | None
    is_kept: bool = False
    keep_until: float | None = None
    is_handed_over: bool = False

    @property
    def mark(self) -> tuple[str | None, float]:
        """Done mark to set at the release (None for none), and its ttl in seconds."""
        if self.will_be_redelivered:
            return None, 0.0
        # Until Celery has decided what becomes of the message, no copy of it may run.
        return self.record.done, PROVISIONAL_S if self.will_be_redelivered is None else DONE_S


class OrphanedLeases:
    """Leases of dead processes, each until it is released or has expired."""

    def __init__(self) -> None:
        self._unreleased: list[HeldLease] = []
        self._awaiting_outcome: deque[tuple[float, HeldLease]] = deque()
        self._outcomes: deque[tuple[str, bool]] = deque()

    def __bool__(self) -> bool:
        return bool(self._unreleased)

    def add_held(self, held: HeldLease) -> None:
        """Add a lease whose process has died; it is released by `release_all`."""
        self._unreleased.append(held)

    def record_task_outcome(self, task_id: str, *, will_be_redelivered: bool) -> None:
        """On the main thread: record whether the message of a task comes again."""
        self._outcomes.append((label_of(task_id), will_be_redelivered))

    def release_all(self, redlock: TaskLock) -> None:
        """Release every lease; those that fail are tried again later."""
        unreleased, self._unreleased = self._unreleased, []
        for held in unreleased:
            now = redlock.clock.now()
            if held.keep_until is None:
                # What the dead process has sent last, until the deadline, may still be on its way.
                delayed_until = min(now, held.lease.deadline) + held.lease.lock_delay_ms / 1000
                held.keep_until = max(delayed_until, held.record.min_hold_until)
                held.is_handed_over = _hand_over(redlock, held, held.keep_until)
            keep = max(0.0, held.keep_until - now)
            if held.is_handed_over and held.will_be_redelivered is False and not keep:
                _release_successor(redlock, held)
            done, done_ttl = held.mark
            # A release that is repeated after the deadline would keep the key from then on.
            release = partial(
                redlock.release, keep=keep, done=done, done_ttl=done_ttl, is_delayed=False
            )
            if now < held.lease.deadline:
                try:
                    release(held.lease)
                except Exception:  # noqa: BLE001  # no error may hold up the others
                    self._unreleased.append(held)
                    continue
            else:
                callbacks.call(
                    release_or_warn, release, held.lease,
                    failed="lock not released key=%s", about=(held.lease.key,),
                )  # fmt: skip
            awaits_outcome = held.record.done or held.is_handed_over
            if awaits_outcome and held.will_be_redelivered is not False:
                self._awaiting_outcome.append((now, held))

    def apply_task_outcomes(self, redlock: TaskLock, holding: Iterable[HeldLease]) -> None:
        """Apply recorded outcomes to leases; Celery decides before the process dies or after."""
        now = redlock.clock.now()
        while self._awaiting_outcome and self._awaiting_outcome[0][0] < now - _OUTCOME_WITHIN_S:
            self._awaiting_outcome.popleft()
        outcomes = {}
        while self._outcomes:
            task_id, will_be_redelivered = self._outcomes.popleft()
            outcomes[task_id] = will_be_redelivered
        if not outcomes:
            return
        released = [held for _, held in self._awaiting_outcome]
        for held in (*holding, *self._unreleased, *released):
            held.will_be_redelivered = outcomes.get(
                str(task_of(held.lease.owner)), held.will_be_redelivered
            )
        # A second release sets the done mark for its full ttl.
        self._unreleased += [held for held in released if held.will_be_redelivered is False]
        self._awaiting_outcome = deque(
            one for one in self._awaiting_outcome if one[1].will_be_redelivered is not False
        )


def _hand_over(redlock: TaskLock, held: HeldLease, keep_until: float) -> bool:
    """Return whether the lock is reserved now for the retry that Celery may publish.

    The lease is to be released either way.
    """
    lease, successor = held.lease, held.record.successor
    # During a lock delay nobody may follow yet.
    if not successor or held.will_be_redelivered is False or lease.lock_delay_ms:
        return False
    try:
        redlock.reserve(
            lease.key,
            max(PROVISIONAL_S, keep_until - redlock.clock.now()),
            supersedes=lease.owner,
            owner=successor,
            highest_floor=lease.token,
        )
    except Exception as error:  # noqa: BLE001  # no error may hold up the others
        callbacks.tell(
            logger.warning, "lock not reserved for the retry of a dead process key=%s error=%s",
            lease.key, error,
        )  # fmt: skip
        return False
    return True


def _release_successor(redlock: TaskLock, held: HeldLease) -> None:
    """Release what `_hand_over` has reserved: the retry is published, or there is none.

    A retry that was published has a reservation of its own by then.
    """
    held.is_handed_over = False
    # If that fails, it expires soon.
    with contextlib.suppress(Exception):
        redlock.release_owner(held.lease.key, held.record.successor)
