"""Release a lease on a majority of the nodes, or have the keeper retry until it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from celery_redlock.redlock.protocol.quorum import acknowledged, drift_ms
from celery_redlock.redlock.protocol.replies import Acknowledged, AckReply
from celery_redlock.redlock.protocol.scripts import lock_keys

from .access import Access, Operation
from .events import Event, Released
from .keeper import Keeper
from .lease import Lease
from .refusals import unavailable
from .unsettled import ReleaseRequest, due_after
from .waiters import Waiters

DONE_S = 3600.0
"""Default expiry of a done mark."""
_DROPPED_WITHIN_S = 60.0
"""Time for which the release of another process's lock is retried; its ttl is unknown here."""


class Release(Operation):
    """Releases of leases, for any number of threads.

    Args:
        access: Access to the nodes.
        keeper: Retries each release until a majority has confirmed it.
        observe: Called with Released.
        waiters: Waiters of this process.
    """

    def __init__(
        self,
        access: Access,
        keeper: Keeper,
        observe: Callable[[Event], None],
        waiters: Waiters,
    ) -> None:
        super().__init__(access)
        self._keeper = keeper
        self._observe = observe
        self._waiters = waiters

    def release(
        self, lease: Lease, keep: float = 0.0, done: str | None = None, done_ttl: float = DONE_S
    ) -> None:
        """Release `lease`; see `TaskLock.release`.

        Raises:
            QuorumUnavailable: No majority confirmed; the keeper retries.
        """
        now = self._clock.now()
        request = ReleaseRequest(
            lease.key,
            lease.owner,
            due=now + due_after(self._node_timeout),
            ends_at=max(lease.deadline, now + keep) + drift_ms(lease.ttl_ms) / 1000,
            token=lease.token,
            superseded=lease.superseded,
            keep_until=now + keep,
            done=done,
            done_ttl_ms=round(done_ttl * 1000),
        )
        self._have_answered_for(request)
        self._keeper.forget(lease)
        is_first, lease.is_released = not lease.is_released, True
        give_up_at = now + self._node_timeout

        def is_bound() -> bool:
            # On another connection the release could overtake a grant that is on its way to a slow
            # node. That grant would stay there until its ttl is over.
            is_late = lease.backing.is_granted_late
            return is_late is not None and is_late() and self._clock.now() < give_up_at

        acks = self._make(request, lease.backing.channel, is_bound)
        # Nodes mostly reply alike. In their order, so that a run can be repeated exactly.
        for ack in dict.fromkeys(acks):
            if isinstance(ack, Acknowledged) and ack.listeners:
                channel, _ = lock_keys(self._rounds.prefix, lease.key)
                self._waiters.note_release(channel, ack.listeners)
                break
        self._observe(Released(lease, self._clock.now() - lease.acquired_at))
        if acknowledged(acks) < self._quorum:
            raise unavailable("release", lease.key, acks, self._nodes)
        # A task's run may have handed its lock over, and of an overdue release the keeper may have
        # been first: neither is a loss.
        is_by_us = is_first and self._clock.now() < request.due
        if is_by_us and lease.backing.lock and _gone(acks) >= self._quorum:
            lease.is_lost = True

    def drop(self, key: str, owner: str, token: int = 0) -> bool:
        """Release `key` if `owner` holds it; the lock of another owner is not touched.

        Args:
            key: Key of the lock.
            owner: Owner of the lock.
            token: Token of its lease, or a higher one: the floors are raised above it, so that no
                renewal revives the lock. 0: it is a reservation, or an attempt.

        Returns:
            Whether `owner` held it on any node that answered in time.

        Raises:
            QuorumUnavailable: Less than a majority confirmed.
        """
        now = self._clock.now()
        request = ReleaseRequest(
            key, owner, due=now + due_after(self._node_timeout), ends_at=now + _DROPPED_WITHIN_S,
            token=token,
        )  # fmt: skip
        self._have_answered_for(request)
        acks = self._make(request)
        if acknowledged(acks) < self._quorum:
            raise unavailable("release", key, acks, self._nodes)
        return any(isinstance(ack, Acknowledged) and ack.was_ours for ack in acks)

    def mark_done(self, key: str, label: str) -> None:
        """Write a done mark for `label`; see `TaskLock.mark_done`.

        Raises:
            QuorumUnavailable: Less than a majority confirmed.
        """
        with self._pool.channel() as channel:
            acks = self._rounds.mark_done(channel, key, label, round(DONE_S * 1000))
        if acknowledged(acks) < self._quorum:
            raise unavailable("mark", key, acks, self._nodes)

    def _have_answered_for(self, request: ReleaseRequest) -> None:
        # If the keeper's thread can't be started, the caller's own attempt is the only one.
        with suppress(RuntimeError):
            self._keeper.answer_for(request)

    def _make(
        self,
        request: ReleaseRequest,
        preferred: object = None,
        is_bound: Callable[[], bool] = bool,
    ) -> Sequence[AckReply | None]:
        """Make a release, and take it from the keeper once a majority has confirmed it."""
        try:
            with self._pool.channel(preferred, is_bound, goes_first=True) as channel:
                acks = self._rounds.release(
                    channel, request.key, request.owner, request.token,
                    superseded=request.superseded, keep_ms=request.keep_ms(self._clock.now()),
                    done=request.done, done_ttl_ms=request.done_ttl_ms,
                )  # fmt: skip
        except BaseException:
            self._keeper.finish(request.owner)
            raise
        if acknowledged(acks) >= self._quorum:
            self._keeper.settle(request.owner)
        return acks


def _gone(acks: Sequence[AckReply | None]) -> int:
    """Return how many nodes had not had the lock key any more."""
    return sum(isinstance(ack, Acknowledged) and not ack.was_ours for ack in acks)


class BackgroundRelease(Operation):
    """Releases that the keeper has taken over, made on its thread with channels of its own."""

    def make_all(self, requests: Sequence[ReleaseRequest], patience: float) -> list[bool]:
        """Make releases with one write per node.

        Args:
            requests: The releases.
            patience: Longest wait, seconds; at least the node timeout.

        Returns:
            Whether all connected nodes, and a majority, have confirmed each release.
        """
        timeout = max(patience, self._node_timeout)
        with self._pool.channel(patience=timeout) as channel:
            needed = max(self._quorum, len(channel.everyone()))
            all_acks = self._rounds.release_all(channel, requests, self._clock.now(), timeout)
        return [acknowledged(acks) >= needed for acks in all_acks]
