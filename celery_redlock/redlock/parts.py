"""The parts of a lock, connected: nodes, pools of connections, operations, the keeper."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Sequence

from celery_redlock.redlock.protocol.quorum import guard_s, majority
from celery_redlock.redlock.protocol.run_notes import Admission
from celery_redlock.redlock.transport.channel import Channel
from celery_redlock.redlock.transport.node import Node
from celery_redlock.redlock.transport.pool import Pool
from celery_redlock.redlock.transport.subscriptions import Subscriptions

from .access import Access
from .acquisition import Acquisition
from .clock import Clock, SystemClock
from .defaults import (
    IDLE_TIMEOUT_S,
    KEY_PREFIX,
    MAX_CLOCK_SKEW_S,
    MAX_CONNECTIONS,
    MAX_TTL_S,
    NODE_TIMEOUT_S,
)
from .events import Event, Lost, Observer, log_event, notify
from .extension import Extension
from .inspection import Inspection
from .keeper import Keeper
from .lease import Lease
from .release import BackgroundRelease, Release
from .rounds import Rounds
from .threads import dispatch
from .validation import address_of, check_count, check_nodes, check_seconds
from .waiters import Waiters


class Parts:
    """Base of `Redlock`, which describes the arguments: everything but its verbs."""

    def __init__(  # noqa: PLR0913  # all but the first are optional
        self,
        nodes: Sequence[str],
        *,
        node_timeout: float = NODE_TIMEOUT_S,
        max_ttl: float = MAX_TTL_S,
        max_clock_skew: float = MAX_CLOCK_SKEW_S,
        restart_guard: bool | None = None,
        key_prefix: str = KEY_PREFIX,
        floor_ttl: float = 3600.0,
        idle_timeout: float = IDLE_TIMEOUT_S,
        max_connections: int = MAX_CONNECTIONS,
        observers: Sequence[Observer] = (),
        clock: Clock | None = None,
    ) -> None:
        urls = check_nodes(nodes)
        check_seconds("node_timeout", node_timeout, above_zero=True)
        check_seconds("max_ttl", max_ttl, above_zero=True)
        check_seconds("max_clock_skew", max_clock_skew)
        check_seconds("floor_ttl", floor_ttl, above_zero=True)
        check_seconds("idle_timeout", idle_timeout, above_zero=True, endless=True)
        check_count("max_connections", max_connections)
        self.max_ttl = max_ttl
        self.key_prefix = key_prefix
        self.clock = clock or SystemClock()
        self.log: Observer = log_event
        self.observers: list[Observer] = [*observers]
        self.quorum = majority(len(urls))
        rounds = Rounds(
            key_prefix,
            round(max_clock_skew * 1e6),
            math.ceil(max(floor_ttl, max_clock_skew) * 1000),
        )
        is_guarded = len(urls) > 1 if restart_guard is None else restart_guard
        guard = guard_s(max_ttl, max_clock_skew) if is_guarded else 0.0
        # It has granted no lock before, but a token may be ahead of its clock.
        admitted = guard_s(0.0, max_clock_skew)
        connect_timeout = max(1.0, 4 * node_timeout)
        addresses = tuple(map(address_of, urls))
        self.nodes = tuple(
            Node(
                url, self.clock, connect_timeout, guard, self._observe, admitted,
                Admission(key_prefix, addresses, address, guard),
            )
            for url, address in zip(urls, addresses, strict=True)
        )  # fmt: skip
        for node in self.nodes:
            node.peers = self.nodes
        self._pool = Pool(
            lambda: Channel(self.nodes, self.clock, node_timeout, connect_timeout),
            max_connections,
            connect_timeout,
            self.clock.sleep,
        )
        self._idle_timeout = idle_timeout
        # The keeper's connections are its own: gevent binds a connection to the thread it is from.
        self._keepers_pool = Pool(self._pool.make)
        access = Access(self.nodes, self._pool, rounds, self.clock, node_timeout)
        keepers = access._replace(pool=self._keepers_pool)
        self.keeper = Keeper(
            self.clock,
            Extension(keepers).extend_batch,
            self._lose,
            prepare=self._keepers_pool.prepare,
            release=BackgroundRelease(keepers).make_all,
            tidy=self._tidy,
        )
        self._waiters = Waiters(
            self.clock,
            self.quorum,
            lambda: Subscriptions(self.nodes, self.clock, node_timeout, connect_timeout),
        )
        self._extension = Extension(access)
        self._acquisition = Acquisition(
            access, self.keeper, self._observe, self._extension.verify, self._waiters
        )
        self._release = Release(access, self.keeper, self._observe, self._waiters)
        self._inspection = Inspection(access)
        _instances.add(self)

    def _close(self) -> None:
        self.keeper.stop()
        self._waiters.close()
        self._pool.close()
        self._keepers_pool.close()

    def after_fork(self) -> None:
        """Forget the parent's connections and leases, in a forked child."""
        self._pool.forget()
        self._keepers_pool.forget()
        self._waiters.forget()
        self.keeper.forget_all()

    def _tidy(self, has_leases: bool) -> bool:  # noqa: FBT001  # the keeper's one argument
        """On the keeper's thread: close unused connections; return whether any are left."""
        if math.isinf(self._idle_timeout):
            return False
        if not has_leases:
            # While there are leases, it is better to have a connection when one is due.
            self._keepers_pool.close_unused(self._idle_timeout)
        dispatch.run_in_origin_thread(self._pool.close_unused, self._idle_timeout)
        return self._pool.has_channels() or self._keepers_pool.has_channels()

    def _lose(self, lease: Lease) -> None:
        lease.is_lost = True
        self._observe(Lost(lease, "it was not renewed in time"))

    def _observe(self, event: Event) -> None:
        # Not as an observer: an error that a time limit raises in one is taken for the observer's.
        dispatch.run_in_origin_thread(self.log, event)
        if self.observers:
            dispatch.run_in_origin_thread(notify, self.observers, event)


_instances: weakref.WeakSet[Parts] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for parts in list(_instances):
        parts.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
