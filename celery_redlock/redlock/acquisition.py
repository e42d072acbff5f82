"""Acquire a lock: retry with jitter until an attempt succeeds or retrying is pointless."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from celery_redlock.redlock.protocol.quorum import (
    Verdict,
    chosen_token,
    confirm_verdict,
    grant_verdict,
    highest_floor,
    holder_age_s,
    leading_holder,
    look_verdict,
    unconfirmed,
    validity_ms,
    without_majority,
)
from celery_redlock.redlock.protocol.replies import (
    AckReply,
    Busy,
    Done,
    Failed,
    Granted,
    GrantReply,
)
from celery_redlock.redlock.protocol.scripts import (
    CONFIRM,
    GRANT,
    Argument,
    as_ack,
    as_grant,
    as_held,
    as_released,
    as_reserved,
    done_key,
    evalsha,
    lock_keys,
    looking_closely,
    releasing,
    reserving,
)
from celery_redlock.redlock.transport.channel import Channel
from celery_redlock.redlock.transport.repeating import ask_repeatably

from .access import Access
from .attempt import Attempt
from .backoff import Backoff
from .errors import AlreadyDone, LockHeld, QuorumUnavailable, RedlockError
from .events import Acquired, Event, Refused
from .keeper import Keeper
from .lease import Backing, Lease, is_reservation, new_owner
from .refusals import held_by, refuse_misconfigured, unavailable
from .unsettled import ReleaseRequest, due_after
from .waiters import Waiters
from .waiting import OnWait, Waiter

_CONTENDED_ROUNDS = 20
_LONG_CONTENDED_ROUNDS = 10
"""After so many rounds, an attempt that has no majority yet is not going to get one."""
_UNDER_WAY_MS = 60_000
"""Longest time that an attempt can be under way."""
OnAttempt = Callable[[str], None]
"""Called with the owner of an attempt before any node knows it."""


@dataclass(eq=False)
class Acquisition(Access):
    """Attempts to acquire locks, for any number of threads.

    Attributes:
        _keeper: Releases what an interrupted attempt leaves behind.
        _observe: Called with Acquired and Refused.
        _verify: Asks a quorum whether a lease is still held; given to each lease.
        _waiters: Waiters of this process.
        _highest_seen: Highest token or floor seen so far, µs since the epoch.
    """

    _keeper: Keeper
    _observe: Callable[[Event], None]
    _verify: Callable[[Lease], None]
    _waiters: Waiters
    _highest_seen: int = 0

    def acquire(
        self,
        attempt: Attempt,
        label: str | None,
        wait: float = 0.0,
        on_attempt: OnAttempt | None = None,
        on_wait: OnWait | None = None,
    ) -> Lease:
        """Return a lease: make attempts until one succeeds or the last allowed one has failed.

        The keeper is responsible for the lease, and releases it soon unless `settle` is called.

        Raises:
            RedlockError: The reason why the last attempt failed.
        """
        ends_at = (asked_at := self._clock.now()) + wait
        is_given_owner = bool(attempt.owner)
        rounds, backoff, is_split = 0, Backoff(), False
        lock_key, _ = lock_keys(self._prefix, attempt.key)
        waiter = Waiter(self._waiters, lock_key, on_wait) if wait else None
        sleep = waiter.pause if waiter else self._clock.sleep
        try:
            # An attempt that may replace the holder has no need of a release.
            if waiter and not attempt.supersedes:
                waiter.wait_for_first_turn(wait)
            while True:
                rounds += 1
                began = self._clock.now()
                attempt = self._begin(attempt, label, on_attempt, is_given_owner=is_given_owner)
                patience = max(self._node_timeout, ends_at - began) if wait else None
                with self._pool.channel(patience=patience) as channel:
                    refuse_misconfigured(self._nodes, len(self._nodes) - self._quorum)
                    looks = not (is_split and rounds > _LONG_CONTENDED_ROUNDS)
                    outcome, round_took = self._try_timed(channel, attempt, rounds, looks=looks)
                    is_unheard = isinstance(outcome, QuorumUnavailable) and not is_given_owner
                    if is_unheard and channel.renew():
                        # On the new connections the release precedes the next grant: one may have
                        # arrived whose reply was lost.
                        self._abandon(channel, attempt, ())
                        attempt = self._begin(attempt, label, on_attempt, is_given_owner=False)
                        outcome, round_took = self._try_timed(channel, attempt, rounds, looks=looks)
                if waiter:
                    waiter.has_asked(began)
                if isinstance(outcome, Lease):
                    outcome.backing.took = self._clock.now() - asked_at, rounds
                    return outcome
                left = ends_at - self._clock.now()
                is_split = isinstance(outcome, LockHeld) and outcome.contended
                if is_split and rounds < _CONTENDED_ROUNDS:
                    # Nobody has a majority: if all callers gave up now, nobody would do the work.
                    left = math.inf
                poll_interval_s = waiter.poll_interval_s if waiter else 0.0
                pause = backoff.pause(outcome, round_took, poll_interval_s)
                # As long as time is left there is one more attempt, at once if need be.
                pause = min(pause, max(0.0, left - round_took))
                if isinstance(outcome, AlreadyDone) or is_given_owner or pause >= left:
                    self._observe(Refused(attempt.key, outcome))
                    try:
                        raise outcome
                    finally:
                        del outcome  # no cycle: an error refers to this frame
                if waiter and isinstance(outcome, LockHeld) and not is_split:
                    waiter.wait(pause)
                else:
                    sleep(pause)
        finally:
            if waiter:
                waiter.leave()

    def settle(self, lease: Lease) -> None:
        """Pass the responsibility for `lease` from the keeper to its holder; tell the observers.

        They may take their time: to the keeper, a holder that has not settled by then is dead.

        Raises:
            QuorumUnavailable: The keeper has released the lease already.
        """
        if not self._keeper.settle(lease.owner):
            why = "granted, and released again: this process stood still meanwhile"
            grants = [Granted(lease.token)] * len(self._nodes)
            raise unavailable("lock", lease.key, grants, self._nodes, why)
        try:
            self._observe(Acquired(lease, *lease.backing.took))
        except BaseException:
            # An interrupt: nobody gets the lease.
            self._keeper.take_over(lease)
            raise

    def _try_timed(
        self, channel: Channel, attempt: Attempt, rounds: int, *, looks: bool
    ) -> tuple[Lease | RedlockError, float]:
        """Make one attempt; return its outcome, and the seconds that it took.

        The time for making connections is not part of it: it says nothing about the next round.
        """
        began = self._clock.now()
        outcome = self._try(channel, attempt, rounds, looks=looks)
        return outcome, self._clock.now() - began

    def _try(
        self, channel: Channel, attempt: Attempt, rounds: int, *, looks: bool
    ) -> Lease | RedlockError:
        """Make one attempt, the `rounds`th; return the lease or the reason why it failed."""
        # An attempt that fails leaves the nodes free where it replaced a holder. Made while the
        # lock is handed over to that one, node by node, it would take it away from the majority.
        if attempt.looks_first and looks and (refusal := self._look(channel, attempt)):
            return refusal
        self._register_cleanup(attempt)
        dropped = channel.dropped()
        try:
            started = self._clock.now()
            proposed = max(self._clock.wall_us(), self._highest_seen + 1)
            grants = self._grant(channel, attempt, proposed)
            outcome = self._conclude(channel, attempt, rounds, grants, started)
        except BaseException:
            # A time limit's signal strikes anywhere: a grant must not be left behind.
            self._keeper.release_now(attempt.owner)
            # The release follows its grant on the same connection; the keeper uses another one, and
            # releases it again. An error of this one would only hide the interrupt.
            with suppress(Exception):
                self._abandon(channel, attempt, ())
            raise
        if isinstance(outcome, RedlockError) and channel.dropped() == dropped:
            # On every node where its grant may still arrive, its release follows it.
            self._keeper.settle(attempt.owner)
        return outcome

    def _look(self, channel: Channel, attempt: Attempt) -> RedlockError | None:
        keys = lock_keys(self._prefix, attempt.key)
        commands = looking_closely(*keys, *self._done_keys(attempt))

        def is_decided(replies: Sequence[GrantReply | None]) -> bool:
            return look_verdict(replies, attempt.supersedes) is not Verdict.PENDING

        replies = ask_repeatably(channel, commands, as_held, is_decided, channel.voters)
        verdict = look_verdict(replies, attempt.supersedes)
        return None if verdict is Verdict.REACHED else self._refusal(attempt.key, verdict, replies)

    def _done_keys(self, attempt: Attempt) -> tuple[str, ...]:
        return tuple(done_key(self._prefix, attempt.key, one) for one in attempt.unless_done)

    def _register_cleanup(self, attempt: Attempt) -> None:
        """Make the keeper release the attempt's lock, unless it is settled in time.

        Raises:
            QuorumUnavailable: The keeper's thread can't be started.
        """
        now = self._clock.now()
        release = ReleaseRequest(
            attempt.key,
            attempt.owner,
            due=now + due_after(self._node_timeout),
            ends_at=now + attempt.expiry_ms / 1000,
        )
        try:
            self._keeper.register_cleanup(release)
        except RuntimeError as error:
            why = Failed(f"not asked, because no thread can be started to renew locks: {error}")
            raise unavailable("lock", attempt.key, [why] * len(self._nodes), self._nodes) from error

    def _grant(
        self, channel: Channel, attempt: Attempt, proposed_us: int
    ) -> Sequence[GrantReply | None]:
        """Send a grant to every node that may vote.

        Without a token no script is needed, which costs the servers a fraction of the time.
        """
        keys: tuple[str, ...] = lock_keys(self._prefix, attempt.key)
        if not attempt.gets_token():
            commands = reserving(keys[0], attempt.owner, attempt.expiry_ms)
            parse = partial(as_reserved, attempt.owner.encode())
            return channel.ask(commands, parse, _is_decided, channel.voters())
        if attempt.unless_done:
            keys += self._done_keys(attempt)
        replacing: tuple[Argument, ...] = ()
        if attempt.supersedes or attempt.highest_floor:
            replacing = (attempt.supersedes, attempt.highest_floor)
        command = evalsha(
            GRANT, keys, attempt.owner, attempt.expiry_ms, proposed_us, self._skew_us,
            self._floor_ttl_ms, *replacing,
        )  # fmt: skip
        return channel.ask([command], lambda raws: as_grant(raws[0]), _is_decided, channel.voters())

    def _conclude(
        self,
        channel: Channel,
        attempt: Attempt,
        rounds: int,
        grants: Sequence[GrantReply | None],
        started: float,
    ) -> Lease | RedlockError:
        """Confirm what was granted, or give it back; return the lease or why there is none."""
        if attempt.gets_token():
            self._highest_seen = max(self._highest_seen, highest_floor(grants))
        verdict = grant_verdict(grants)
        is_long_split = verdict is Verdict.CONTENDED and rounds > _LONG_CONTENDED_ROUNDS
        if verdict is Verdict.REACHED or is_long_split:
            self._clear(channel, attempt, grants)
        if verdict is Verdict.REACHED:
            token, already = chosen_token(grants)
            if already >= self._quorum or self._confirm(channel, attempt, token, already, grants):
                lease = self._lease(attempt, token, started)
                if attempt.supersedes:
                    lease.took_over = any(
                        isinstance(grant, Granted) and grant.took_over for grant in grants
                    )
                if lease.remaining() > 0:
                    lease.backing.channel = channel
                    lease.backing.is_granted_late = channel.pending_replies()
                    return lease
        self._abandon(channel, attempt, grants)
        return self._refusal(attempt.key, verdict, grants)

    def _confirm(
        self,
        channel: Channel,
        attempt: Attempt,
        token: int,
        already: int,
        grants: Sequence[GrantReply | None],
    ) -> bool:
        """Raise the floor of a majority to `token`, which `already` nodes have: it is unique then.

        Returns:
            Whether a majority confirmed.
        """
        behind = unconfirmed(grants, token)
        keys = lock_keys(self._prefix, attempt.key)
        command = evalsha(
            CONFIRM, keys, attempt.owner, token, attempt.expiry_ms, self._floor_ttl_ms
        )

        def is_decided(acks: Sequence[AckReply | None]) -> bool:
            return confirm_verdict(acks, already) is not Verdict.PENDING

        acks = channel.ask([command], lambda raws: as_ack(raws[0]), is_decided, behind)
        return confirm_verdict(acks, already) is Verdict.REACHED

    def _abandon(
        self, channel: Channel, attempt: Attempt, grants: Sequence[GrantReply | None]
    ) -> None:
        """Release a failed attempt on every node that may have its grant, now or later.

        A grant that may still be on its way is followed by its release on the same connection. Only
        nodes that hold the lock according to `grants` are waited for.

        Args:
            channel: Channel on which the grants were sent.
            attempt: The attempt.
            grants: One entry per node; empty: unknown, so every node may have a grant.
        """
        holding = [index for index, grant in enumerate(grants) if isinstance(grant, Granted)]
        free = [index for index, grant in enumerate(grants) if _has_no_grant(grant)]
        among = [index for index in channel.everyone() if index not in free]
        if not among:
            return
        keys = lock_keys(self._prefix, attempt.key)
        commands = releasing(keys, attempt.owner, 0, self._floor_ttl_ms)

        def is_decided(acks: Sequence[AckReply | None]) -> bool:
            return all(acks[index] is not None for index in holding)

        channel.ask(commands, as_released, is_decided, among)

    def _clear(
        self, channel: Channel, attempt: Attempt, grants: Sequence[GrantReply | None]
    ) -> None:
        """Release the rest of a reservation on the nodes that still keep it; wait for no reply.

        Such a rest is left where a release was lost or came before its grant, and would stay for
        its whole ttl. Call this only if that reservation is not about to get a majority: `attempt`
        has one, or nobody got one for a while. If `attempt` is a reservation itself, one that may
        be new is spared.
        """
        minority = without_majority(grants)
        if not minority:
            return
        keys = lock_keys(self._prefix, attempt.key)
        for index, (holder, remaining_ms, *_) in minority.items():
            # An estimate: that reservation may have had another ttl.
            is_old = remaining_ms < attempt.ttl_ms - _UNDER_WAY_MS
            if is_reservation(holder) and (is_old or not attempt.is_reservation):
                commands = releasing(keys, holder, 0, self._floor_ttl_ms)
                channel.ask(commands, as_released, lambda _: True, [index])

    def _lease(self, attempt: Attempt, token: int, started: float) -> Lease:
        return Lease(
            key=attempt.key,
            owner=attempt.owner,
            token=token,
            ttl_ms=attempt.ttl_ms,
            deadline=started + validity_ms(attempt.ttl_ms, 0.0) / 1000,
            clock=self._clock,
            acquired_at=started,
            superseded=attempt.supersedes,
            lock_delay_ms=attempt.lock_delay_ms,
            backing=Backing(verify=self._verify),
        )

    def _refusal(
        self, key: str, verdict: Verdict, grants: Sequence[GrantReply | None]
    ) -> RedlockError:
        if verdict is Verdict.DONE:
            lasts_ms = max(grant.remaining_ms for grant in grants if isinstance(grant, Done))
            return AlreadyDone(key, lasts_ms / 1000)
        if verdict is Verdict.HELD or verdict is Verdict.CONTENDED:
            leader = leading_holder(grants)
            age = holder_age_s(grants, leader.holder, self._skew_us) if leader else None
            now = self._clock.wall_us() / 1e6
            return held_by(key, leader, now, contended=verdict is Verdict.CONTENDED, age=age)
        if verdict is Verdict.REACHED:
            return unavailable(
                "lock", key, grants, self._nodes, "its grant came, or was confirmed, too late"
            )
        return unavailable("lock", key, grants, self._nodes)

    def _begin(
        self,
        attempt: Attempt,
        label: str | None,
        on_attempt: OnAttempt | None,
        *,
        is_given_owner: bool,
    ) -> Attempt:
        """Return a new attempt like `attempt`, under an owner of its own unless one was given."""
        if not is_given_owner:
            owner = new_owner(
                label,
                publication=attempt.publication,
                is_reservation=attempt.is_reservation,
                is_period=attempt.is_period,
                since_us=self._clock.wall_us() if attempt.is_reservation else 0,
            )
            attempt = Attempt(attempt.key, owner, *attempt[2:])
        if on_attempt:
            on_attempt(attempt.owner)
        return attempt


def _has_no_grant(grant: GrantReply | None) -> bool:
    """Return whether a node can't have the grant: it refused it, or was not sent it.

    A node inside its restart guard is not sent any.
    """
    return isinstance(grant, Busy | Done) or (isinstance(grant, Failed) and grant.is_guarded)


def _is_decided(grants: Sequence[GrantReply | None]) -> bool:
    # A round asks before any node has replied, too: a verdict costs more than that test.
    return grants.count(None) < len(grants) and grant_verdict(grants) is not Verdict.PENDING
