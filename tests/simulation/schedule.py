"""A schedule: what clients do, and which faults strike when. `shapes` makes them from seeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from .process import Strike
from .servers import STATES

Thing = TypeVar("Thing")
_MOST_PIECES = 10
"""Mostly of a request and of the replies to its parts: each is cut again."""
_REQUEST_BYTES = 3000
HORIZON_S = 4.0
"""Faults begin in this time; the longest one ends a little later."""
MAX_TTL_S = 2.0
MAX_SKEW_S = 0.5
RESERVED_S = 30.0
NODE_TIMEOUT_S = 0.05
IDLE_TIMEOUT_S = 3.0
SEVERAL = 3
"""Locks that one use takes together."""
RATE = 0.004
"""Largest error of a clock's rate: two differ by less than the allowance for drift, 1 %."""
CALM_SLOWNESS_S = 0.01
FEW_CLIENTS = 4
"""Of more processes that listen, chance decides which ask."""
ON_LINKS = ("slow", "cut", "deaf", "mute", "reset", "half_open")
LOSE_CONFIRM = "lose_confirm"
"""On a link: its next CONFIRM is lost, and its connections with it."""
TEARS = ("tear", "tear_reply", "vanish")
"""On a link: the connection breaks at a byte of a request, or of a reply, or nobody hears of it."""
ON_IDLE = ("silent", "closing")
"""On a link: connections that are idle for `size` end, without a word or with one."""
BLACK_HOLE = "black_hole"
"""On a link: the first address of the server's name does not answer."""
SLOW_CONNECT = "slow_connect"
"""On a link: to connect takes `size` longer, and nothing else does."""
ON_STREAMS = (*TEARS, *ON_IDLE, BLACK_HOLE, SLOW_CONNECT)
CLOSINGS = ("close_request", "close_reply")
"""On all links of a client: a proxy beside it closes all connections, `size` times, just as a
request arrives, which is lost, or executed without a reply."""
ON_STATES = STATES
ALL_NODES = -1
ON_NODES = ("hang", "restart", "forget", "power_loss")
ON_CLIENTS = ("pause", "stall", "crash", "interrupt")
EXIT = "exit"
"""A client ends by an exception."""
STEP = "clock_step"
"""Outside of what exclusion promises, inside of what tokens promise."""


@dataclass(frozen=True, slots=True)
class Use:
    """One use of a lock by a client.

    Attributes:
        after: Pause before it, seconds.
        key: The lock.
        ttl: Its ttl, seconds.
        wait: How long to try, seconds.
        hold: How long to hold it, seconds.
        how: "acquire", "extend" (acquire, and extend by hand), "lock" (the keeper renews), "leave"
            (never release it), "reserve" (for `RESERVED_S`, whatever the ttl), "ensure" (extend by
            hand again and again), "several" (the keeper renews several at once), or "interrupted"
            (the keeper releases it).
        lock_delay: Its lock delay, seconds; with "acquire", "extend", "leave" and "lock".
    """

    after: float
    key: str
    ttl: float
    wait: float
    hold: float
    how: str
    lock_delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Client:
    """One process: its clocks, what it does, and what strikes it.

    Attributes:
        rate: Seconds that its clock counts in a second.
        wall_ahead: By how much its wall clock is ahead, seconds. Nothing rests on that clock.
        wall_tick: Interval at which its wall clock moves on, seconds; 0.0: always.
        threads: How many threads do all of its uses.
    """

    rate: float
    wall_ahead: float
    wall_tick: float
    uses: tuple[Use, ...]
    strikes: tuple[Strike, ...]
    threads: int = 1


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of the network or of a node.

    Attributes:
        at: When it begins, seconds.
        lasts: How long it lasts, seconds.
        kind: One of `ON_LINKS`, `ON_STREAMS`, `CLOSINGS`, `ON_NODES` or `ON_STATES`,
            `LOSE_CONFIRM`, `REPLACED` or `STEP`.
        node: Which node; `ALL_NODES`: all, if it is one of `ON_STREAMS` or `CLOSINGS`.
        client: Of which client's link; -1: of all.
        size: Seconds of a delay, of idling, or of a clock's step; bytes before a tear; number of
            closings.
    """

    at: float
    lasts: float
    kind: str
    node: int
    client: int = -1
    size: float = 0.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """All of one run, but for the order of what happens at one moment, which follows from it.

    Attributes:
        seed: Of delays and back-offs.
        nodes: Rate and error of each node's clock.
        slowness: Longest ordinary delay, seconds.
        cutting: Chance that a write arrives in pieces.
        room: Bytes that a socket takes before it accepts only a part; 0: any number.
        idle_timeout: Time after which clients close unused connections, seconds.
    """

    seed: int
    nodes: tuple[tuple[float, float], ...]
    slowness: float
    clients: tuple[Client, ...]
    faults: tuple[Fault, ...]
    cutting: float = field(default=0.0, kw_only=True)
    room: int = field(default=0, kw_only=True)
    idle_timeout: float = field(default=IDLE_TIMEOUT_S, kw_only=True)

    @property
    def has_steps(self) -> bool:
        """Whether a node's clock is stepped: exclusion is not promised then."""
        return any(fault.kind == STEP for fault in self.faults)

    @property
    def is_calm(self) -> bool:
        """Whether nothing strikes, links are quick, and each waiter asks after a release."""
        is_interrupted = self.faults or any(client.strikes for client in self.clients)
        is_small = len(self.clients) <= FEW_CLIENTS
        return is_small and not is_interrupted and self.longest_s <= CALM_SLOWNESS_S

    @property
    def longest_s(self) -> float:
        """How long a request takes in one direction, piece after piece, at most."""
        pieces = _MOST_PIECES if self.cutting else 1
        writes = 1 + _REQUEST_BYTES // self.room if self.room else 1
        return self.slowness * pieces * writes


def smaller(schedule: Schedule) -> Iterator[Schedule]:
    """Yield schedules with one thing less, the largest things first."""
    for number, client in enumerate(schedule.clients):
        # Not removed: the links of the others are known by their numbers.
        if client.uses:
            yield _with_client(schedule, number, replace(client, uses=(), strikes=()))
    for faults in _with_one_less(schedule.faults):
        yield replace(schedule, faults=faults)
    for number, client in enumerate(schedule.clients):
        for smaller_client in _smaller_client(client):
            yield _with_client(schedule, number, smaller_client)
    for number, node in enumerate(schedule.nodes):
        if node != (1.0, 0.0):
            nodes = (*schedule.nodes[:number], (1.0, 0.0), *schedule.nodes[number + 1 :])
            yield replace(schedule, nodes=nodes)
    for name in ("room", "cutting", "slowness"):
        if getattr(schedule, name):
            nothing: dict[str, Any] = {name: 0}
            yield replace(schedule, **nothing)


def _smaller_client(client: Client) -> Iterator[Client]:
    for strikes in _with_one_less(client.strikes):
        yield replace(client, strikes=strikes)
    for uses in _with_one_less(client.uses):
        yield replace(client, uses=uses)
    if client.threads > 1:
        yield replace(client, threads=client.threads // 2)
    right = replace(client, rate=1.0, wall_ahead=0.0, wall_tick=0.0)
    if client != right:
        yield from (
            one
            for one in (
                right,
                replace(client, rate=1.0),
                replace(client, wall_ahead=0.0, wall_tick=0.0),
            )
            if one != client
        )


def _with_one_less(things: tuple[Thing, ...]) -> Iterator[tuple[Thing, ...]]:
    for number in range(len(things)):
        yield things[:number] + things[number + 1 :]


def _with_client(schedule: Schedule, number: int, client: Client) -> Schedule:
    clients = (*schedule.clients[:number], client, *schedule.clients[number + 1 :])
    return replace(schedule, clients=clients)
