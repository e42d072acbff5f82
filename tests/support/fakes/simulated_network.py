"""Simulated nodes and clients of the lock, in a time that passes only while somebody waits.

    network = Network(5)
    redlock = network.redlock()
    network.nodes[0].delay = 0.02
    lease = redlock.acquire("k")
    assert network.sent("CONFIRM") == []

A channel is simulated as a whole: what is asked arrives at each node after its delay, in the order
in which it was written on that channel, is carried out there, and the replies come back.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import pytest

from celery_redlock.redlock.clock import Clock
from celery_redlock.redlock.protocol.quorum import majority
from celery_redlock.redlock.protocol.replies import Failed
from celery_redlock.redlock.protocol.scripts import ALL, lock_keys
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.redlock.threads import dispatch
from celery_redlock.redlock.transport.channel import Channel, Command, why_guarded
from celery_redlock.redlock.transport.in_flight import Replies, Reply
from celery_redlock.redlock.transport.node import Node
from celery_redlock.redlock.waiters import Waiters

from .simulated_node import EPOCH_US, SimulatedNode

PREFIX = "redlock"
_NAMES = {script.sha: script.name.upper() for script in ALL}


class Sent(NamedTuple):
    """One command on its way: when, on which channel, to which node, what and for whom."""

    at: float
    channel: int
    node: int
    name: str
    owner: str
    argv: tuple[str, ...]


class Peer(SimulatedNode):
    """A node and the way to it.

    Attributes:
        delay: How long a command takes to it, and its reply back, seconds.
        is_up: Whether it can be reached.
        is_missed: Whether it cannot until a channel is renewed.
        votes_from: Until when the restart guard silences it, seconds on the test's clock.
    """

    def __init__(self, network: Network) -> None:
        super().__init__(network.now)
        self.delay = 0.0
        self.is_up = True
        self.is_missed = False
        self.votes_from = -math.inf
        self._backlog: list[Callable[[], None]] | None = None

    def hang(self) -> None:
        """Do nothing for now; what arrives waits."""
        self._backlog = []

    def resume(self) -> None:
        """Do what has been waiting, in the order in which it came."""
        backlog, self._backlog = self._backlog or [], None
        for carry_out in backlog:
            carry_out()

    def arrive(self, carry_out: Callable[[], None]) -> None:
        """Do what has arrived, now or when the node does not hang any more."""
        if self._backlog is None:
            carry_out()
        else:
            self._backlog.append(carry_out)

    def holder(self, key: str = "k") -> str | None:
        """Return who has the lock."""
        raw = self.execute(("GET", lock_keys(PREFIX, key)[0]))
        return raw.decode() if isinstance(raw, bytes) else None

    def floor(self, key: str = "k") -> int:
        """Return the lock's floor; 0 if there is none."""
        raw = self.execute(("GET", lock_keys(PREFIX, key)[1]))
        return int(raw) if isinstance(raw, bytes) else 0

    def left_ms(self, key: str = "k") -> int:
        """Return how long the lock stands; -2 if it does not."""
        return cast(int, self.execute(("PTTL", lock_keys(PREFIX, key)[0])))

    def take(self, owner: str, ttl: float = 60.0, key: str = "k") -> None:
        """Let `owner` have the lock."""
        end = () if ttl == math.inf else ("PX", round(ttl * 1000))
        self.execute(("SET", lock_keys(PREFIX, key)[0], owner, *end))

    def raise_floor(self, floor: int, key: str = "k") -> None:
        """Let the lock's floor be this."""
        self.execute(("SET", lock_keys(PREFIX, key)[1], floor))

    def expire(self, key: str = "k") -> None:
        """Let the lock expire; the floor stays."""
        self.execute(("DEL", lock_keys(PREFIX, key)[0]))


class Network:
    """Nodes, what is under way to them, and the time. It is a clock.

    Attributes:
        time: Seconds.
        nodes: The servers.
        slept: The pauses that clients asked for, seconds.
        log: Every command that was sent, in order.
        reads_at_once: Whether a client reads all replies that are there before it decides.
    """

    def __init__(self, count: int, patch: pytest.MonkeyPatch) -> None:
        self.time = 1000.0
        self.slept: list[float] = []
        self.log: list[Sent] = []
        self.reads_at_once = False
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._channels = itertools.count()
        self.nodes = [Peer(self) for _ in range(count)]
        self._patch = patch
        self._threads: list[Callable[[], None]] = []

    # ---- time

    def now(self) -> float:
        """Return the time."""
        return self.time

    def wall_us(self) -> int:
        """Return what a right wall clock shows, µs."""
        return EPOCH_US + round(self.time * 1e6)

    def sleep(self, seconds: float) -> None:
        """Let time pass, as a client does that pauses."""
        self.slept.append(seconds)
        self.pass_(seconds)

    def pass_(self, seconds: float) -> None:
        """Let time pass, and happen what happens in it."""
        end = self.time + seconds
        while self.step(end):
            pass

    def at(self, time: float, happens: Callable[[], None]) -> None:
        """Let something happen then."""
        heapq.heappush(self._events, (time, next(self._number), happens))

    def after(self, seconds: float, happens: Callable[[], None]) -> None:
        """Let something happen so much later."""
        self.at(self.time + seconds, happens)

    def step(self, end: float) -> bool:
        """Go on to what happens next; to `end` if that is sooner.

        Returns:
            Whether something happened.
        """
        if self._events and self._events[0][0] <= end:
            time, _, happens = heapq.heappop(self._events)
            self.time = max(self.time, time)
            happens()
            return True
        self.time = max(self.time, end)
        return False

    def expire(self, nodes: Sequence[int] | None = None, key: str = "k") -> None:
        """Let the lock expire on these nodes, on all by default; the floors stay."""
        for index in range(len(self.nodes)) if nodes is None else nodes:
            self.nodes[index].expire(key)

    # ---- clients

    def redlock(self, clock: Clock | None = None, **options: Any) -> TaskLock:
        """Return a client of these nodes, whose keeper renews only in `redlock.keeper.tick()`."""
        # None begins. Each is kept, as the thread would: it has a descriptor, closed with it.
        self._patch.setattr(dispatch, "start_thread", lambda run, name: self._threads.append(run))
        # Nobody hears of releases: a wait is a pause of this clock.
        self._patch.setattr(Waiters, "start", lambda self: False)
        self._patch.setattr("celery_redlock.redlock.parts.Channel", self._new_channel)
        return TaskLock(self.urls, clock=clock or self, **options)

    @property
    def urls(self) -> list[str]:
        """URLs of the nodes."""
        return [f"redis://node-{number}" for number in range(len(self.nodes))]

    def _new_channel(
        self, nodes: Sequence[Node], clock: Clock, node_timeout: float, connect_timeout: float
    ) -> Channel:
        return SimulatedChannel(self, next(self._channels), nodes, node_timeout)

    # ---- what is seen

    def sent(self, name: str) -> list[Sent]:
        """Return every command of this name: GRANT, CONFIRM, EXTEND, RELEASE, SET …"""
        return [one for one in self.log if one.name == name]

    def asked(self, name: str) -> list[int]:
        """Return the nodes that commands of this name went to, in order."""
        return [one.node for one in self.sent(name)]

    def holders(self, key: str = "k") -> list[str | None]:
        """Return who has the lock on each node, what is under way without delay included."""
        self.pass_(0.0)
        return [node.holder(key) for node in self.nodes]

    def floors(self, key: str = "k") -> list[int]:
        """Return the lock's floor on each node, what is under way without delay included."""
        self.pass_(0.0)
        return [node.floor(key) for node in self.nodes]


@dataclass
class _Line:
    """One connection: what is written arrives in order."""

    clear_at: float = 0.0
    sent: int = 0
    received: int = 0


class SimulatedChannel(Channel):
    """A connection to every node, of which nothing is real but what it asks and is told."""

    def __init__(
        self, network: Network, number: int, nodes: Sequence[Node], node_timeout: float
    ) -> None:
        # Not its own: that would make a poller, of the kernel's.
        self.nodes = nodes
        self.quorum = majority(len(nodes))
        self.number = number
        self.is_closed = False
        self._network = network
        self._timeout = node_timeout
        self._lines = [_Line() for _ in nodes]

    def prepare(self, patience: float | None = None, *, needs_votes: bool = True) -> None:
        """Do nothing: what is up is connected."""

    def connect_all(self) -> None:
        """Do nothing: what is up is connected."""

    def renew(self) -> bool:
        """Connect to the nodes that were missed; no connection is ever dead."""
        missed = [peer for peer in self._network.nodes if peer.is_missed]
        for peer in missed:
            peer.is_up, peer.is_missed = True, False
        return bool(missed)

    def first_timeout(self, timeout: float) -> float:
        """Return `timeout`: no connection is ever dead."""
        return timeout

    def dropped(self) -> int:
        """Return 0: no connection is ever given up."""
        return 0

    def is_unused(self, seconds: float) -> bool:
        """Tell that it is in use: it costs nothing."""
        return False

    def close(self) -> None:
        """Be of no use any more; what was written still arrives."""
        self.is_closed = True
        self._lines = [_Line() for _ in self.nodes]

    def voters(self) -> Sequence[int]:
        """Return the nodes that may grant."""
        now = self._network.now()
        return [index for index in self.everyone() if self._peer(index).votes_from <= now]

    def holders(self) -> Sequence[int]:
        """Return the nodes to extend on."""
        return self.everyone()

    def everyone(self) -> list[int]:
        """Return all nodes that are up."""
        return [index for index in range(len(self.nodes)) if self._peer(index).is_up]

    def votes_in(self, index: int) -> float:
        """Return for how long the restart guard silences a node."""
        return max(0.0, self._peer(index).votes_from - self._network.now())

    def pending_replies(self) -> Callable[[], bool] | None:
        """Return what tells whether a reply that is owed now still is; None if none is owed."""
        owing = [(line, line.sent) for line in self._lines if line.sent > line.received]
        if not owing:
            return None
        return lambda: any(line.received < sent for line, sent in owing)

    def ask(
        self,
        commands: Sequence[Command],
        parse: Callable[[list[object]], Reply],
        is_decided: Callable[[Replies[Reply]], bool],
        among: Sequence[int],
        timeout: float | None = None,
    ) -> Replies[Reply]:
        """Send the commands; return the replies that came until it was decided, or in time."""
        replies: Replies[Reply] = [None] * len(self.nodes)
        timeout = self._timeout if timeout is None else timeout
        deadline = self._network.now() + timeout
        for index in range(len(self.nodes)):
            if index in among and self._peer(index).is_up:
                self._send(index, list(commands), parse, replies)
            else:
                replies[index] = self._why_not(index, self._network.now())
        while not is_decided(replies):
            if not self._network.step(deadline):
                late = Failed(f"timed out after {timeout * 1000:.0f} ms")
                return [late if reply is None else reply for reply in replies]
            if self._network.reads_at_once:
                self._network.pass_(0.0)
        # A copy: what comes later is owed, and counts no more.
        return list(replies)

    def _peer(self, index: int) -> Peer:
        return self._network.nodes[index]

    def _why_not(self, index: int, now: float) -> Failed:
        if self._peer(index).is_up and (votes_in := self._peer(index).votes_from - now) > 0:
            return Failed(why_guarded(votes_in), is_guarded=True)
        return Failed("not asked")

    def _send(
        self,
        index: int,
        commands: list[Command],
        parse: Callable[[list[object]], Reply],
        replies: Replies[Reply],
    ) -> None:
        network, peer, line = self._network, self._peer(index), self._lines[index]
        for command in commands:
            network.log.append(_noted(network.now(), self.number, index, command))
        line.sent += 1
        line.clear_at = max(line.clear_at, network.now() + peer.delay)

        def carry_out() -> None:
            raws = [peer.execute(command) for command in commands]
            network.after(peer.delay, lambda: come_back(raws))

        def come_back(raws: list[object]) -> None:
            line.received += 1
            replies[index] = parse(raws)

        network.at(line.clear_at, lambda: peer.arrive(carry_out))


def _noted(at: float, channel: int, node: int, command: Command) -> Sent:
    argv = tuple(str(argument) for argument in command)
    if argv[0] != "EVALSHA":
        return Sent(at, channel, node, argv[0], argv[2] if argv[0] == "SET" else "", argv[1:])
    first = 3 + int(argv[2])
    return Sent(at, channel, node, _NAMES[argv[1]], argv[first], argv[first + 1 :])
