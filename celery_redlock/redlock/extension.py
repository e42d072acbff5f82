"""Extension: renew leases on a majority of the nodes, many leases in one round."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from celery_redlock.redlock.protocol.quorum import Verdict, drift_ms, extend_verdict, validity_ms
from celery_redlock.redlock.protocol.replies import Extended, ExtendReply, Failed, Healed
from celery_redlock.redlock.protocol.scripts import EXTEND, as_extend, evalsha, lock_keys
from celery_redlock.redlock.transport.channel import Channel, why_guarded
from celery_redlock.redlock.transport.repeating import ask_repeatably, replies_to

from .access import Access
from .errors import (
    TAKEN_AWAY,
    ConfigurationError,
    LeaseLost,
    QuorumUnavailable,
    RedlockError,
    shown,
)
from .keeper import BATCH, OnLease, patience_for
from .lease import Lease, why_lost
from .refusals import unavailable


@dataclass(eq=False)
class Extension(Access):
    """Extensions of leases.

    Attributes:
        _lose: Called with each lease that an extension by hand finds lost. None: there are none.
    """

    _lose: OnLease | None = None

    def extend(self, lease: Lease) -> None:
        """Renew `lease`; see `Redlock.extend`.

        Raises:
            LeaseLost: The deadline has passed, or a majority has granted the lock to others since.
            QuorumUnavailable: No majority answered. The lease is valid until its deadline.
            ConfigurationError: The lease is a reservation.
        """
        errors = [error for error in self.extend_all([lease]) if error]
        if errors:
            raise errors.pop()  # no cycle: an error refers to this frame

    def verify(self, lease: Lease) -> None:
        """Renew `lease`, so that a majority confirms that it is still held.

        Raises:
            LeaseLost: No majority confirmed, for whatever reason.
            ConfigurationError: The lease is a reservation.
        """
        try:
            self.extend(lease)
        except QuorumUnavailable as error:
            raise LeaseLost(lease.key, f"no quorum confirms it ({error})") from error

    def extend_all(self, leases: Sequence[Lease]) -> list[RedlockError | None]:
        """Renew any number of leases; return None or the error of each."""
        outcomes: list[RedlockError | None] = []
        not_lost = [lease for lease in leases if not lease.backing.is_lost]
        for begin in range(0, len(leases), BATCH):
            batch = leases[begin : begin + BATCH]
            outcomes += self.extend_batch(batch, patience_for(batch, self._clock.now()))
        for lease in not_lost:
            if self._lose and lease.backing.is_lost:
                self._lose(lease)
        return outcomes

    def extend_batch(self, leases: Sequence[Lease], patience: float) -> list[RedlockError | None]:
        """Renew leases with one write per node; return None or the error of each.

        Args:
            leases: At most `BATCH`.
            patience: Longest wait, seconds; at least the node timeout.
        """
        # A lease that is over is left out: it would be held against others for another ttl.
        standing = [lease for lease in leases if why_not(lease) is None]
        outcomes: dict[Lease, RedlockError | None] = {}
        if standing:
            timeout = max(patience, self._node_timeout)
            with self._pool.channel(
                standing[0].backing.channel, patience=timeout, goes_first=True
            ) as channel:
                started = self._clock.now()
                expiries_ms = [_expiry_ms(lease, started) for lease in standing]
                replies = self._ask(channel, standing, expiries_ms, timeout)
            for lease, its_replies in zip(standing, replies, strict=True):
                outcomes[lease] = self.note_replies(lease, its_replies, started)
        return [outcomes.get(lease) or why_not(lease) for lease in leases]

    def _ask(
        self, channel: Channel, leases: Sequence[Lease], expiries_ms: Sequence[int], timeout: float
    ) -> list[Sequence[ExtendReply | None]]:
        """Renew all `leases` with one write per node; return the replies to each.

        A node inside its restart guard renews and heals them too, but has Failed: it may not vote.

        Args:
            channel: Channel to the nodes.
            leases: The leases.
            expiries_ms: Expiry to set for each, ms.
            timeout: Longest wait, seconds; shorter if all leases are decided before.
        """
        commands = [
            evalsha(
                EXTEND, lock_keys(self._prefix, lease.key), lease.owner, lease.token, expiry_ms,
                self._floor_ttl_ms,
            )
            for lease, expiry_ms in zip(leases, expiries_ms, strict=True)
        ]  # fmt: skip
        guarded: dict[int, Failed] = {}

        def among() -> Sequence[int]:
            # Before each request: a guard that ends during the round makes its reply no vote, and a
            # new connection may be to a node that has restarted.
            holders = channel.holders()
            guarded.clear()
            for index in holders:
                if votes_in := channel.votes_in(index):
                    guarded[index] = Failed(why_guarded(votes_in), is_guarded=True)
            return holders

        replies = ask_repeatably(
            channel, commands, _as_extends, partial(_are_decided, guarded), among, timeout,
            # A node that was healed, or names another owner, does not count either.
            is_short=partial(_is_any_short, guarded),
        )  # fmt: skip
        each = (replies_to(number, replies) for number in range(len(leases)))
        return [_without_votes(its_replies, guarded) for its_replies in each]

    def note_replies(
        self, lease: Lease, replies: Sequence[ExtendReply | None], started: float
    ) -> RedlockError | None:
        """Move the deadline of `lease`, or mark it as lost, by the replies of the nodes.

        Args:
            lease: The lease.
            replies: One entry per node.
            started: Time before the nodes were asked, seconds on the clock.

        Returns:
            None, or the reason why the lease was not extended.
        """
        verdict = extend_verdict(replies)
        if verdict is Verdict.LOST and why_not(lease) is None:
            lease.backing.lost_because = TAKEN_AWAY
            lease.backing.is_lost = True
        if over := why_not(lease):
            return over
        if verdict is not Verdict.REACHED:
            return unavailable("extend", lease.key, replies, self._nodes, "it had lost the key")
        if not lease.is_past_hold(started):
            lease.deadline = max(lease.deadline, started + validity_ms(lease.ttl_ms, 0.0) / 1000)
        return None


def why_not(lease: Lease) -> RedlockError | None:
    """Return the reason why `lease` can't be extended; None if it can."""
    if not lease.token:
        return ConfigurationError(
            f"cannot extend '{shown(lease.key)}': it is reserved, which is never renewed; "
            "reserve it for longer"
        )
    # Reading it may show that another process has released the lease.
    is_lost = lease.lost
    if lease.is_released:
        return LeaseLost(lease.key, "it was released")
    if is_lost:
        # For good: a lease that was reported as lost must not come back.
        lease.backing.is_lost = True
        return LeaseLost(lease.key, why_lost(lease))
    return None


def _expiry_ms(lease: Lease, now: float) -> int:
    """Return the expiry that an extension sets, in ms; past `hold_until` it does not move."""
    if not lease.is_past_hold(now):
        return lease.expiry_ms
    left_ms = (lease.deadline - now) * 1000 + drift_ms(lease.ttl_ms) + lease.lock_delay_ms
    return max(1, math.ceil(left_ms))


def _as_extends(raws: list[object]) -> list[ExtendReply]:
    return [as_extend(raw) for raw in raws]


def _are_decided(
    guarded: Container[int], replies: Sequence[list[ExtendReply] | Failed | None]
) -> bool:
    return all(verdict is not Verdict.PENDING for verdict in _verdicts(guarded, replies))


def _is_any_short(
    guarded: Container[int], replies: Sequence[list[ExtendReply] | Failed | None]
) -> bool:
    return any(verdict is Verdict.UNAVAILABLE for verdict in _verdicts(guarded, replies))


def _verdicts(
    guarded: Container[int], replies: Sequence[list[ExtendReply] | Failed | None]
) -> Iterator[Verdict]:
    count = next((len(reply) for reply in replies if isinstance(reply, list)), 1)
    return (extend_verdict(replies_to(number, replies), guarded) for number in range(count))


def _without_votes(
    replies: Sequence[ExtendReply | None], guarded: Mapping[int, Failed]
) -> Sequence[ExtendReply | None]:
    """Return the replies, with the reason why a guarded node has no vote, be it not waited for."""
    return [
        guarded.get(index, reply) if isinstance(reply, Extended | Healed | None) else reply
        for index, reply in enumerate(replies)
    ]
