"""Acquire a lock: retry with jitter until an attempt succeeds or retrying is pointless."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

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
)
from celery_redlock.redlock.protocol.replies import Done, Failed, Granted, GrantReply
from celery_redlock.redlock.protocol.scripts import lock_keys
from celery_redlock.redlock.transport.channel import Channel

from .access import Access, Operation
from .attempt import Attempt
from .backoff import Backoff
from .errors import AlreadyDone, LockHeld, RedlockError
from .events import Acquired, Event, Refused
from .keeper import Keeper
from .lease import Backing, Lease, new_owner
from .refusals import held_by, refuse_misconfigured, unavailable
from .unsettled import ReleaseRequest, due_after
from .waiters import Waiters
from .waiting import OnWait, Waiter

_CONTENDED_ROUNDS = 20
_LONG_CONTENDED_ROUNDS = 10
"""After so many rounds, an attempt that has no majority yet is not going to get one."""
OnAttempt = Callable[[str], None]
"""Called with the owner of an attempt before any node knows it."""


class Acquisition(Operation):
    """Attempts to acquire locks, for any number of threads.

    Args:
        access: Access to the nodes.
        keeper: Releases what an interrupted attempt leaves behind.
        observe: Called with Acquired and Refused.
        verify: Asks a quorum whether a lease is still held; given to each lease.
        waiters: Waiters of this process.
    """

    def __init__(
        self,
        access: Access,
        keeper: Keeper,
        observe: Callable[[Event], None],
        verify: Callable[[Lease], None],
        waiters: Waiters,
    ) -> None:
        super().__init__(access)
        self._keeper = keeper
        self._observe = observe
        self._verify = verify
        self._waiters = waiters
        self._highest_seen = 0

    def win(
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
        if not wait:
            return self._win(attempt, label, 0.0, on_attempt)
        attempt = attempt._replace(looks_first=attempt.looks_first or attempt.supersedes != "")
        waiter = Waiter(self._waiters, lock_keys(self._rounds.prefix, attempt.key)[0], on_wait)
        try:
            return self._win(attempt, label, wait, on_attempt, waiter)
        finally:
            waiter.leave()

    def _win(
        self,
        attempt: Attempt,
        label: str | None,
        wait: float,
        on_attempt: OnAttempt | None,
        waiter: Waiter | None = None,
    ) -> Lease:
        ends_at = (asked_at := self._clock.now()) + wait
        is_given_owner = bool(attempt.owner)
        rounds, backoff, is_split = 0, Backoff(), False
        # An attempt that may replace the holder has no need of a release.
        if waiter and not attempt.supersedes:
            waiter.wait_for_first_turn(wait)
        while True:
            rounds += 1
            began = self._clock.now()
            if not is_given_owner:
                owner = new_owner(
                    label,
                    publication=attempt.publication,
                    is_reservation=attempt.is_reservation,
                )
                attempt = attempt._replace(owner=owner)
            if on_attempt:
                on_attempt(attempt.owner)
            patience = max(self._node_timeout, ends_at - began) if wait else None
            with self._pool.channel(patience=patience) as channel:
                refuse_misconfigured(self._nodes)
                is_long_split = is_split and rounds > _LONG_CONTENDED_ROUNDS
                refusal = None if is_long_split else self._look(channel, attempt)
                outcome = refusal or self._try(channel, attempt, rounds)
            if waiter:
                waiter.has_asked(began)
            now = self._clock.now()
            if isinstance(outcome, Lease):
                self._observe(Acquired(outcome, now - asked_at, rounds))
                return outcome
            # Nobody has a majority: if all callers gave up now, nobody would do the work.
            is_split = isinstance(outcome, LockHeld) and outcome.contended
            polls_s = waiter.polls_s if waiter else 0.0
            pause = backoff.pause(outcome, now - began, polls_s)
            if polls_s and not is_split:
                # Time is left for one more attempt.
                pause = min(pause, ends_at - now - (now - began))
            may_go_on = 0 < pause < ends_at - now or (is_split and rounds < _CONTENDED_ROUNDS)
            if isinstance(outcome, AlreadyDone) or is_given_owner or not may_go_on:
                self._observe(Refused(attempt.key, outcome))
                raise outcome
            if waiter and isinstance(outcome, LockHeld) and not is_split:
                waiter.wait(pause)
            else:
                self._clock.sleep(pause)

    def settle(self, lease: Lease) -> None:
        """Pass the responsibility for `lease` from the keeper to its holder.

        Raises:
            QuorumUnavailable: The keeper has released the lease already.
        """
        if not self._keeper.settle(lease.owner):
            why = Failed("granted, and released again: this process stood still meanwhile")
            raise unavailable("lock", lease.key, [why] * len(self._nodes), self._nodes)

    def _try(self, channel: Channel, attempt: Attempt, rounds: int) -> Lease | RedlockError:
        """Make one attempt, the `rounds`th; return the lease or the reason why it failed."""
        self._have_answered_for(attempt)
        dropped = channel.dropped()
        try:
            outcome = self._try_undisturbed(channel, attempt, rounds)
        except BaseException:
            # A time limit's signal strikes anywhere: a grant must not be left behind.
            self._keeper.finish(attempt.owner)
            # The release follows its grant on the same connection; the keeper uses another one, and
            # releases it again. An error of this one would only hide the interrupt.
            with suppress(Exception):
                self._rounds.abandon(channel, attempt, ())
            raise
        if isinstance(outcome, RedlockError) and channel.dropped() == dropped:
            # On every node where its grant may still arrive, its release follows it.
            self._keeper.settle(attempt.owner)
        return outcome

    def _look(self, channel: Channel, attempt: Attempt) -> RedlockError | None:
        """Return why an attempt that looks first would fail now; None: it may succeed.

        An attempt that fails leaves the nodes free where it replaced a holder. Made while the lock
        is handed over to that holder, node by node, it would take it away from the majority.
        """
        if not attempt.looks_first:
            return None
        replies = self._rounds.look_before(channel, attempt)
        verdict = look_verdict(replies, attempt.supersedes)
        return None if verdict is Verdict.WON else self._refusal(attempt.key, verdict, replies)

    def _have_answered_for(self, attempt: Attempt) -> None:
        """Make the keeper release the attempt's lock, unless it is settled in time.

        Raises:
            QuorumUnavailable: The keeper's thread can't be started.
        """
        now = self._clock.now()
        release = ReleaseRequest(
            attempt.key,
            attempt.owner,
            due=now + due_after(self._node_timeout),
            ends_at=now + attempt.ttl_ms / 1000,
        )
        try:
            self._keeper.answer_for(release)
        except RuntimeError as error:
            why = Failed(f"not asked, because no thread can be started to renew locks: {error}")
            raise unavailable("lock", attempt.key, [why] * len(self._nodes), self._nodes) from error

    def _try_undisturbed(
        self, channel: Channel, attempt: Attempt, rounds: int
    ) -> Lease | RedlockError:
        started = self._clock.now()
        proposed = max(self._clock.wall_us(), self._highest_seen + 1)
        grants = self._rounds.grant(channel, attempt, proposed)
        if attempt.gets_token:
            self._highest_seen = max(self._highest_seen, highest_floor(grants))
        verdict = grant_verdict(grants)
        is_long_split = verdict is Verdict.CONTENDED and rounds > _LONG_CONTENDED_ROUNDS
        if verdict is Verdict.WON or is_long_split:
            self._rounds.clear(channel, attempt, grants)
        if verdict is Verdict.WON:
            token, already = chosen_token(grants)
            if already >= self._quorum or self._confirm(channel, attempt, token, already, grants):
                lease = self._lease(attempt, token, started)
                if attempt.supersedes:
                    lease.took_over = any(
                        isinstance(grant, Granted) and grant.took_over for grant in grants
                    )
                if lease.remaining() > 0:
                    lease.backing.channel = channel
                    lease.backing.is_granted_late = channel.debt()
                    return lease
        self._rounds.abandon(channel, attempt, grants)
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
        acks = self._rounds.confirm(channel, attempt, token, behind, already)
        return confirm_verdict(acks, already) is Verdict.WON

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
            age = holder_age_s(grants, leader.holder, self._rounds.skew_us) if leader else None
            now = self._clock.wall_us() / 1e6
            return held_by(key, leader, now, contended=verdict is Verdict.CONTENDED, age=age)
        if verdict is Verdict.WON:
            return unavailable(
                "lock", key, grants, self._nodes, "its grant came, or was confirmed, too late"
            )
        return unavailable("lock", key, grants, self._nodes)
