"""Access to the nodes, which every operation on locks needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from celery_redlock.redlock.protocol.quorum import majority
from celery_redlock.redlock.transport.node import Node
from celery_redlock.redlock.transport.pool import Pool

from .clock import Clock
from .rounds import Rounds


class Access(NamedTuple):
    """Access to the nodes, for any number of threads.

    Attributes:
        nodes: The servers.
        pool: Channels to them.
        rounds: Requests to them.
        clock: Time.
        node_timeout: Longest wait for a node in one round, seconds.
    """

    nodes: Sequence[Node]
    pool: Pool
    rounds: Rounds
    clock: Clock
    node_timeout: float


class Operation:
    """Base of the operations on locks, each usable from any number of threads.

    Args:
        access: Access to the nodes.
    """

    def __init__(self, access: Access) -> None:
        self._nodes, self._pool, self._rounds, self._clock, self._node_timeout = access
        self._quorum = majority(len(self._nodes))
