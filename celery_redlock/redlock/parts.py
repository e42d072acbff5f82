"""The parts of a lock, connected: nodes, pools of connections, operations, the keeper."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Sequence
from functools import partial

from celery_redlock.redlock.protocol.quorum import guard_s, majority
from celery_redlock.redlock.protocol.run_notes import Admission
from celery_redlock.redlock.transport.channel import Channel
from celery_redlock.redlock.transport.node import Node
from celery_redlock.redlock.transport.pool import Pool
from celery_redlock.redlock.transport.subscriptions import Subscriptions

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
from .events import Event, Lost, Observer, is_logged, log_event, notify
from .extension import Extension
from .inspection import Inspection
from .keeper import Keeper
from .lease import Lease, why_lost
from .release import Release, ReleaseRound
from .threads import callbacks, dispatch
from .validation import (
    LONGEST_S,
    address_of,
    check_clock,
    check_count,
    check_flag,
    check_nodes,
    check_observers,
    check_prefix,
    check_seconds,
)
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
        self._arguments = {name: value for name, value in locals().items() if name != "self"}
        # Of its own: a list that changes later would make a lock with another quorum.
        self._arguments["nodes"] = urls = check_nodes(nodes)
        self._arguments["key_prefix"] = key_prefix = check_prefix(key_prefix)
        check_seconds("node_timeout", node_timeout, above_zero=True, longest=LONGEST_S)
        check_seconds("max_ttl", max_ttl, above_zero=True, longest=LONGEST_S)
        check_seconds("max_clock_skew", max_clock_skew, longest=LONGEST_S)
        check_seconds("floor_ttl", floor_ttl, above_zero=True, longest=LONGEST_S)
        check_seconds("idle_timeout", idle_timeout, above_zero=True, endless=True)
        check_count("max_connections", max_connections)
        check_observers(observers)
        if restart_guard is not None:
            check_flag("restart_guard", restart_guard)
        self.clock = SystemClock() if clock is None else clock
        check_clock(self.clock)
        self.max_ttl = max_ttl
        self.key_prefix = key_prefix
        self._audience = audience = _Audience(observers)
        self.quorum = majority(len(urls))
        is_guarded = len(urls) > 1 if restart_guard is None else restart_guard
        guard = guard_s(max_ttl, max_clock_skew) if is_guarded else 0.0
        # It has granted no lock before, but a token may be ahead of its clock.
        admitted = guard_s(0.0, max_clock_skew)
        connect_timeout = max(1.0, 4 * node_timeout)
        addresses = tuple(map(address_of, urls))
        self.nodes = nodes_ = tuple(
            Node(
                url, self.clock, connect_timeout, guard, audience.observe, admitted,
                Admission(key_prefix, addresses, address, guard),
            )
            for url, address in zip(urls, addresses, strict=True)
        )  # fmt: skip
        for node in nodes_:
            node.peers = nodes_
        at = self.clock
        # Nothing below may refer to `self`: the keeper's thread would keep a lock that nobody uses
        # any more from being collected.
        self._pool = pool = Pool(
            lambda: Channel(nodes_, at, node_timeout, connect_timeout),
            max_connections,
            connect_timeout,
            self.clock.sleep,
        )
        # The keeper's connections are its own: gevent binds a connection to the thread it is from.
        self._keepers_pool = keepers_pool = Pool(pool.make)
        skew_us, floor_ttl_ms = max_clock_skew * 1e6, max(floor_ttl, max_clock_skew) * 1000
        rest = (at, node_timeout, key_prefix, round(skew_us), math.ceil(floor_ttl_ms))
        access, keepers = (nodes_, pool, *rest), (nodes_, keepers_pool, *rest)
        self.keeper = Keeper(
            self.clock,
            Extension(*keepers).extend_batch,
            audience.lose,
            prepare=keepers_pool.prepare,
            release=ReleaseRound(*keepers).make_all,
            tidy=partial(_tidy, weakref.ref(self), pool, keepers_pool, idle_timeout),
        )
        self._waiters = Waiters(
            self.clock,
            self.quorum,
            lambda: Subscriptions(nodes_, at, node_timeout, connect_timeout),
        )
        # By weak references, since an observer may refer to the lock.
        threads = weakref.ref(self.keeper), weakref.ref(self._waiters)
        weakref.finalize(self, _end_threads, *threads).atexit = False
        self._extension = Extension(*access, self.keeper.lose)
        self._acquisition = Acquisition(
            *access, self.keeper, audience.observe, self._extension.verify, self._waiters
        )
        self._release = Release(*access, self.keeper, audience.observe, self._waiters)
        self._inspection = Inspection(*access)
        _instances.add(self)

    def _close(self) -> None:
        self.keeper.stop()
        self._waiters.close()
        self._pool.close()
        self._keepers_pool.close()

    def __reduce__(self) -> tuple[Callable[[], Parts], tuple[()]]:
        """Return how to make a lock from the same arguments: for copies and other processes."""
        return partial(type(self), **self._arguments | {"observers": self.observers}), ()

    def after_fork(self) -> None:
        """Forget the parent's connections and leases, in a forked child."""
        for node in self.nodes:
            node.forget_attempts()
        self._pool.forget()
        self._keepers_pool.forget()
        self._waiters.forget()
        self.keeper.forget_all()

    @property
    def log(self) -> Observer:
        """Observer that writes the log."""
        return self._audience.log

    @log.setter
    def log(self, log: Observer) -> None:
        self._audience.log = log

    @property
    def observers(self) -> list[Observer]:
        """Observers of every event."""
        return self._audience.observers


class _Audience:
    """Log and observers of a lock, which are told of events as long as its parts are at work."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.log: Observer = log_event
        self.observers: list[Observer] = [*observers]

    def lose(self, lease: Lease) -> None:
        """Mark a lease as lost, and tell of it."""
        lease.backing.is_lost = True
        self.observe(Lost(lease, why_lost(lease)))

    def observe(self, event: Event) -> None:
        """Tell of an event."""
        # The log is not among the observers: an error that a time limit raises in an observer is
        # taken for the observer's own.
        if is_logged(event):
            callbacks.tell(self.log, event)
        if self.observers:
            callbacks.tell(notify, self.observers, event)


def _tidy(
    user: weakref.ref[Parts],
    pool: Pool,
    keepers_pool: Pool,
    idle_timeout: float,
    has_leases: bool,  # noqa: FBT001  # the keeper's one argument
) -> bool:
    """On the keeper's thread: close unused connections; return whether any are left.

    If the lock was collected, unclosed, all that are idle are unused.
    """
    if user() is None:
        idle_timeout = 0.0
    if math.isinf(idle_timeout):
        return False
    if not has_leases:
        # While there are leases, it is better to have a connection when one is due.
        keepers_pool.close_unused(idle_timeout)
    dispatch.run_in_origin_thread(pool.close_unused, idle_timeout)
    return pool.has_channels() or keepers_pool.has_channels()


def _end_threads(keeper: weakref.ref[Keeper], waiters: weakref.ref[Waiters]) -> None:
    """End the threads of a lock that was collected, unclosed; one that runs refers to its own."""
    if keeping := keeper():
        keeping.end_when_idle()
    if waiting := waiters():
        waiting.close()


_instances: weakref.WeakSet[Parts] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    dispatch.after_fork()
    for parts in list(_instances):
        parts.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
