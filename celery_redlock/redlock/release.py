"""Release a lease on a majority of the nodes, or have the keeper retry until it is."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from celery_redlock.redlock.protocol.drop_notes import (
    LASTS_MS,
    DropNote,
    as_noted,
    dropped_key,
)
from celery_redlock.redlock.protocol.quorum import (
    Verdict,
    acknowledged,
    drift_ms,
    has_majority_replied,
    release_verdict,
)
from celery_redlock.redlock.protocol.replies import Acknowledged, AckReply
from celery_redlock.redlock.protocol.scripts import (
    Argument,
    as_release,
    as_released,
    done_key,
    lock_keys,
    releasing,
)
from celery_redlock.redlock.transport.channel import Channel, Command
from celery_redlock.redlock.transport.repeating import ask_repeatably, replies_to

from .access import Access
from .errors import TAKEN_AWAY
from .events import Event, Released
from .keeper import Keeper, gone_at
from .lease import Lease
from .refusals import unavailable
from .unsettled import ReleaseRequest, due_after
from .waiters import Waiters

DONE_S = 3600.0
"""Default expiry of a done mark."""
_NOBODY = ""
_DROPPED_WITHIN_S = 60.0
"""Time for which the release of another process's lock is retried; its ttl is unknown here."""


class ReleaseRound(Access):
    """Releases of any number of locks with one write per node."""

    def make_all(self, requests: Sequence[ReleaseRequest], patience: float) -> list[bool]:
        """Make the releases that the keeper has taken over.

        Args:
            requests: The releases.
            patience: Longest wait, seconds; at least the node timeout.

        Returns:
            Whether a majority has confirmed each release, and every node but those that are down.
        """
        timeout = max(patience, self._node_timeout)
        with self._pool.channel(patience=timeout, needs_votes=False) as channel:
            # One that is only being connected to may have the lock, from another channel.
            channel.renew()
            needed = max(self._quorum, len(channel.everyone()))
            now = self._clock.now()
            made = [self._commands(request, now) for request in requests]
            ends = list(itertools.accumulate(map(len, made)))
            replies = ask_repeatably(
                channel,
                list(itertools.chain.from_iterable(made)),
                lambda raws: [as_release(raws[end - 1]) for end in ends],
                lambda replies: None not in replies,
                channel.everyone,
                timeout,
            )
        return [acknowledged(replies_to(at, replies)) >= needed for at in range(len(requests))]

    def _ask_one(self, channel: Channel, request: ReleaseRequest) -> Sequence[AckReply | None]:
        """Ask every node for one release, until it is decided: see `release_verdict`."""
        return ask_repeatably(
            channel,
            self._commands(request, self._clock.now()),
            as_released,
            _is_decided,
            channel.everyone,
            parse_again=_as_released_again,
        )

    def _commands(self, request: ReleaseRequest, now: float) -> list[Command]:
        keys: tuple[str, ...] = lock_keys(self._prefix, request.key)
        if request.done:
            keys += (done_key(self._prefix, request.key, request.done),)
        leaving: tuple[Argument, ...] = ()
        keep_ms = request.keep_ms(now)
        if keep_ms or request.done or request.superseded:
            leaving = (keep_ms, request.done_ttl_ms, request.superseded)
        return releasing(keys, request.owner, request.token, self._floor_ttl_ms, *leaving)


@dataclass(eq=False)
class Release(ReleaseRound):
    """Releases of leases, for any number of threads.

    Attributes:
        _keeper: Retries each release until a majority has confirmed it.
        _observe: Called with Released.
        _waiters: Waiters of this process.
    """

    _keeper: Keeper
    _observe: Callable[[Event], None]
    _waiters: Waiters

    def release(
        self,
        lease: Lease,
        keep: float = 0.0,
        done: str | None = None,
        done_ttl: float = DONE_S,
        *,
        is_delayed: bool = True,
    ) -> None:
        """Release `lease`; see `TaskLock.release`.

        Raises:
            QuorumUnavailable: No majority confirmed; the keeper retries.
        """
        # A forked child leaves it to its parent.
        if lease.backing.acquired_in != os.getpid():
            return
        now = self._clock.now()
        request = ReleaseRequest(
            lease.key,
            lease.owner,
            due=now + due_after(self._node_timeout),
            ends_at=max(gone_at(lease), now + keep + drift_ms(lease.ttl_ms) / 1000),
            token=lease.token,
            superseded=lease.superseded,
            keep_until=max(now + keep, lease.delayed_until(now) if is_delayed else 0.0),
            done=done,
            done_ttl_ms=round(done_ttl * 1000),
        )
        self._register_cleanup(request)
        kept = self._keeper.forget(lease)
        if lease.lost and (kept or not lease.backing.is_lost):
            self._keeper.lose(lease, kept)
        lease.backing.releases.append(None)
        lease.is_released = True
        give_up_at = now + self._node_timeout

        def is_bound() -> bool:
            # On another connection the release could overtake a grant that is on its way to a slow
            # node. That grant would stay there until its ttl is over.
            is_late = lease.backing.is_granted_late
            return is_late is not None and is_late() and self._clock.now() < give_up_at

        acks = self._make(request, lease.backing.channel, is_bound)
        # A task's run may have handed its lock over. Another release may have been first: one of
        # another thread, or the keeper's, if this one is overdue. None of this is a loss.
        is_by_us = len(lease.backing.releases) == 1 and self._clock.now() < request.due
        is_users = is_by_us and lease.backing.lock and not lease.lost
        if is_users and release_verdict(acks) is Verdict.LOST:
            lease.backing.lost_because = TAKEN_AWAY
            self._keeper.lose(lease, kept)
        # Nodes mostly reply alike. In their order, so that a run can be repeated exactly.
        for ack in dict.fromkeys(acks):
            if isinstance(ack, Acknowledged) and ack.listeners:
                channel, _ = lock_keys(self._prefix, lease.key)
                self._waiters.note_release(channel, ack.listeners)
                break
        if len(lease.backing.releases) == 1 and not lease.backing.is_lost:
            self._observe(Released(lease, self._clock.now() - lease.acquired_at))
        if acknowledged(acks) < self._quorum:
            raise unavailable("release", lease.key, acks, self._nodes)

    def note_drop(self, key: str, owner: str, author: str) -> None:
        """Note, for the holder to find, who is about to release its lock."""
        note = DropNote.of(owner, self._clock.wall_us() / 1e6, author)
        with self._pool.channel(needs_votes=False) as channel:
            command = ("SET", dropped_key(self._prefix, key), note.value, "PX", LASTS_MS)
            # A node that refuses it goes without.
            channel.ask(
                [command], lambda raws: as_noted(raws[0]), has_majority_replied, channel.everyone()
            )

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
        self._register_cleanup(request)
        acks = self._make(request)
        if acknowledged(acks) < self._quorum:
            raise unavailable("release", key, acks, self._nodes)
        return any(isinstance(ack, Acknowledged) and ack.was_ours for ack in acks)

    def mark_done(self, key: str, label: str) -> None:
        """Write a done mark for `label`; see `TaskLock.mark_done`.

        Raises:
            QuorumUnavailable: Less than a majority confirmed.
        """
        # The script that writes marks also releases, but no lock has this owner.
        mark = ReleaseRequest(
            key, _NOBODY, due=0.0, ends_at=0.0, done=label, done_ttl_ms=round(DONE_S * 1000)
        )
        with self._pool.channel(needs_votes=False) as channel:
            acks = self._ask_one(channel, mark)
        if acknowledged(acks) < self._quorum:
            raise unavailable("mark", key, acks, self._nodes)

    def _register_cleanup(self, request: ReleaseRequest) -> None:
        # If the keeper's thread can't be started, the caller's own attempt is the only one.
        try:  # noqa: SIM105  # `suppress` costs as much as the rest
            self._keeper.register_cleanup(request)
        except RuntimeError:
            pass

    def _make(
        self,
        request: ReleaseRequest,
        preferred: object = None,
        is_bound: Callable[[], bool] = bool,
    ) -> Sequence[AckReply | None]:
        """Make a release, and take it from the keeper once a majority has confirmed it."""
        try:
            with self._pool.channel(
                preferred, is_bound, goes_first=True, needs_votes=False
            ) as channel:
                acks = self._ask_one(channel, request)
        except BaseException:
            self._keeper.release_now(request.owner)
            raise
        if acknowledged(acks) >= self._quorum:
            self._keeper.settle(request.owner)
        return acks


def _is_decided(acks: Sequence[AckReply | None]) -> bool:
    # A round asks before any node has replied, too: a verdict costs more than that test.
    return acks.count(None) < len(acks) and release_verdict(acks) is not Verdict.PENDING


def _as_released_again(raws: list[object]) -> AckReply:
    # It may have been made before, its reply being lost.
    ack = as_released(raws)
    return ack._replace(was_ours=True) if isinstance(ack, Acknowledged) else ack
