"""Measurements of tasks and beat, taken from the signals of this package."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from celery import Celery
from celery.exceptions import Retry
from celery.signals import task_retry
from celery.utils.dispatch import Signal

from celery_redlock import signals
from celery_redlock.redlock.errors import LockHeld, QuorumUnavailable

COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "acquired": ("Locks acquired by executions.", ()),
    "released": ("Locks released by executions, unless their lease was lost.", ()),
    "lost": ("Leases lost under a running task.", ()),
    "conflicts": (
        "Executions and calls whose lock was held, by outcome.",
        ("skip", "complete", "raise", "reschedule", "coalesce", "parked", "not_published"),
    ),
    "unavailable": (
        "Executions and calls without a quorum, by outcome.",
        ("reschedule", "raise", "run", "parked", "unreserved"),
    ),
    "rescheduled": ("Messages requeued to run later, by reason.", ("conflict", "unavailable")),
    "ticks": (
        "Ticks that beat has processed, by outcome.",
        ("published", "elsewhere", "missed", "twice"),
    ),
}
"""Help text and possible outcomes of each counter."""
HISTOGRAMS: dict[str, str] = {
    "acquire": "Time from the granted request for a lock to the start of the body.",
    "wait": "Time that executions waited in the worker for a held lock.",
    "hold": "Time from the granted request for a lock to its release.",
}
"""Help text of each histogram; all are in seconds."""
GAUGES: dict[str, str] = {
    "held": "Locks held by executions now.",
    "waiting": "Executions that wait in the worker for a held lock now.",
}
"""Help text of each gauge that counts executions."""
BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 300.0, 3600.0)
"""Upper bounds of the histograms' buckets, in seconds."""


def connect_for_app(app: Celery, pairs: Iterable[tuple[Signal, Callable[..., None]]]) -> None:
    """Connect receivers to signals, for the tasks, nodes and ticks of an app alone."""

    def receive(receiver: Callable[..., None], /, sender: Any, **given: Any) -> None:
        # Ticks have no sender: a process of beat has one app.
        if sender is None or sender is app or getattr(sender, "app", None) is app:
            receiver(sender, **given)

    for signal, receiver in pairs:
        signal.connect(partial(receive, receiver), weak=False)


class Recorder(ABC):
    """Destination of measurements. Names are those of the tables above."""

    def connect(self, app: Celery) -> None:
        """Record the measurements of an app's tasks, nodes and ticks from now on."""
        connect_for_app(
            app,
            (
                (signals.lock_acquired, self._acquired),
                (signals.lock_released, self._released),
                (signals.lock_lost, self._lost),
                (signals.lock_conflict, self._conflict),
                (signals.lock_unavailable, self._unavailable),
                (signals.lock_wait_began, self._wait_began),
                (signals.lock_wait_ended, self._wait_ended),
                (signals.nodes_checked, self._checked),
                (signals.tick_processed, self._ticked),
                (task_retry, self._retried),
            ),
        )

    @abstractmethod
    def count(self, name: str, task: str, outcome: str = "") -> None:
        """Add one to a counter."""

    @abstractmethod
    def observe(self, name: str, task: str, seconds: float) -> None:
        """Add a value to a histogram."""

    @abstractmethod
    def change(self, name: str, task: str, by: int) -> None:
        """Add to a gauge."""

    @abstractmethod
    def set_votes(self, votes: int, nodes: int, needed: int) -> None:
        """Record how many of the nodes vote, and how many must."""

    def _acquired(self, task: Any, lease: Any, **_: Any) -> None:
        self.count("acquired", task.name)
        self.change("held", task.name, 1)
        self.observe("acquire", task.name, lease.clock.now() - lease.acquired_at)

    def _released(self, task: Any, lease: Any, **_: Any) -> None:
        if not lease.lost:
            self.count("released", task.name)
        self.change("held", task.name, -1)
        self.observe("hold", task.name, lease.clock.now() - lease.acquired_at)

    def _lost(self, task: Any, **_: Any) -> None:
        self.count("lost", task.name)

    def _conflict(self, task: Any, outcome: str, at: str, **_: Any) -> None:
        self.count("conflicts", task.name, "not_published" if at == "publish" else outcome)

    def _unavailable(self, task: Any, outcome: str, **_: Any) -> None:
        self.count("unavailable", task.name, outcome)

    def _wait_began(self, task: Any, **_: Any) -> None:
        self.change("waiting", task.name, 1)

    def _wait_ended(self, task: Any, waited: float, **_: Any) -> None:
        self.change("waiting", task.name, -1)
        self.observe("wait", task.name, waited)

    def _retried(self, task: Any, reason: object = None, **_: Any) -> None:
        cause = reason.exc if isinstance(reason, Retry) else None
        if isinstance(cause, LockHeld):
            self.count("rescheduled", task.name, "conflict")
        elif isinstance(cause, QuorumUnavailable):
            self.count("rescheduled", task.name, "unavailable")

    def _checked(self, _app: Celery, votes: int, nodes: int, needed: int, **_: Any) -> None:
        self.set_votes(votes, nodes, needed)

    def _ticked(self, _sender: None, entry: Any, outcome: str, **_: Any) -> None:
        self.count("ticks", str(entry.task), outcome)
