"""Rounds: the commands of each request to the nodes, and when enough nodes have answered."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from celery_redlock.redlock.protocol.quorum import (
    Verdict,
    confirm_verdict,
    extend_verdict,
    grant_verdict,
    look_verdict,
    without_majority,
)
from celery_redlock.redlock.protocol.replies import (
    AckReply,
    Busy,
    Done,
    ExtendReply,
    Failed,
    Granted,
    GrantReply,
)
from celery_redlock.redlock.protocol.scripts import (
    CONFIRM,
    EXTEND,
    GRANT,
    RELEASE,
    Argument,
    Refusal,
    as_ack,
    as_extend,
    as_grant,
    as_held,
    as_probed,
    as_release,
    as_reserved,
    as_time,
    done_key,
    evalsha,
    lock_keys,
    looking_closely,
    reserving,
)
from celery_redlock.redlock.transport.channel import Channel, Command

from .attempt import Attempt
from .lease import Lease, is_reservation
from .unsettled import ReleaseRequest

_PROBE_MS = 1000
_UNDER_WAY_MS = 60_000
"""Longest time that an attempt can be under way."""
_NOBODY = ""


@dataclass(frozen=True, slots=True)
class Rounds:
    """Requests to all nodes, for one set of keys.

    Attributes:
        prefix: Start of every key.
        skew_us: Largest difference between a proposed token and a node's clock, µs.
        floor_ttl_ms: Time for which a floor outlives its last use, ms.
    """

    prefix: str
    skew_us: int
    floor_ttl_ms: int

    def grant(
        self, channel: Channel, attempt: Attempt, proposed_us: int
    ) -> Sequence[GrantReply | None]:
        """Send a grant to every node that may vote.

        Without a token no script is needed, which costs the servers a fraction of the time.
        """
        keys: tuple[str, ...] = lock_keys(self.prefix, attempt.key)
        if not attempt.gets_token:
            commands = reserving(keys[0], attempt.owner, attempt.ttl_ms)
            parse = partial(as_reserved, attempt.owner.encode())
            return channel.ask_batch(commands, parse, _is_granted_or_not, channel.voters())
        if attempt.unless_done:
            keys += (done_key(self.prefix, attempt.key, attempt.unless_done),)
        replacing: tuple[Argument, ...] = ()
        if attempt.supersedes or attempt.highest_floor:
            replacing = (attempt.supersedes, attempt.highest_floor)
        command = evalsha(
            GRANT, keys, attempt.owner, attempt.ttl_ms, proposed_us, self.skew_us,
            self.floor_ttl_ms, *replacing,
        )  # fmt: skip
        return channel.ask(command, as_grant, _is_granted_or_not, channel.voters())

    def look(self, channel: Channel, key: str) -> Sequence[GrantReply | None]:
        """Ask the nodes for the holder of a lock; each one that answers is Busy."""
        commands = looking_closely(*lock_keys(self.prefix, key))
        return channel.ask_batch(commands, as_held, _is_granted_or_not, channel.voters())

    def look_before(self, channel: Channel, attempt: Attempt) -> Sequence[GrantReply | None]:
        """Ask as `look` does, until it is certain how `attempt` would fare; a node may be Done."""
        label = attempt.unless_done
        mark = done_key(self.prefix, attempt.key, label) if label else ""
        commands = looking_closely(*lock_keys(self.prefix, attempt.key), mark)

        def is_decided(replies: Sequence[GrantReply | None]) -> bool:
            return look_verdict(replies, attempt.supersedes) is not Verdict.PENDING

        return channel.ask_batch(commands, as_held, is_decided, channel.voters())

    def confirm(
        self,
        channel: Channel,
        attempt: Attempt,
        token: int,
        behind: Sequence[int],
        already: int,
    ) -> Sequence[AckReply | None]:
        """Raise the floor of the nodes `behind` to `token`; `already` nodes have it."""
        keys = lock_keys(self.prefix, attempt.key)
        command = evalsha(CONFIRM, keys, attempt.owner, token, attempt.ttl_ms, self.floor_ttl_ms)

        def is_decided(acks: Sequence[AckReply | None]) -> bool:
            return confirm_verdict(acks, already) is not Verdict.PENDING

        return channel.ask(command, as_ack, is_decided, behind)

    def abandon(
        self, channel: Channel, attempt: Attempt, grants: Sequence[GrantReply | None]
    ) -> None:
        """Release a failed attempt on every node except those that refused it.

        A grant that may still be on its way is followed by its release on the same connection. Only
        nodes that hold the lock according to `grants` are waited for.
        """
        holding = [index for index, grant in enumerate(grants) if isinstance(grant, Granted)]
        refused = [index for index, grant in enumerate(grants) if isinstance(grant, Busy | Done)]
        among = [index for index in channel.everyone() if index not in refused]
        if not among:
            return
        keys = lock_keys(self.prefix, attempt.key)
        commands = _releasing(keys, attempt.owner, 0, self.floor_ttl_ms)

        def is_decided(acks: Sequence[AckReply | None]) -> bool:
            return all(acks[index] is not None for index in holding)

        channel.ask_batch(commands, _as_released, is_decided, among)

    def clear(
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
        keys = lock_keys(self.prefix, attempt.key)
        for index, (holder, remaining_ms, *_) in minority.items():
            # An estimate: that reservation may have had another ttl.
            is_old = remaining_ms < attempt.ttl_ms - _UNDER_WAY_MS
            if is_reservation(holder) and (is_old or not attempt.is_reservation):
                commands = _releasing(keys, holder, 0, self.floor_ttl_ms)
                channel.ask_batch(commands, _as_released, lambda _: True, [index])

    def extend(
        self, channel: Channel, leases: Sequence[Lease], ttls_ms: Sequence[int], timeout: float
    ) -> list[Sequence[ExtendReply | None]]:
        """Renew all `leases` with one write per node; return the replies to each.

        Args:
            channel: Channel to the nodes.
            leases: The leases.
            ttls_ms: Expiry to set for each, ms.
            timeout: Longest wait, seconds; shorter if all leases are decided before.
        """
        commands = [
            evalsha(
                EXTEND, lock_keys(self.prefix, lease.key), lease.owner, lease.token, ttl_ms,
                self.floor_ttl_ms,
            )
            for lease, ttl_ms in zip(leases, ttls_ms, strict=True)
        ]  # fmt: skip
        replies = channel.ask_batch(
            commands, _as_extends, _are_extended_or_not, channel.holders(), timeout
        )
        return [_of_one(replies, number) for number in range(len(leases))]

    def release(
        self,
        channel: Channel,
        key: str,
        owner: str,
        token: int,
        *,
        superseded: str,
        keep_ms: int,
        done: str | None,
        done_ttl_ms: int,
    ) -> Sequence[AckReply | None]:
        """Release the lock of `owner` on every node.

        Args:
            channel: Channel to the nodes.
            key: Key of the lock.
            owner: Owner of the lock.
            token: Token of the lease, above which the floor is raised; 0: no floor is raised.
            superseded: Owner that was replaced, whose lock is released as well; '': nobody.
            keep_ms: Expiry to shorten the key's to, ms; 0: the key is deleted.
            done: Label to write a done mark for; None: no mark.
            done_ttl_ms: Expiry of that mark, ms.
        """
        commands = self._release(key, owner, token, superseded, keep_ms, done, done_ttl_ms)
        return channel.ask_batch(commands, _as_released, _is_confirmed_or_not, channel.everyone())

    def mark_done(
        self, channel: Channel, key: str, label: str, ttl_ms: int
    ) -> Sequence[AckReply | None]:
        """Write a done mark for `label` on every node, for `ttl_ms`; release no lock."""
        # The script that writes marks also releases, but no lock has this owner.
        commands = self._release(key, _NOBODY, 0, done=label, done_ttl_ms=ttl_ms)
        return channel.ask_batch(commands, _as_released, _is_confirmed_or_not, channel.everyone())

    def release_all(
        self, channel: Channel, releases: Sequence[ReleaseRequest], now: float, timeout: float
    ) -> list[Sequence[AckReply | None]]:
        """Make many releases with one write per node; return the replies to each.

        Waits for all nodes, up to `timeout` seconds.
        """
        made = [
            self._release(
                one.key, one.owner, one.token, one.superseded, one.keep_ms(now), one.done,
                one.done_ttl_ms,
            )
            for one in releases
        ]  # fmt: skip
        ends = list(itertools.accumulate(map(len, made)))

        def parse(raws: list[object]) -> list[AckReply]:
            return [as_release(raws[end - 1]) for end in ends]

        replies = channel.ask_batch(
            [command for commands in made for command in commands],
            parse,
            lambda replies: None not in replies,
            channel.everyone(),
            timeout,
        )
        return [_of_one(replies, number) for number in range(len(releases))]

    def _release(
        self,
        key: str,
        owner: str,
        token: int,
        superseded: str = "",
        keep_ms: int = 0,
        done: str | None = None,
        done_ttl_ms: int = 0,
    ) -> list[Command]:
        keys: tuple[str, ...] = lock_keys(self.prefix, key)
        if done:
            keys += (done_key(self.prefix, key, done),)
        leaving: tuple[Argument, ...] = ()
        if keep_ms or done or superseded:
            leaving = (keep_ms, done_ttl_ms, superseded)
        return _releasing(keys, owner, token, self.floor_ttl_ms, *leaving)

    def probe(self, channel: Channel) -> Sequence[Refusal | Failed | None]:
        """Make every node grant and release a lock that nobody uses."""
        keys = lock_keys(self.prefix, f"probe-{secrets.token_hex(8)}")
        commands: list[Command] = [
            # If its release is lost, it expires after a second.
            evalsha(GRANT, keys, "probe", _PROBE_MS, 0, 0, 0),
            evalsha(RELEASE, keys, "probe", 1, 0),
        ]
        return channel.ask_batch(
            commands, as_probed, lambda replies: None not in replies, channel.everyone(),
            timeout=_PROBE_MS / 1000,
        )  # fmt: skip

    def time(self, channel: Channel) -> Sequence[float | Failed | None]:
        """Ask every node for its wall clock; wait for all except those that hang."""
        return channel.ask(("TIME",), as_time, lambda times: None not in times, channel.holders())


def _releasing(keys: tuple[str, ...], owner: str, *argv: Argument) -> list[Command]:
    """Return the commands that release a lock of `owner`; the reply to the last one counts.

    A server that has lost its scripts still grants a reservation, for a long ttl. Nobody may be
    waiting for the reply to its release, so that loads the script first.
    """
    release = evalsha(RELEASE, keys, owner, *argv)
    return [RELEASE.loading, release] if is_reservation(owner) else [release]


def _as_released(raws: list[object]) -> AckReply:
    return as_release(raws[-1])


def _is_confirmed_or_not(acks: Sequence[AckReply | None]) -> bool:
    return confirm_verdict(acks, 0) is not Verdict.PENDING


def _is_granted_or_not(grants: Sequence[GrantReply | None]) -> bool:
    return grant_verdict(grants) is not Verdict.PENDING


def _as_extends(raws: list[object]) -> list[ExtendReply]:
    return [as_extend(raw) for raw in raws]


def _are_extended_or_not(replies: Sequence[list[ExtendReply] | Failed | None]) -> bool:
    count = next((len(reply) for reply in replies if isinstance(reply, list)), 1)
    return all(
        extend_verdict(_of_one(replies, number)) is not Verdict.PENDING for number in range(count)
    )


def _of_one(replies: Sequence[list[Any] | Failed | None], number: int) -> Sequence[Any]:
    """Return the replies to one of the requests that were made together."""
    return [reply[number] if isinstance(reply, list) else reply for reply in replies]
