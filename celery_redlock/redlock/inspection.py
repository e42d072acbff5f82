"""Inspect the nodes: the holder of a lock, the nodes that vote, the offsets of their clocks."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import NamedTuple

from celery_redlock.redlock.protocol.drop_notes import DropNote, as_note, dropped_key
from celery_redlock.redlock.protocol.quorum import (
    Verdict,
    floor_under,
    grant_verdict,
    has_majority_replied,
    holder_age_s,
    leading_holder,
    look_verdict,
)
from celery_redlock.redlock.protocol.replies import Failed, GrantReply
from celery_redlock.redlock.protocol.scripts import (
    GRANT,
    RELEASE,
    Refusal,
    as_held,
    as_probed,
    as_time,
    evalsha,
    lock_keys,
    looking_closely,
)
from celery_redlock.redlock.transport.channel import Channel, Command, why_guarded
from celery_redlock.redlock.transport.node import Node
from celery_redlock.redlock.transport.repeating import ask_repeatably

from .access import Access
from .errors import LockHeld
from .lease import is_reservation, owner_id
from .refusals import held_by, refuse_misconfigured, unavailable

_PROBE_MS = 1000
_LATE_S = 1.0
"""Longest wait for a node that is late: it is slow, or hangs."""


class State(str, Enum):
    """State of a node; all but one keep it from voting."""

    VOTES = "votes"
    GUARDED = "guarded"
    SLOW = "slow"
    REFUSES = "refuses"
    UNFIT = "unfit"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Judgement:
    """Judgement of a node: whether it votes on a lock that is acquired now.

    Attributes:
        node: Address.
        state: Its state.
        why: Reason why it does not vote; None: it votes.
        votes_in: Rest of its restart guard, seconds; 0.0: over, or off, or unknown.
    """

    node: str
    state: State
    why: str | None = None
    votes_in: float = 0.0


class Probed(NamedTuple):
    """A node granted and released a lock `seconds` after it was asked, or refused it."""

    refusal: Refusal
    seconds: float


class Inspection(Access):
    """Questions to the nodes that change no lock."""

    def is_locked(self, key: str) -> bool:
        """Return whether no majority of the nodes is free.

        A node that was slow may still have the key of a lock that a majority has released.

        Raises:
            QuorumUnavailable: Fewer nodes than a quorum could answer.
        """
        verdict, _ = self._views_of(key, "look at", partial(look_verdict, owner=""))
        return verdict is not Verdict.REACHED

    def read_holder(self, key: str) -> LockHeld | None:
        """Return the error that an attempt on `key` would get; None: it is free.

        Raises:
            QuorumUnavailable: Fewer nodes than a quorum could answer.
        """
        verdict, replies = self._views_of(key, "look at")
        leader = leading_holder(replies)
        if leader is None:
            return None
        # The floor under a reservation is that of an earlier lease.
        is_waiting = is_reservation(leader.holder)
        age = None if is_waiting else holder_age_s(replies, leader.holder, self._skew_us)
        now, contended = self._clock.wall_us() / 1e6, verdict is Verdict.CONTENDED
        return held_by(key, leader, now, contended=contended, age=age)

    def floor_under(self, key: str, owner: str) -> int:
        """Return the highest floor that a majority of the nodes reports under `owner`'s lock.

        If a majority names `owner`, the token of its lease is not higher, once that is confirmed.
        0: others hold the lock.

        Raises:
            QuorumUnavailable: Fewer nodes than a quorum could answer.
        """
        return floor_under(self._views_of(key, "release")[1], owner)

    def why_dropped(self, key: str, owner: str) -> str | None:
        """Return by whom, and when, the lock of `owner` was released; None: it is not noted."""
        with self._pool.channel(needs_votes=False) as channel:
            command = ("GET", dropped_key(self._prefix, key))
            notes = channel.ask(
                [command], lambda raws: as_note(raws[0]), has_majority_replied, channel.everyone()
            )
        of = owner_id(owner)
        found = (one for one in notes if isinstance(one, DropNote) and one.owner_id == of)
        return next((note.reason for note in found), None)

    def _views_of(
        self,
        key: str,
        action: str,
        verdict_on: Callable[[Sequence[GrantReply | None]], Verdict] = grant_verdict,
    ) -> tuple[Verdict, Sequence[GrantReply | None]]:
        """Return what a majority of the nodes has under `key`, and the verdict on that.

        Raises:
            QuorumUnavailable: Fewer nodes than a quorum could answer.
        """

        def is_decided(replies: Sequence[GrantReply | None]) -> bool:
            return verdict_on(replies) is not Verdict.PENDING

        with self._pool.channel() as channel:
            commands = looking_closely(*lock_keys(self._prefix, key))
            replies = ask_repeatably(channel, commands, as_held, is_decided, channel.voters)
        verdict = verdict_on(replies)
        if verdict not in (Verdict.REACHED, Verdict.HELD, Verdict.CONTENDED):
            raise unavailable(action, key, replies, self._nodes)
        return verdict, replies

    def check(self) -> dict[str, str]:
        """Return, by node, the reason why one does not vote; see `Redlock.check`.

        Raises:
            ConfigurationError: A node is not an independent master.
        """
        judged = self.judge()
        refuse_misconfigured(self._nodes)
        return {one.node: one.why for one in judged if one.why is not None}

    def judge(self) -> list[Judgement]:
        """Return the judgement of each node; see `TaskLock.judge`."""
        with self._pool.channel() as channel:
            channel.connect_all()
            said = list(self._probe(channel))
            if any(map(_is_late, self._nodes, said)):
                # A connection may have been given up in that round.
                channel.connect_all()
                longest = max(_LATE_S, self._node_timeout)
                later = self._probe(channel, longest)
                said = [
                    again if isinstance(reply, Failed) else reply
                    for reply, again in zip(said, later, strict=True)
                ]
            silent = map(channel.votes_in, range(len(self._nodes)))
            return list(map(self._judgement, self._nodes, said, silent))

    def _probe(
        self, channel: Channel, timeout: float | None = None
    ) -> Sequence[Probed | Failed | None]:
        """Make every node grant and release a lock that nobody uses.

        Args:
            channel: Channel to the nodes.
            timeout: Longest wait, seconds; None: as long as for a grant.
        """
        keys = lock_keys(self._prefix, f"probe-{secrets.token_hex(8)}")
        commands: list[Command] = [
            # If its release is lost, it expires after a second.
            evalsha(GRANT, keys, "probe", _PROBE_MS, 0, 0, 0),
            # Of EXTEND, that would raise the floor: a user may lack the right to these alone.
            ("PEXPIRE", keys[0], _PROBE_MS),
            ("PTTL", keys[1]),
            evalsha(RELEASE, keys, "probe", 1, 0),
        ]
        began = 0.0

        def among() -> Sequence[int]:
            nonlocal began
            began = self._clock.now()
            return channel.everyone()

        def parse(raws: list[object]) -> Probed | Failed:
            refusal, seconds = as_probed(raws), self._clock.now() - began
            return refusal if isinstance(refusal, Failed) else Probed(refusal, seconds)

        return ask_repeatably(channel, commands, parse, _have_all_replied, among, timeout)

    def _judgement(self, node: Node, reply: Probed | Failed | None, votes_in: float) -> Judgement:
        if node.misconfigured:
            return Judgement(node.name, State.UNFIT, str(node.misconfigured))
        if node.error is not None:
            return Judgement(node.name, State.DOWN, node.error)
        if not isinstance(reply, Probed):
            return Judgement(node.name, State.DOWN, reply.error if reply else "not asked")
        if reply.refusal:
            node.refuses(reply.refusal)
            return Judgement(node.name, State.REFUSES, f"refuses to write: {reply.refusal}")
        node.writes(votes_in)
        if reply.seconds > self._node_timeout:
            trip, limit = reply.seconds * 1000, self._node_timeout * 1000
            why = f"it answers after {trip:.0f} ms, and the node timeout is {limit:g} ms"
            return Judgement(node.name, State.SLOW, why, votes_in)
        if votes_in:
            return Judgement(node.name, State.GUARDED, why_guarded(votes_in), votes_in)
        return Judgement(node.name, State.VOTES)

    def clock_offsets(self) -> dict[str, float]:
        """Return, by node, how far the wall clock is ahead of it; see `Redlock.clock_offsets`."""
        with self._pool.channel() as channel:
            before = self._clock.wall_us()
            times = self._times(channel)
            here = (before + self._clock.wall_us()) / 2e6
        return {
            node.name: here - time
            for node, time in zip(self._nodes, times, strict=True)
            if isinstance(time, float)
        }

    def _times(self, channel: Channel) -> Sequence[float | Failed | None]:
        """Ask every node for its wall clock; wait for all except those that hang."""
        commands, among = [("TIME",)], channel.holders()
        return channel.ask(commands, lambda raws: as_time(raws[0]), _have_all_replied, among)


def _is_late(node: Node, reply: Probed | Failed | None) -> bool:
    """Return whether a node did not answer as needed, and is not known to be down."""
    return node.error is None and not isinstance(reply, Probed)


def _have_all_replied(replies: Sequence[object]) -> bool:
    return None not in replies
