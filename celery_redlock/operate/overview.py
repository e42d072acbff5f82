"""Overview of nodes and locks at one moment."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from .listing import each_lock
from .locks import Kind, Lock, by_age
from .node_status import NodeStatus, read_statuses, votes
from .operator_log import Action, read_log
from .target import Target
from .timeline import OF_TICKS, Tick, certain, tick_of


class Level(str, Enum):
    """How good a verdict is."""

    GOOD = "good"
    NARROW = "narrow"
    """Locks work, and stop with the next node that fails."""
    BAD = "bad"


class Verdict(NamedTuple):
    """Whether locks work, in a sentence."""

    level: Level
    text: str


def verdict_on(votes: int, nodes: int, needed: int) -> Verdict:
    """Return whether locks work, and how many more nodes may fail.

    Args:
        votes: Number of nodes that vote.
        nodes: Number of all nodes.
        needed: Quorum of the nodes.
    """
    verb = "votes" if votes == 1 else "vote"
    voting = f"{votes} of {nodes} nodes {verb}"
    spare = votes - needed
    if spare < 0:
        be = "is" if needed == 1 else "are"
        return Verdict(Level.BAD, f"No lock can be acquired: {voting}, {needed} {be} needed.")
    if nodes == 1:
        return Verdict(Level.NARROW, "Locks work, on one node: if it fails, all locks stop.")
    if spare == 0:
        return Verdict(
            Level.NARROW, f"Locks work, but one more failed node stops all locks: {voting}."
        )
    more = "" if votes == nodes else " more"
    return Verdict(Level.GOOD, f"Locks work: {voting}, and {spare}{more} may fail.")


@dataclass(frozen=True, slots=True)
class Overview:
    """Overview of nodes and locks.

    Attributes:
        statuses: Status of each node.
        needed: Number of nodes that are needed.
        counts: Number of locks of each kind.
        oldest: Of the locks that were asked for those that have been held longest.
        found: Number of locks that were asked for.
        ticks: Ticks that a replica of beat has claimed, or noted as missed, as long as the nodes
            keep that, or `Snapshots` does.
        missed: Ticks that were missed in the last day, the latest first.
        at: When it was read, seconds since the epoch.
        actions: Actions of operators that were asked for, the latest first.
        unread: Reason of each node whose log of them could not be read.
        searched: Number of locks, those held longest, among which filters search; None: all.
        doubt: Reason why there may be other locks and ticks: no quorum was read; None: one was.
        problem: Reason why the workers of the locks are unknown; None: they were not asked for, or
            are known.
    """

    statuses: Sequence[NodeStatus]
    needed: int
    counts: Mapping[str, int]
    oldest: Sequence[Lock]
    found: int
    ticks: Sequence[Tick]
    missed: Sequence[Tick]
    at: float
    actions: Sequence[Action] = ()
    unread: Mapping[str, str] = field(default_factory=dict)
    searched: int | None = None
    doubt: str | None = None
    problem: str | None = None

    @property
    def votes(self) -> int:
        """Number of nodes that vote."""
        return votes(self.statuses)

    @property
    def verdict(self) -> Verdict:
        """Whether locks work."""
        return verdict_on(self.votes, len(self.statuses), self.needed)

    @property
    def knows_actions(self) -> bool:
        """Whether a quorum of the nodes has told the actions of operators."""
        return len(self.statuses) - len(self.unread) >= self.needed

    def as_json(self) -> dict[str, object]:
        """Return the overview as plain JSON values; times are in seconds."""
        return {
            "at": round(self.at, 3),
            "votes": self.votes,
            "needed": self.needed,
            "nodes": [status.as_json() for status in self.statuses],
            "counts": dict(self.counts),
            "missed_ticks": [tick.as_json() for tick in self.missed],
            "oldest": [lock.as_json(self.at) for lock in self.oldest],
            "doubt": self.doubt,
        }


def read_overview(
    target: Target,
    most: int,
    is_wanted: Callable[[Lock], object] = id,
    now: Callable[[], float] = time.time,
    most_actions: int = 0,
) -> Overview:
    """Return an overview.

    Args:
        target: The nodes.
        most: Most locks, those held longest.
        is_wanted: Returns whether a lock is wanted; by default all are.
        now: Time, seconds since the epoch.
        most_actions: Most actions of operators, the latest; 0: none are read.
    """
    counts: Counter[str] = Counter()
    ticks: list[Tick] = []
    found = 0

    def wanted() -> Iterator[Lock]:
        nonlocal found
        for lock in each_lock(nodes, target.key_prefix):
            counts[lock.kind.value] += 1
            if lock.kind in OF_TICKS and (tick := tick_of(lock)):
                ticks.append(tick)
            if is_wanted(lock):
                found += 1
                yield lock

    # New connections each time: a node that failed may be back.
    with target.nodes() as nodes:
        statuses = read_statuses(target, nodes)
        actions, unread = read_log(target, nodes, most_actions) if most_actions else ([], {})
        oldest = heapq.nsmallest(most, wanted(), key=by_age)
        doubt = nodes.doubt
    ticks = certain(ticks)
    missed = [tick for tick in ticks if tick.state is Kind.MISSED]
    missed.sort(key=lambda tick: -tick.at)
    return Overview(
        statuses, target.quorum, counts, oldest, found, ticks, missed, now(), actions[::-1], unread,
        doubt=doubt,
    )  # fmt: skip
