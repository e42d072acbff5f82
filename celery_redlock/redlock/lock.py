"""The lock: acquire, extend, release. Read this page first.

Then `acquisition`: the algorithm. `quorum` decides, `rounds` says what is asked of the nodes,
`channel` carries it.
"""

from __future__ import annotations

import logging
import math
import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from . import home
from .acquisition import Acquisition, refuse_misconfigured
from .channel import Channel
from .checks import SHORTEST_TTL_S, check_nodes, check_seconds
from .clock import Clock, SystemClock
from .errors import (
    ConfigurationError,
    LeaseLost,
    QuorumUnavailable,
    RedlockError,
)
from .events import Event, Lost, Observer, Released, log_event, notify
from .keeper import Keeper
from .lease import Lease
from .node import Node
from .pool import Pool
from .quorum import (
    Acknowledged,
    ExtendReply,
    Verdict,
    acknowledged,
    extend_verdict,
    guard_s,
    majority,
    validity_ms,
)
from .rounds import Attempt, Rounds, unavailable

logger = logging.getLogger(__name__)
DAY_S = 86_400.0
DONE_S = 3600.0
"""How long a done mark lasts, unless it is told otherwise."""
_BATCH = 256


class Redlock:
    """A lock on a quorum of independent Redis masters, with a fencing token.

    Usable from any number of threads, and after a fork.

    Args:
        nodes: URLs of 1, 3, 5 … masters without replication between them.
        node_timeout: Longest wait for a node in one round, seconds > 0.
        max_ttl: Longest ttl any lease may ask for, seconds; sets the restart guard.
        max_clock_skew: By how much a node's wall clock may be stepped, seconds >= 0.
        restart_guard: Whether a node that was started lately must wait before it votes.
            None: yes with 3 nodes and more, no with one.
        key_prefix: What every key on the nodes starts with.
        floor_ttl: How long a node remembers the highest token of a lock after its last lease, s.
        observers: Called with every event (see `events`).
        clock: Time; None for the machine's.

    Raises:
        ConfigurationError: No nodes, an even number, one twice, or a URL or value out of range.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        *,
        node_timeout: float = 0.05,
        max_ttl: float = 60.0,
        max_clock_skew: float = 1.0,
        restart_guard: bool | None = None,
        key_prefix: str = "redlock",
        floor_ttl: float = 3600.0,
        observers: Sequence[Observer] = (),
        clock: Clock | None = None,
    ) -> None:
        urls = check_nodes(nodes)
        check_seconds("node_timeout", node_timeout, above_zero=True)
        check_seconds("max_ttl", max_ttl, above_zero=True)
        check_seconds("max_clock_skew", max_clock_skew)
        check_seconds("floor_ttl", floor_ttl, above_zero=True)
        self.max_ttl = max_ttl
        self.key_prefix = key_prefix
        self.clock = clock or SystemClock()
        self.observers: list[Observer] = [log_event, *observers]
        self.quorum = majority(len(urls))
        self._rounds = Rounds(key_prefix, round(max_clock_skew * 1e6), math.ceil(floor_ttl * 1000))
        is_guarded = len(urls) > 1 if restart_guard is None else restart_guard
        guard = guard_s(max_ttl, max_clock_skew) if is_guarded else 0.0
        connect_timeout = max(1.0, 4 * node_timeout)
        self.nodes = tuple(
            Node(url, self.clock, connect_timeout, guard, self._observe) for url in urls
        )
        for node in self.nodes:
            node.peers = self.nodes
        self._node_timeout = node_timeout
        self._pool = Pool(
            lambda: Channel(self.nodes, self.clock, node_timeout, connect_timeout),
            self.clock.sleep,
        )
        self._acquisition = Acquisition(
            self.nodes, self._pool, self._rounds, self.clock, self._observe, self._verify
        )
        # Of its own: under gevent a connection belongs to the thread that made it.
        self._keepers_pool = Pool(self._pool.make)
        self.keeper = Keeper(
            self.clock, self._extend_kept, self._lose, prepare=self._keepers_pool.prepare
        )
        _instances.add(self)

    def __repr__(self) -> str:
        return f"Redlock({[node.name for node in self.nodes]!r}, key_prefix={self.key_prefix!r})"

    # ---- acquire

    def acquire(
        self,
        key: str,
        ttl: float = 30.0,
        *,
        wait: float | None = None,
        label: str | None = None,
        supersedes: str | None = None,
        unless_done: str | None = None,
    ) -> Lease:
        """Return a lease on `key`, held by a majority of the nodes. It is not renewed: see `lock`.

        Args:
            key: Name of the lock.
            ttl: How long it is held unless it is extended, seconds, at most `max_ttl`.
            wait: How long to try while others hold it or nodes are missing, seconds; None or 0:
                one attempt; `math.inf`: until it is had.
            label: Who asks, for people and tools: a task's id. None: this process.
            supersedes: An owner whose hold may be taken over: a reservation, or one's own.
            unless_done: A label whose done mark ends the attempt.

        Raises:
            LockHeld: A majority can't be had because others hold it.
            QuorumUnavailable: Fewer nodes than a quorum could answer.
            AlreadyDone: `unless_done` has left its done mark.
            ConfigurationError: `ttl` is out of range, or a node is not an independent master.
        """
        attempt = Attempt(key, "", self._ttl_ms(key, ttl), supersedes or "", unless_done or "")
        if wait is not None:
            check_seconds("wait", wait, endless=True)
        return self._acquisition.win(attempt, label, wait or 0.0)

    def reserve(
        self,
        key: str,
        ttl: float,
        *,
        label: str | None = None,
        supersedes: str | None = None,
        owner: str | None = None,
        highest_floor: int = 0,
    ) -> Lease:
        """Return a lease that only saves work: nothing runs under it, so it may exceed `max_ttl`.

        It has no token (0) unless it supersedes somebody, and is never renewed.

        Args:
            key: Name of the lock.
            ttl: How long it is held, seconds.
            label: Who asks, for people and tools: a task's id. None: this process.
            supersedes: An owner whose hold may be taken over.
            owner: The owner to be, if somebody has been told of it already; used only once.
            highest_floor: The token of the lease that hands over. A node whose floor is higher has
                served somebody since, and refuses. 0: none does.

        Raises:
            LockHeld, QuorumUnavailable, ConfigurationError: as `acquire`.
        """
        check_seconds("ttl", ttl, above_zero=True)
        ttl_ms = math.ceil(ttl * 1000)
        attempt = Attempt(
            key, owner or "", ttl_ms, supersedes or "", highest_floor=highest_floor,
            is_reservation=True,
        )  # fmt: skip
        return self._acquisition.win(attempt, label, 0.0)

    # ---- extend

    def extend(self, lease: Lease) -> None:
        """Renew `lease` for its whole ttl, counted from now.

        Raises:
            LeaseLost: It is over: its deadline has passed, or a majority has moved on.
            QuorumUnavailable: No majority answered; it still stands until its deadline.
            ConfigurationError: It is a reservation.
        """
        [outcome] = self.extend_all([lease])
        if outcome:
            raise outcome

    def extend_all(self, leases: Sequence[Lease]) -> list[RedlockError | None]:
        """Renew many leases with one write a node; return, for each, None or why not."""
        return self._extend_with(self._pool, leases)

    def _extend_kept(self, leases: Sequence[Lease]) -> None:
        self._extend_with(self._keepers_pool, leases)

    def _extend_with(self, pool: Pool, leases: Sequence[Lease]) -> list[RedlockError | None]:
        # What is over is not asked for: it would be held against others for another ttl.
        standing = [lease for lease in leases if self._why_not(lease) is None]
        outcomes: dict[Lease, RedlockError | None] = {}
        for begin in range(0, len(standing), _BATCH):
            batch = standing[begin : begin + _BATCH]
            with pool.channel(batch[0].channel) as channel:
                started = self.clock.now()
                replies = self._rounds.extend(channel, batch)
            for lease, its_replies in zip(batch, replies, strict=True):
                outcomes[lease] = self._extended(lease, its_replies, started)
        return [outcomes.get(lease) or self._why_not(lease) for lease in leases]

    def _extended(
        self, lease: Lease, replies: Sequence[ExtendReply | None], started: float
    ) -> RedlockError | None:
        verdict = extend_verdict(replies)
        if verdict is Verdict.LOST and self._why_not(lease) is None:
            lease.is_lost = True
        if over := self._why_not(lease):
            return over
        if verdict is not Verdict.WON:
            return unavailable("extend", lease.key, replies, self.nodes, "it had lost the key")
        lease.deadline = max(lease.deadline, started + validity_ms(lease.ttl_ms, 0.0) / 1000)
        if lease.on_extended:
            lease.on_extended(lease)
        return None

    @staticmethod
    def _why_not(lease: Lease) -> RedlockError | None:
        if not lease.token:
            return ConfigurationError(
                f"cannot extend {lease.key!r}: it is reserved, which is never renewed; "
                "reserve it for longer"
            )
        # First: a look at it may show that another process has given it back.
        is_lost = lease.lost
        if lease.is_released:
            return LeaseLost(lease.key, "it was released")
        if is_lost:
            # For good: whoever was told that it is lost must not see it come back.
            lease.is_lost = True
            return LeaseLost(lease.key)
        return None

    def _verify(self, lease: Lease) -> None:
        try:
            self.extend(lease)
        except QuorumUnavailable as error:
            raise LeaseLost(lease.key, f"no quorum confirms it ({error})") from error

    def _lose(self, lease: Lease) -> None:
        lease.is_lost = True
        self._observe(Lost(lease, "it was not renewed in time"))
        if lease.on_lost:
            lease.on_lost(lease)

    # ---- release

    def release(
        self,
        lease: Lease,
        *,
        keep: float = 0.0,
        done: str | None = None,
        done_ttl: float = DONE_S,
    ) -> None:
        """Give `lease` back. Others can have the lock when this returns. May be repeated.

        Args:
            lease: The lease; one that was lost does no harm to whoever holds the lock by now.
            keep: Hold the key on the nodes for this much longer, seconds.
            done: A label to leave a done mark for.
            done_ttl: How long that mark lasts, seconds.

        Raises:
            QuorumUnavailable: Less than a majority confirmed; where it still stands, it ends with
                its ttl.
        """
        check_seconds("keep", keep)
        self.keeper.forget(lease)
        lease.is_released = True
        give_up_at = self.clock.now() + self._node_timeout

        def is_bound() -> bool:
            # On another connection the release could overtake a grant that is under way to a slow
            # node; that would stand there until its ttl.
            is_late = lease.is_granted_late is not None and lease.is_granted_late()
            return is_late and self.clock.now() < give_up_at

        with self._pool.channel(lease.channel, is_bound) as channel:
            acks = self._rounds.release(
                channel, lease, round(keep * 1000), done, round(done_ttl * 1000)
            )
        self._observe(Released(lease, self.clock.now() - lease.acquired_at))
        if acknowledged(acks) < self.quorum:
            raise unavailable("release", lease.key, acks, self.nodes)

    def mark_done(self, key: str, label: str) -> None:
        """Leave a done mark for `label` under `key`, or make the one there is last.

        Raises:
            QuorumUnavailable: Less than a majority confirmed.
        """
        with self._pool.channel() as channel:
            acks = self._rounds.release(channel, self._nobodys(key), 0, label, round(DONE_S * 1000))
        if acknowledged(acks) < self.quorum:
            raise unavailable("mark", key, acks, self.nodes)

    def _nobodys(self, key: str, owner: str = "") -> Lease:
        return Lease(key, owner, token=0, ttl_ms=0, deadline=0.0, clock=self.clock)

    def drop(self, key: str, owner: str) -> bool:
        """Free `key` if `owner` holds it; whoever else does is left alone.

        Returns:
            Whether it was still held so, on any node that answered in time.

        Raises:
            QuorumUnavailable: Less than a majority confirmed.
        """
        with self._pool.channel() as channel:
            acks = self._rounds.release(channel, self._nobodys(key, owner), 0, None, 0)
        if acknowledged(acks) < self.quorum:
            raise unavailable("release", key, acks, self.nodes)
        return any(isinstance(ack, Acknowledged) and ack.was_ours for ack in acks)

    # ---- hold

    @contextmanager
    def lock(
        self,
        key: str,
        ttl: float = 30.0,
        *,
        wait: float | None = None,
        max_hold: float = DAY_S,
        label: str | None = None,
    ) -> Iterator[Lease]:
        """Hold `key` for the length of a ``with`` block: renewed inside, released on leaving.

        Args:
            key: Name of the lock.
            ttl: How long it outlives a process that vanishes, seconds, at most `max_ttl`.
            wait: How long to try, seconds; see `acquire`.
            max_hold: Renewed for this long at most, seconds; then it ends.
            label: Who holds it, for people and tools.

        Raises:
            LockHeld, QuorumUnavailable, ConfigurationError: as `acquire`; the block is not entered.
        """
        check_seconds("max_hold", max_hold, endless=True)
        lease = self.acquire(key, ttl, wait=wait, label=label)
        lease.hold_until = lease.acquired_at + max_hold
        self.keeper.keep(lease)
        holder = os.getpid()
        try:
            yield lease
        finally:
            # A child that was forked inside the block leaves it, too; the lock is its parent's.
            if os.getpid() == holder:
                self._give_back(lease)

    def _give_back(self, lease: Lease) -> None:
        try:
            self.release(lease)
        except RedlockError as error:
            # The work is done; what is left of the lock ends with its ttl.
            logger.warning("lock not released key=%s error=%s", lease.key, error)

    def check(self) -> dict[str, str]:
        """Try to connect to every node; return why, by name, for those that can't be used now.

        Raises:
            ConfigurationError: A node is not an independent master.
        """
        with self._pool.channel() as channel:
            channel.introduce()
        refuse_misconfigured(self.nodes)
        return {node.name: node.error for node in self.nodes if node.error is not None}

    def clock_offsets(self) -> dict[str, float]:
        """Return by how much this process's wall clock is ahead of each node's, in seconds.

        Nodes that can't be asked are left out.
        """
        with self._pool.channel() as channel:
            before = self.clock.wall_us()
            times = self._rounds.time(channel)
            here = (before + self.clock.wall_us()) / 2e6
        return {
            node.name: here - time
            for node, time in zip(self.nodes, times, strict=True)
            if isinstance(time, float)
        }

    def close(self) -> None:
        """Stop renewing and close the connections. Leases that are held end with their ttl."""
        self.keeper.stop()
        self._pool.close()
        self._keepers_pool.close()

    def after_fork(self) -> None:
        """In a child: leave the parent's connections and leases to the parent."""
        self._pool.forget()
        self._keepers_pool.forget()
        self.keeper.forget_all()

    def _observe(self, event: Event) -> None:
        home.call(notify, self.observers, event)

    def _ttl_ms(self, key: str, ttl: float) -> int:
        check_seconds("ttl", ttl, above_zero=True)
        if not SHORTEST_TTL_S <= ttl <= self.max_ttl:
            raise ConfigurationError(
                f"cannot lock {key!r} with ttl={ttl!r} s: it must be {SHORTEST_TTL_S} to max_ttl="
                f"{self.max_ttl!r} s; choose another, or set max_ttl for all users of these nodes"
            )
        return round(ttl * 1000)


_instances: weakref.WeakSet[Redlock] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for redlock in list(_instances):
        redlock.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
