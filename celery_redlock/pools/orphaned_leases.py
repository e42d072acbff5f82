"""Leases of pool processes that have died, and their release with the right done marks."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from celery_redlock.redlock import Lease
from celery_redlock.redlock.errors import RedlockError
from celery_redlock.redlock.lease import release_or_warn, task_of
from celery_redlock.redlock.release import DONE_S
from celery_redlock.redlock.task_lock import TaskLock

from .lease_record import LeaseRecord

RETRY_S = 0.05
PROVISIONAL_S = 10.0
"""Time that a done mark lasts while the outcome of its message is unknown, in seconds. Celery was
seen to take up to 5 s to find that a pool process is dead."""
_OUTCOME_WITHIN_S = 60.0
_LATE_GRANT_S = 1.0
"""Time after which the attempt of a dead process is released a second time: its grant may have
reached a slow node after the first release."""


@dataclass(slots=True, eq=False)
class HeldLease:
    """Lease of a pool process, in the main process.

    Attributes:
        record: Record that the pool process sent.
        lease: Lease that the main process renews and releases.
        comes_again: Whether the message comes again if the process dies; None: not known yet.
        is_kept: Whether the main process has begun to renew it.
    """

    record: LeaseRecord
    lease: Lease
    comes_again: bool | None
    is_kept: bool = False

    @property
    def mark(self) -> tuple[str | None, float]:
        """Done mark to set at the release (None for none), and its ttl in seconds."""
        if self.comes_again:
            return None, 0.0
        # Until Celery has decided what becomes of the message, no copy of it may run.
        return self.record.done, PROVISIONAL_S if self.comes_again is None else DONE_S


@dataclass(slots=True, eq=False)
class _OrphanedAttempt:
    """Attempt of a process that has died; it may have been granted, or may still be.

    Attributes:
        lease: Lease that the attempt may have been granted.
        due: Time of the next release, seconds on the clock; inf for none.
        is_released: Whether it was released once.
    """

    lease: Lease
    due: float
    is_released: bool = False


class OrphanedLeases:
    """Leases and attempts of dead processes, each until it is released or has expired."""

    def __init__(self) -> None:
        self._unreleased: list[HeldLease] = []
        self._attempts: list[_OrphanedAttempt] = []
        self._awaiting_outcome: deque[tuple[float, HeldLease]] = deque()
        self._outcomes: deque[tuple[str, bool]] = deque()

    def __bool__(self) -> bool:
        return bool(self._unreleased or self._attempts)

    def add_held(self, held: HeldLease) -> None:
        """Add a lease whose process has died; it is released by `release_due`."""
        self._unreleased.append(held)

    def add_attempt(self, lease: Lease) -> None:
        """Add the lease that a dead process may have been granted; `release_due` releases it."""
        self._attempts.append(_OrphanedAttempt(lease, lease.clock.now()))

    def record_task_outcome(self, task_id: str, *, comes_again: bool) -> None:
        """On the main thread: record whether the message of a task comes again."""
        self._outcomes.append((task_id, comes_again))

    def release_due(self, redlock: TaskLock) -> None:
        """Release every lease and attempt that is due; those that fail are tried again later."""
        self._release_held(redlock)
        self._release_attempts(redlock)

    def apply_task_outcomes(self, redlock: TaskLock, holding: Iterable[HeldLease]) -> None:
        """Apply recorded outcomes to leases; Celery decides before the process dies or after."""
        now = redlock.clock.now()
        while self._awaiting_outcome and self._awaiting_outcome[0][0] < now - _OUTCOME_WITHIN_S:
            self._awaiting_outcome.popleft()
        outcomes = {}
        while self._outcomes:
            task_id, comes_again = self._outcomes.popleft()
            outcomes[task_id] = comes_again
        if not outcomes:
            return
        released = [held for _, held in self._awaiting_outcome]
        for held in (*holding, *self._unreleased, *released):
            held.comes_again = outcomes.get(str(task_of(held.lease.owner)), held.comes_again)
        # A second release sets the done mark for its full ttl.
        self._unreleased += [held for held in released if held.comes_again is False]
        self._awaiting_outcome = deque(
            one for one in self._awaiting_outcome if one[1].comes_again is not False
        )

    def _release_held(self, redlock: TaskLock) -> None:
        unreleased, self._unreleased = self._unreleased, []
        for held in unreleased:
            now = redlock.clock.now()
            keep, (done, done_ttl) = max(0.0, held.record.min_hold_until - now), held.mark
            release = partial(redlock.release, keep=keep, done=done, done_ttl=done_ttl)
            if now < held.lease.deadline:
                try:
                    release(held.lease)
                except RedlockError:
                    self._unreleased.append(held)
                    continue
            else:
                release_or_warn(release, held.lease)
            if held.record.done and held.comes_again is not False:
                self._awaiting_outcome.append((now, held))

    def _release_attempts(self, redlock: TaskLock) -> None:
        now = redlock.clock.now()
        for attempt in self._attempts:
            if attempt.due > now:
                continue
            try:
                redlock.release(attempt.lease)
            except RedlockError:
                attempt.due = now + RETRY_S
            else:
                attempt.due = math.inf if attempt.is_released else now + _LATE_GRANT_S
                attempt.is_released = True
        self._attempts = [one for one in self._attempts if one.due <= one.lease.deadline]
