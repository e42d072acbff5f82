"""The lock: acquire, extend, release. Start reading here.

Next comes `acquisition`, the algorithm, then `extension` and `release`. `protocol.quorum` decides,
`rounds` sends each request to the nodes, `transport.channel` carries it.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from celery_redlock.redlock.protocol.quorum import guard_s, majority
from celery_redlock.redlock.transport.channel import Channel
from celery_redlock.redlock.transport.node import Node
from celery_redlock.redlock.transport.pool import Pool
from celery_redlock.redlock.transport.subscriptions import Subscriptions

from .access import Access
from .acquisition import Acquisition, OnAttempt
from .clock import Clock, SystemClock
from .defaults import (
    IDLE_TIMEOUT_S,
    KEY_PREFIX,
    MAX_CLOCK_SKEW_S,
    MAX_CONNECTIONS,
    MAX_TTL_S,
    NODE_TIMEOUT_S,
    TTL_S,
)
from .errors import LockHeld, QuorumUnavailable, RedlockError
from .events import Event, Lost, Observer, log_event, notify
from .extension import Extension
from .hold import Hold
from .inspection import Inspection
from .keeper import Keeper
from .lease import Lease
from .release import DONE_S, BackgroundRelease, Release
from .rounds import Attempt, Rounds
from .threads import dispatch
from .validation import check_count, check_key, check_nodes, check_seconds, lease_ttl_ms
from .waiters import OnWait, Waiters

DAY_S = 86_400.0


class Redlock:
    """A lock on a quorum of independent Redis masters, with a fencing token.

    Usable from any number of threads, and after a fork.

    Args:
        nodes: URLs of 1, 3, 5 … masters without replication between them.
        node_timeout: Longest wait for a node in one round, seconds > 0.
        max_ttl: Longest ttl of a lease, seconds > 0; the restart guard lasts at least as long.
        max_clock_skew: Largest error or step of a wall clock that does no harm to tokens, seconds
            >= 0. A lock still ends early on a node whose clock is stepped forward.
        restart_guard: Whether a restarted node waits before it votes. None: only with 3 nodes or
            more.
        key_prefix: Start of every key on the nodes.
        floor_ttl: Time for which a node remembers a lock's highest token after its last lease,
            seconds > 0; at least `max_clock_skew`.
        idle_timeout: Time after which unused connections are closed, seconds > 0; `math.inf`:
            never.
        max_connections: Most connections of this process to each node, for any number of threads,
            >= 1. One more renews leases, and one listens while threads wait for a lock. When all
            are in use, a thread waits for one, up to a second or the rest of its own wait.
        observers: Called with every event: see `events`.
        clock: Source of time; None: the machine's clocks.

    Raises:
        ConfigurationError: The number of nodes is even, a node is named twice, or a URL or a value
            is out of range.
    """

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
        connect_timeout = max(1.0, 4 * node_timeout)
        self.nodes = tuple(
            Node(url, self.clock, connect_timeout, guard, self._observe) for url in urls
        )
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

    def __repr__(self) -> str:
        return f"Redlock({[node.name for node in self.nodes]!r}, key_prefix={self.key_prefix!r})"

    # ---- acquire

    def acquire(
        self,
        key: str,
        ttl: float = TTL_S,
        *,
        wait: float | None = None,
        label: str | None = None,
        publication: str = "",
        supersedes: str | None = None,
        unless_done: str | None = None,
        on_attempt: OnAttempt | None = None,
        on_wait: OnWait | None = None,
    ) -> Lease:
        """Return a lease on `key`, held by a majority of the nodes. Only `lock` renews one.

        An exception that interrupts this call, as a time limit does, leaves no lock behind. The one
        exception to that: if it strikes as the call returns, the lock stays until its ttl is over.

        Args:
            key: Key of the lock.
            ttl: Time after which the lock expires unless it is extended, seconds, <= `max_ttl`.
            wait: Longest time to try while others hold the lock or nodes are down, seconds. None
                or 0: one attempt; `math.inf`: no limit.
            label: Holder, as people and tools see it, for instance a task's id. None: this process.
            publication: Distinguishes holders with the same label: see `new_owner`.
            supersedes: Owner of a lock that may be replaced, for instance a reservation.
            unless_done: Label whose done mark ends the attempt.
            on_attempt: Called with the owner of each attempt before it is sent to any node. An
                exception that it raises ends the wait; earlier attempts leave nothing behind.
            on_wait: Called about once a second between attempts. An exception that it raises ends
                the wait.

        Raises:
            LockHeld: Others hold the lock on so many nodes that no majority is left.
            QuorumUnavailable: Fewer nodes than a quorum could answer.
            AlreadyDone: There is a done mark for `unless_done`.
            ConfigurationError: `key` or `ttl` is not valid, or a node is not an independent master.
        """
        check_key(key)
        attempt = Attempt(
            key, "", lease_ttl_ms(key, ttl, self.max_ttl), supersedes or "", unless_done or "",
            publication=publication,
        )  # fmt: skip
        if wait is not None:
            check_seconds("wait", wait, endless=True)
        lease = self._acquisition.win(attempt, label, wait or 0.0, on_attempt, on_wait)
        self._settle(lease)
        return lease

    def reserve(
        self,
        key: str,
        ttl: float,
        *,
        label: str | None = None,
        publication: str = "",
        supersedes: str | None = None,
        owner: str | None = None,
        highest_floor: int = 0,
        on_attempt: OnAttempt | None = None,
    ) -> Lease:
        """Return a reservation: a lease for a message that waits, never renewed.

        Nothing runs under it, so its ttl may exceed `max_ttl`. Its token is 0 unless it supersedes
        another owner.

        Args:
            key: Key of the lock.
            ttl: Time after which the reservation expires, seconds > 0.
            label: As in `acquire`.
            publication: As in `acquire`.
            supersedes: As in `acquire`.
            owner: Owner to use, for one attempt only. None: a fresh one.
            highest_floor: Token of the lease that hands over. A node with a higher floor has served
                another owner since, and refuses. 0: no node refuses.
            on_attempt: As in `acquire`.

        Raises:
            LockHeld, QuorumUnavailable, ConfigurationError: As in `acquire`.
        """
        check_key(key)
        check_seconds("ttl", ttl, above_zero=True)
        ttl_ms = math.ceil(ttl * 1000)
        attempt = Attempt(
            key, owner or "", ttl_ms, supersedes or "", highest_floor=highest_floor,
            is_reservation=True, publication=publication,
        )  # fmt: skip
        lease = self._acquisition.win(attempt, label, 0.0, on_attempt)
        self._settle(lease)
        return lease

    def _settle(self, lease: Lease) -> None:
        try:
            self._acquisition.settle(lease)
        except QuorumUnavailable:
            # The keeper's releases may overtake a grant that a slow node has not read yet: one more
            # follows the grant on the same connection.
            with suppress(QuorumUnavailable):
                self.release(lease)
            raise

    # ---- extend

    def extend(self, lease: Lease) -> None:
        """Renew `lease` for its whole ttl from now; past its `hold_until` only confirm it.

        The nodes have a quarter of its remaining time to answer.

        Raises:
            LeaseLost: The deadline has passed, or a majority has granted the lock to others since.
            QuorumUnavailable: No majority answered. The lease is valid until its deadline.
            ConfigurationError: The lease is a reservation.
        """
        self._extension.extend(lease)

    def extend_all(self, leases: Sequence[Lease]) -> list[RedlockError | None]:
        """Renew leases with one write per node; return None or the error of each."""
        return self._extension.extend_all(leases)

    def _lose(self, lease: Lease) -> None:
        lease.is_lost = True
        self._observe(Lost(lease, "it was not renewed in time"))

    # ---- release

    def release(
        self,
        lease: Lease,
        *,
        keep: float = 0.0,
        done: str | None = None,
        done_ttl: float = DONE_S,
    ) -> None:
        """Release `lease`: others can acquire the lock as soon as this returns. May be repeated.

        Args:
            lease: The lease. If it was lost, its successor is not touched.
            keep: Time for which the key stays on the nodes, seconds >= 0.
            done: Label to write a done mark for.
            done_ttl: Expiry of that mark, seconds.

        Raises:
            QuorumUnavailable: No majority confirmed. The keeper retries until a majority confirms
                or the lease's ttl is over.
        """
        check_seconds("keep", keep)
        self._release.release(lease, keep, done, done_ttl)

    def mark_done(self, key: str, label: str) -> None:
        """Write a done mark for `label` under `key`, or renew the one that is there.

        Raises:
            QuorumUnavailable: No majority confirmed.
            ConfigurationError: `key` is not valid.
        """
        check_key(key)
        self._release.mark_done(key, label)

    def look(self, key: str) -> LockHeld | None:
        """Return the holder of `key`, as the error that an attempt would get; None: it is free.

        `contended` is True if the holder has no majority of the nodes.

        Raises:
            QuorumUnavailable: Fewer nodes than a quorum could answer.
        """
        return self._inspection.look(key)

    def drop(self, key: str, owner: str) -> bool:
        """Release `key` if `owner` holds it; the lock of another owner is not touched.

        Returns:
            Whether `owner` held it on any node that answered in time.

        Raises:
            QuorumUnavailable: No majority confirmed.
            ConfigurationError: `key` is not valid.
        """
        check_key(key)
        return self._release.drop(key, owner)

    # ---- hold

    def lock(
        self,
        key: str,
        ttl: float = TTL_S,
        *,
        wait: float | None = None,
        max_hold: float = DAY_S,
        label: str | None = None,
    ) -> Hold:
        """Hold `key` for the length of a ``with`` block: renewed inside, released on leaving.

        Args:
            key: Key of the lock.
            ttl: Time for which the lock outlives a process that dies, seconds, <= `max_ttl`.
            wait: Longest time to try, seconds: see `acquire`.
            max_hold: Time after which the lease is not renewed any more, seconds.
            label: Holder, as people and tools see it.

        Returns:
            A context manager; ``as`` gives the `Lease`. An exception may strike anywhere: the
            keeper then releases the lock in the background.

        Raises:
            LockHeld, QuorumUnavailable, ConfigurationError: As in `acquire`, on entering the block.
        """
        check_seconds("max_hold", max_hold, endless=True)
        if wait is not None:
            check_seconds("wait", wait, endless=True)
        check_key(key)
        attempt = Attempt(key, "", lease_ttl_ms(key, ttl, self.max_ttl))
        acquire = partial(self._acquisition.win, attempt, label, wait or 0.0)
        return Hold(acquire, self._settle, self.release, self.keeper, max_hold)

    def check(self) -> dict[str, str]:
        """Connect to every node and write to it; return, by node, the reason why one does not vote.

        A lock is written under this prefix, and released at once. Nodes that don't vote are down,
        or refuse to write (memory, replicas or access rights), or wait for their restart guard.

        Raises:
            ConfigurationError: A node is not an independent master.
        """
        return self._inspection.check()

    def clock_offsets(self) -> dict[str, float]:
        """Return, by node, how far this process's wall clock is ahead of it, in seconds.

        Nodes that don't answer are left out.
        """
        return self._inspection.clock_offsets()

    def close(self) -> None:
        """Stop renewing and close the connections. Leases end with their ttl."""
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

    def _observe(self, event: Event) -> None:
        # Not as an observer: an error that a time limit raises in one is taken for the observer's.
        dispatch.run_in_origin_thread(self.log, event)
        if self.observers:
            dispatch.run_in_origin_thread(notify, self.observers, event)


_instances: weakref.WeakSet[Redlock] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for redlock in list(_instances):
        redlock.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
