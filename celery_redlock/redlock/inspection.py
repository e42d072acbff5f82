"""Inspect the nodes: the holder of a lock, the nodes that vote, the offsets of their clocks."""

from __future__ import annotations

from celery_redlock.redlock.protocol.quorum import (
    Verdict,
    grant_verdict,
    highest_floor,
    holder_age_s,
    leading_holder,
)
from celery_redlock.redlock.protocol.replies import Failed
from celery_redlock.redlock.transport.channel import guarded

from .access import Operation
from .errors import LockHeld
from .lease import is_reservation
from .refusals import held_by, refuse_misconfigured, unavailable


class Inspection(Operation):
    """Questions to the nodes that change no lock."""

    def look(self, key: str) -> LockHeld | None:
        """Return the error that an attempt on `key` would get; None: it is free.

        Raises:
            QuorumUnavailable: Fewer nodes than a quorum could answer.
        """
        return self.look_closely(key)[0]

    def look_closely(self, key: str) -> tuple[LockHeld | None, int]:
        """Return what `look` does, and the highest floor: the token of the holder, at least.

        Raises:
            QuorumUnavailable: Fewer nodes than a quorum could answer.
        """
        with self._pool.channel() as channel:
            replies = self._rounds.look(channel, key)
        verdict, leader = grant_verdict(replies), leading_holder(replies)
        if verdict is not Verdict.HELD and verdict is not Verdict.CONTENDED:
            raise unavailable("look at", key, replies, self._nodes)
        if leader is None:
            return None, highest_floor(replies)
        # The floor under a reservation is that of an earlier lease.
        is_waiting = is_reservation(leader.holder)
        age = None if is_waiting else holder_age_s(replies, leader.holder, self._rounds.skew_us)
        now, contended = self._clock.wall_us() / 1e6, verdict is Verdict.CONTENDED
        held = held_by(key, leader, now, contended=contended, age=age)
        return held, highest_floor(replies)

    def check(self) -> dict[str, str]:
        """Return, by node, the reason why one does not vote; see `Redlock.check`.

        Raises:
            ConfigurationError: A node is not an independent master.
        """
        with self._pool.channel() as channel:
            channel.introduce()
            refuse_misconfigured(self._nodes)
            said = self._rounds.probe(channel)
            silent = [channel.votes_in(index) for index in range(len(self._nodes))]
        why: dict[str, str] = {}
        for node, reply, votes_in in zip(self._nodes, said, silent, strict=True):
            if node.error is not None:
                why[node.name] = node.error
            elif isinstance(reply, Failed):
                why[node.name] = reply.error
            elif reply:
                node.refuses(reply)
                why[node.name] = f"refuses to write: {reply}"
            else:
                node.writes(votes_in)
                if votes_in:
                    why[node.name] = guarded(votes_in)
        return why

    def clock_offsets(self) -> dict[str, float]:
        """Return, by node, how far the wall clock is ahead of it; see `Redlock.clock_offsets`."""
        with self._pool.channel() as channel:
            before = self._clock.wall_us()
            times = self._rounds.time(channel)
            here = (before + self._clock.wall_us()) / 2e6
        return {
            node.name: here - time
            for node, time in zip(self._nodes, times, strict=True)
            if isinstance(time, float)
        }
