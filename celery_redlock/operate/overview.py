"""Overview of nodes and locks at one moment."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .listing import each_lock
from .locks import Kind, Lock
from .node_set import NodeSet
from .node_status import NodeStatus, read_statuses, votes
from .target import Target
from .timeline import Tick, tick_of


@dataclass(frozen=True, slots=True)
class Overview:
    """Overview of nodes and locks.

    Attributes:
        statuses: Status of each node.
        needed: Number of nodes that are needed.
        counts: Number of locks of each kind.
        oldest: Of the locks that were asked for those that have been held longest.
        found: Number of locks that were asked for.
        ticks: Ticks that a replica of beat has claimed, as long as the nodes keep the claims.
    """

    statuses: Sequence[NodeStatus]
    needed: int
    counts: Mapping[str, int]
    oldest: Sequence[Lock]
    found: int
    ticks: Sequence[Tick]

    @property
    def votes(self) -> int:
        """Number of nodes that vote."""
        return votes(self.statuses)

    def as_json(self, now: float) -> dict[str, object]:
        """Return the overview as plain JSON values; times are in seconds."""
        return {
            "at": round(now, 3),
            "votes": self.votes,
            "needed": self.needed,
            "nodes": [status.as_json() for status in self.statuses],
            "counts": dict(self.counts),
            "oldest": [lock.as_json(now) for lock in self.oldest],
        }


def read_overview(target: Target, most: int, is_wanted: Callable[[Lock], object] = id) -> Overview:
    """Return an overview with at most `most` of the locks that are wanted; by default all are."""
    counts: Counter[str] = Counter()
    ticks: list[Tick] = []
    found = 0

    def wanted() -> Iterator[Lock]:
        nonlocal found
        for lock in each_lock(nodes, target.key_prefix):
            counts[lock.kind.value] += 1
            if lock.kind is Kind.CLAIM and (tick := tick_of(lock)):
                ticks.append(tick)
            if is_wanted(lock):
                found += 1
                yield lock

    # New connections each time: a node that failed may be back.
    with NodeSet(target.urls, target.patience) as nodes:
        statuses = read_statuses(target, nodes)
        oldest = heapq.nsmallest(most, wanted(), key=lambda lock: (lock.token == 0, lock.token))
    return Overview(statuses, target.quorum, counts, oldest, found, ticks)
