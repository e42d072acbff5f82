"""How a lock is acquired: attempt after attempt, until one wins or it is of no use to go on."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from .channel import Channel
from .clock import Clock
from .errors import AlreadyDone, ConfigurationError, LockHeld, RedlockError
from .events import Acquired, Event, Refused
from .lease import Lease, new_owner
from .node import Node
from .pool import Pool
from .quorum import (
    Busy,
    Done,
    Granted,
    GrantReply,
    Verdict,
    chosen_token,
    confirm_verdict,
    grant_verdict,
    leading_holder,
    majority,
    unconfirmed,
    validity_ms,
)
from .rounds import Attempt, Rounds, unavailable

_LONGEST_PAUSE_S = 0.2
_CONTENDED_ROUNDS = 20
_LONG_CONTENDED_ROUNDS = 10
"""After so many, who still has no majority is not on the way to one."""


class Acquisition:
    """Makes attempts, for any number of threads.

    Args:
        nodes: The servers.
        pool: Channels to them.
        rounds: What is asked of them.
        clock: Time.
        observe: Called with Acquired and Refused.
        verify: Asks a quorum whether a lease stands; each lease gets it.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        pool: Pool,
        rounds: Rounds,
        clock: Clock,
        observe: Callable[[Event], None],
        verify: Callable[[Lease], None],
    ) -> None:
        self._nodes = nodes
        self._quorum = majority(len(nodes))
        self._pool = pool
        self._rounds = rounds
        self._clock = clock
        self._observe = observe
        self._verify = verify
        self._highest_seen = 0

    def win(self, attempt: Attempt, label: str | None, wait: float) -> Lease:
        """Make attempts until one succeeds, or it is of no use to go on."""
        asked_at = self._clock.now()
        is_given_owner = bool(attempt.owner)
        rounds = 0
        while True:
            rounds += 1
            began = self._clock.now()
            if not is_given_owner:
                owner = new_owner(label, is_reservation=attempt.is_reservation)
                attempt = attempt._replace(owner=owner)
            with self._pool.channel() as channel:
                refuse_misconfigured(self._nodes)
                outcome = self._try(channel, attempt, rounds)
            now = self._clock.now()
            if isinstance(outcome, Lease):
                self._observe(Acquired(outcome, now - asked_at, rounds))
                return outcome
            pause = _pause(outcome, now - began, rounds)
            # Nobody has a majority: whoever gave up now might leave nobody to do the work.
            is_split = isinstance(outcome, LockHeld) and outcome.contended
            may_go_on = now + pause < asked_at + wait or (is_split and rounds < _CONTENDED_ROUNDS)
            if isinstance(outcome, AlreadyDone) or is_given_owner or not may_go_on:
                self._observe(Refused(attempt.key, outcome))
                raise outcome
            self._clock.sleep(pause)

    def _try(self, channel: Channel, attempt: Attempt, rounds: int) -> Lease | RedlockError:
        """Make one attempt, the `rounds`th; return the lease, or why there is none."""
        try:
            return self._try_undisturbed(channel, attempt, rounds)
        except BaseException:
            # A time limit's signal strikes anywhere: what was granted must not be left behind.
            self._rounds.abandon(channel, attempt, ())
            raise

    def _try_undisturbed(
        self, channel: Channel, attempt: Attempt, rounds: int
    ) -> Lease | RedlockError:
        started = self._clock.now()
        proposed = max(self._clock.wall_us(), self._highest_seen + 1)
        grants = self._rounds.grant(channel, attempt, proposed)
        if attempt.gets_token:
            self._note_tokens(grants)
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
                    lease.channel, lease.is_granted_late = channel, channel.debt()
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
        """Give a majority `token` as its floor, which `already` nodes have: then it is ours alone.

        Tell whether it was done.
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
            verify=self._verify,
        )

    def _refusal(
        self, key: str, verdict: Verdict, grants: Sequence[GrantReply | None]
    ) -> RedlockError:
        if verdict is Verdict.DONE:
            lasts_ms = max(grant.remaining_ms for grant in grants if isinstance(grant, Done))
            return AlreadyDone(key, lasts_ms / 1000)
        leader = leading_holder(grants)
        if verdict is Verdict.HELD or verdict is Verdict.CONTENDED:
            holder = leader.holder if leader else None
            remaining = max(0, leader.remaining_ms) / 1000 if leader else 0.0
            return LockHeld(key, holder, remaining, contended=verdict is Verdict.CONTENDED)
        if verdict is Verdict.WON:
            return unavailable(
                "lock", key, grants, self._nodes, "its grant came, or was confirmed, too late"
            )
        return unavailable("lock", key, grants, self._nodes)

    def _note_tokens(self, grants: Sequence[GrantReply | None]) -> None:
        for grant in grants:
            if isinstance(grant, Granted):
                self._highest_seen = max(self._highest_seen, grant.token)
            elif isinstance(grant, Busy):
                self._highest_seen = max(self._highest_seen, grant.floor)


def refuse_misconfigured(nodes: Sequence[Node]) -> None:
    """Grant nothing while a node is not an independent master.

    What is held is extended and released all the same: the other nodes still stand for it.

    Raises:
        ConfigurationError: It names the node.
    """
    for node in nodes:
        if node.misconfigured:
            raise ConfigurationError(*node.misconfigured.args)


def _pause(outcome: RedlockError, round_took: float, rounds: int) -> float:
    """Return how long to wait before the next round, in seconds.

    Full jitter over what doubles with each round, at least the time that a round takes, and not
    past the holder's end.
    """
    longest = min(_LONGEST_PAUSE_S, max(round_took, 0.001) * 2 ** min(rounds, 16))
    if isinstance(outcome, LockHeld):
        longest = min(longest, outcome.remaining)
    return max(round_took, 0.001) + random.uniform(0.0, longest)
