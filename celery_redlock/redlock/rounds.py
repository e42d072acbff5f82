"""The rounds: what is asked of the nodes, with which commands, and when enough have answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from .channel import Channel, Command
from .errors import QuorumUnavailable
from .lease import Lease, is_reservation
from .node import Node
from .quorum import (
    AckReply,
    Busy,
    Done,
    Extended,
    ExtendReply,
    Failed,
    Granted,
    GrantReply,
    Verdict,
    confirm_verdict,
    extend_verdict,
    grant_verdict,
    without_majority,
)
from .scripts import (
    CONFIRM,
    EXTEND,
    GRANT,
    RELEASE,
    Argument,
    as_ack,
    as_extend,
    as_grant,
    as_release,
    as_reserved,
    as_time,
    done_key,
    evalsha,
    lock_keys,
    reserving,
)

_UNDER_WAY_MS = 60_000
"""Longer than any attempt is under way."""


class Attempt(NamedTuple):
    """One attempt to get a lock; an owner of its own, never used again.

    Attributes:
        key: Name of the lock.
        owner: Who asks.
        ttl_ms: Expiry to set on every node.
        supersedes: An owner that may be replaced; '' for nobody.
        unless_done: A label whose done mark ends the attempt; '' for none.
        highest_floor: A node with a higher one refuses; 0 for none.
        is_reservation: Nothing will run under it.
    """

    key: str
    owner: str
    ttl_ms: int
    supersedes: str = ""
    unless_done: str = ""
    highest_floor: int = 0
    is_reservation: bool = False

    @property
    def gets_token(self) -> bool:
        """Whether nodes that grant give it one: under a reservation nobody has a use for it."""
        # To replace another owner takes the script.
        return not self.is_reservation or self.supersedes != "" or self.highest_floor > 0


@dataclass(frozen=True, slots=True)
class Rounds:
    """The five rounds, for one set of keys.

    Attributes:
        prefix: What every key starts with.
        skew_us: By how much a proposed token may differ from a node's clock, µs.
        floor_ttl_ms: How long a floor outlives its last use, ms.
    """

    prefix: str
    skew_us: int
    floor_ttl_ms: int

    def grant(
        self, channel: Channel, attempt: Attempt, proposed_us: int
    ) -> Sequence[GrantReply | None]:
        """Ask every node that may vote for the lock.

        Without the script if no token is wanted: that takes the servers a fraction of the time.
        """
        keys: tuple[str, ...] = lock_keys(self.prefix, attempt.key)
        if not attempt.gets_token:
            commands = reserving(keys[0], attempt.owner, attempt.ttl_ms)
            parse = partial(as_reserved, attempt.owner.encode())
            return channel.ask_batch(commands, parse, _is_granted_or_not, channel.voters())
        if attempt.unless_done:
            keys += (done_key(self.prefix, attempt.key, attempt.unless_done),)
        command = evalsha(
            GRANT, keys, attempt.owner, attempt.ttl_ms, proposed_us, self.skew_us,
            self.floor_ttl_ms, attempt.supersedes, attempt.highest_floor,
        )  # fmt: skip
        return channel.ask(command, as_grant, _is_granted_or_not, channel.voters())

    def confirm(
        self,
        channel: Channel,
        attempt: Attempt,
        token: int,
        behind: Sequence[int],
        already: int,
    ) -> Sequence[AckReply | None]:
        """Raise the floor of the nodes `behind` to `token`, `already` having it."""
        keys = lock_keys(self.prefix, attempt.key)
        command = evalsha(CONFIRM, keys, attempt.owner, token, attempt.ttl_ms, self.floor_ttl_ms)

        def is_decided(acks: Sequence[AckReply | None]) -> bool:
            return confirm_verdict(acks, already) is not Verdict.PENDING

        return channel.ask(command, as_ack, is_decided, behind)

    def abandon(
        self, channel: Channel, attempt: Attempt, grants: Sequence[GrantReply | None]
    ) -> None:
        """Undo a failed attempt on every node but those that refused it: they have nothing of it.

        Where the grant may still be under way it is followed by its release on the same connection.
        Only those known by `grants` to hold the lock are waited for.
        """
        holding = [index for index, grant in enumerate(grants) if isinstance(grant, Granted)]
        refused = [index for index, grant in enumerate(grants) if isinstance(grant, Busy | Done)]
        among = [index for index in channel.everyone() if index not in refused]
        if not among:
            return
        keys = lock_keys(self.prefix, attempt.key)
        commands = _releasing(keys, attempt.owner, 0, self.floor_ttl_ms, 0, 0)

        def is_decided(acks: Sequence[AckReply | None]) -> bool:
            return all(acks[index] is not None for index in holding)

        channel.ask_batch(commands, _as_released, is_decided, among)

    def clear(
        self, channel: Channel, attempt: Attempt, grants: Sequence[GrantReply | None]
    ) -> None:
        """Free the nodes that keep what is left over of a reservation; nothing is waited for.

        Its release did not get there, or before its grant, and it would stay for its whole ttl. To
        be asked for when it is not on the way to a majority: when `attempt` has one, or nobody has
        for a while. For another reservation that is not enough, if it may be new.
        """
        minority = without_majority(grants)
        if not minority:
            return
        keys = lock_keys(self.prefix, attempt.key)
        for index, (holder, remaining_ms, _) in minority.items():
            # As far as can be told: it may have had another ttl.
            is_old = remaining_ms < attempt.ttl_ms - _UNDER_WAY_MS
            if is_reservation(holder) and (is_old or not attempt.is_reservation):
                commands = _releasing(keys, holder, 0, self.floor_ttl_ms, 0, 0)
                channel.ask_batch(commands, _as_released, lambda _: True, [index])

    def extend(
        self, channel: Channel, leases: Sequence[Lease]
    ) -> list[Sequence[ExtendReply | None]]:
        """Renew all `leases` with one write a node; return each one's replies."""
        commands = [
            evalsha(
                EXTEND, lock_keys(self.prefix, lease.key), lease.owner, lease.token, lease.ttl_ms,
                self.floor_ttl_ms,
            )
            for lease in leases
        ]  # fmt: skip
        replies = channel.ask_batch(commands, _as_extends, _are_extended_or_not, channel.holders())
        return [_of_lease(replies, number) for number in range(len(leases))]

    def release(
        self, channel: Channel, lease: Lease, keep_ms: int, done: str | None, done_ttl_ms: int
    ) -> Sequence[AckReply | None]:
        """Give `lease` back on every node, or keep the key for `keep_ms` more; see `scripts`."""
        keys: tuple[str, ...] = lock_keys(self.prefix, lease.key)
        if done:
            keys += (done_key(self.prefix, lease.key, done),)
        commands = _releasing(
            keys, lease.owner, lease.token, self.floor_ttl_ms, keep_ms, done_ttl_ms,
            lease.superseded,
        )  # fmt: skip

        def is_decided(acks: Sequence[AckReply | None]) -> bool:
            return confirm_verdict(acks, 0) is not Verdict.PENDING

        return channel.ask_batch(commands, _as_released, is_decided, channel.everyone())

    def time(self, channel: Channel) -> Sequence[float | Failed | None]:
        """Ask every node for its wall clock, and wait for all but those that are hung."""
        return channel.ask(("TIME",), as_time, lambda times: None not in times, channel.holders())


def _releasing(keys: tuple[str, ...], owner: str, *argv: Argument) -> list[Command]:
    """Return the commands that free what `owner` holds; the last one's reply counts.

    A server that has lost its scripts takes a reservation all the same, and for long. Its release
    must not be lost to that, for nobody may be waiting for the answer: it brings the script along.
    """
    release = evalsha(RELEASE, keys, owner, *argv)
    return [RELEASE.loading, release] if is_reservation(owner) else [release]


def _as_released(raws: list[object]) -> AckReply:
    return as_release(raws[-1])


def _is_granted_or_not(grants: Sequence[GrantReply | None]) -> bool:
    return grant_verdict(grants) is not Verdict.PENDING


def _as_extends(raws: list[object]) -> list[ExtendReply]:
    return [as_extend(raw) for raw in raws]


def _are_extended_or_not(replies: Sequence[list[ExtendReply] | Failed | None]) -> bool:
    count = next((len(reply) for reply in replies if isinstance(reply, list)), 1)
    return all(
        extend_verdict(_of_lease(replies, number)) is not Verdict.PENDING for number in range(count)
    )


def _of_lease(
    replies: Sequence[list[ExtendReply] | Failed | None], number: int
) -> Sequence[ExtendReply | None]:
    return [reply[number] if isinstance(reply, list) else reply for reply in replies]


def unavailable(
    action: str,
    key: str,
    replies: Sequence[object],
    nodes: Sequence[Node],
    otherwise: str | None = None,
) -> QuorumUnavailable:
    """Return the error that names what was wrong with each node.

    Args:
        action: What could not be done.
        key: Name of the lock.
        replies: One entry a node.
        nodes: The nodes.
        otherwise: What was wrong with those that did answer.
    """
    errors = {}
    for node, reply in zip(nodes, replies, strict=True):
        if isinstance(reply, Failed):
            errors[node.name] = reply.error
        elif otherwise and reply is not None and not isinstance(reply, Extended):
            errors[node.name] = otherwise
    return QuorumUnavailable(key, errors, len(nodes), action)
