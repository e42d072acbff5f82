"""Access to the nodes, which every operation on locks needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from celery_redlock.redlock.protocol.quorum import majority
from celery_redlock.redlock.transport.node import Node
from celery_redlock.redlock.transport.pool import Pool

from .clock import Clock


@dataclass(eq=False)
class Access:
    """Access to the nodes, for any number of threads. Each operation on locks is one.

    Attributes:
        _nodes: The servers.
        _pool: Channels to them.
        _clock: Time.
        _node_timeout: Longest wait for a node in one round, seconds.
        _prefix: Start of every key.
        _skew_us: Largest difference between a proposed token and a node's clock, µs.
        _floor_ttl_ms: Time for which a floor outlives its last use, ms.
        _quorum: Majority of the nodes.
    """

    _nodes: Sequence[Node]
    _pool: Pool
    _clock: Clock
    _node_timeout: float
    _prefix: str
    _skew_us: int
    _floor_ttl_ms: int
    _quorum: int = field(init=False)

    def __post_init__(self) -> None:
        self._quorum = majority(len(self._nodes))
