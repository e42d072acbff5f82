"""One node in a test's own time: the rules of `celery_redlock.testing`'s in-memory node."""

from __future__ import annotations

from collections.abc import Callable

from celery_redlock.testing.memory_node import MemoryNode

EPOCH_US = 1_700_000_000_000_000
"""What a right wall clock shows at second 0 of a test's time."""


class SimulatedNode(MemoryNode):
    """What one server holds, and what it replies.

    Args:
        now: A test's time, seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(now, EPOCH_US)
