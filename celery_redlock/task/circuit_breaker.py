"""Circuit breaker of publications: after one that found no quorum, the next ones fail fast."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

from celery_redlock.redlock.clock import Clock
from celery_redlock.redlock.errors import QuorumUnavailable
from celery_redlock.redlock.task_lock import TaskLock

T = TypeVar("T")
_TIMES = 10
"""A process spends at most one part in so many with waiting for a quorum that does not answer."""
_LONGEST_S = 5.0
"""The nodes are asked again after this time at the latest."""


class CircuitBreaker:
    """Remembers an attempt that a quorum did not answer, and refuses the next attempts for a while.

    For ten times as long as that attempt took, at most 5 s. Then one attempt asks the nodes, and
    the others are refused until it has ended. No attempt is refused after one that was answered.

    Args:
        clock: Clock of the lock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed: QuorumUnavailable | None = None
        self._failed_at = -math.inf
        self._refuses_until = -math.inf

    def call(self, key: str, attempt: Callable[[], T]) -> T:
        """Return what `attempt` returns, unless it is refused.

        Args:
            key: Key that it is about.
            attempt: Asks the nodes.

        Raises:
            QuorumUnavailable: Refused, with each node's reason and its age; or as `attempt` says.
        """
        began = self._clock.now()
        if failed := self._failed:
            if began < self._refuses_until:
                raise self._refusal(failed, key, began)
            self._refuses_until = began + _LONGEST_S
        is_answered = True
        try:
            return attempt()
        except QuorumUnavailable as error:
            # By a quorum, though not as needed: then the nodes are quick to ask.
            is_answered = error.answered > error.nodes // 2
            # A copy: that one leads to its caller's frames.
            self._failed, self._failed_at = QuorumUnavailable(*error.args), self._clock.now()
            pause = min(_TIMES * (self._failed_at - began), _LONGEST_S)
            self._refuses_until = self._failed_at + pause
            raise
        finally:
            if is_answered:
                self._failed = None

    def _refusal(self, failed: QuorumUnavailable, key: str, now: float) -> QuorumUnavailable:
        age = f"{now - self._failed_at:.1f} s ago, not asked since"
        errors = {node: f"{age}: {reason}" for node, reason in failed.errors.items()}
        return QuorumUnavailable(key, errors, *failed.args[2:])


_breakers: WeakKeyDictionary[TaskLock, CircuitBreaker] = WeakKeyDictionary()


def breaker_of(redlock: TaskLock) -> CircuitBreaker:
    """Return the circuit breaker of a lock's publications in this process."""
    breaker = _breakers.get(redlock)
    return breaker or _breakers.setdefault(redlock, CircuitBreaker(redlock.clock))
