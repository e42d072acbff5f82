"""Target of a command: the nodes, their settings, and the app if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from celery_redlock.redlock.defaults import (
    KEY_PREFIX,
    MAX_CLOCK_SKEW_S,
    MAX_TTL_S,
    NODE_TIMEOUT_S,
)
from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.redlock.events import log_event_of_leases
from celery_redlock.redlock.inspection import Judgement
from celery_redlock.redlock.protocol.quorum import guard_s, majority
from celery_redlock.redlock.task_lock import TaskLock

from .node_set import NodeSet


@dataclass(frozen=True, slots=True)
class Target:
    """Nodes that a command is about, with the settings of the lock. Times are in seconds.

    Attributes:
        urls: URLs of the nodes, as configured: their number may be even.
        key_prefix: Start of every key.
        node_timeout: Longest wait for a node in one round.
        max_ttl: Longest ttl of a lease.
        max_clock_skew: Largest error of a wall clock that does no harm to tokens.
        restart_guard: Whether a restarted node waits before it votes; None: with 3 nodes and more.
        shows_arguments: Whether the arguments of calls may be shown.
        app: The app, or None for a command without one.
    """

    urls: Sequence[str] = field(repr=False)
    key_prefix: str = KEY_PREFIX
    node_timeout: float = NODE_TIMEOUT_S
    max_ttl: float = MAX_TTL_S
    max_clock_skew: float = MAX_CLOCK_SKEW_S
    restart_guard: bool | None = None
    shows_arguments: bool = False
    app: Any = None

    @property
    def quorum(self) -> int:
        """Number of nodes that are needed."""
        return majority(len(self.urls))

    @property
    def guard(self) -> float:
        """Restart guard of each node, seconds; 0.0: off."""
        is_guarded = len(self.urls) > 1 if self.restart_guard is None else self.restart_guard
        return guard_s(self.max_ttl, self.max_clock_skew) if is_guarded else 0.0

    @property
    def patience(self) -> float:
        """Longest wait for a node, seconds: as long as the lock waits for a connection."""
        return max(1.0, 4 * self.node_timeout)

    @property
    def is_switched_off(self) -> bool:
        """Whether the app runs its tasks without locks."""
        from celery_redlock.config.app_lock import is_enabled  # noqa: PLC0415  # imports Celery

        return self.app is not None and not is_enabled(self.app)

    def nodes(self) -> NodeSet:
        """Return connections to the nodes, opened and closed by ``with``.

        Raises:
            ConfigurationError: A URL is not valid.
        """
        return NodeSet(self.urls, self.patience)

    def judge(self) -> list[Judgement]:
        """Return the judgement of each node by a lock with these settings, as a worker's is.

        Raises:
            ConfigurationError: Their number is even, or a node is named twice.
        """
        with self.redlock(self.node_timeout) as redlock:
            # Its events are the judgement's, and the caller tells of that.
            redlock.log = log_event_of_leases
            return redlock.judge()

    def redlock(self, node_timeout: float) -> closing[TaskLock]:
        """Return a lock on the nodes, closed at the end of a ``with`` block.

        Raises:
            ConfigurationError: The nodes can't be used.
        """
        return closing(
            TaskLock(
                self.urls,
                node_timeout=node_timeout,
                max_ttl=self.max_ttl,
                max_clock_skew=self.max_clock_skew,
                restart_guard=self.restart_guard,
                key_prefix=self.key_prefix,
            )
        )


def target_of_app(app: Any) -> Target:
    """Return the nodes and settings of an app.

    Raises:
        ConfigurationError: The settings can't be used, or name no node.
    """
    from celery_redlock.config.settings import settings_from  # noqa: PLC0415  # imports Celery

    settings = settings_from(app.conf)
    if not settings.nodes:
        raise ConfigurationError("redlock_nodes is not set, and redlock_enabled is False")
    return Target(
        settings.nodes, settings.key_prefix, settings.node_timeout, settings.max_ttl,
        settings.max_clock_skew, settings.restart_guard, settings.show_arguments, app,
    )  # fmt: skip
