"""Shapes of schedules that make bytes and connections hard: cuts, tears, idle ends, and states."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from .schedule import (
    ALL_NODES,
    BLACK_HOLE,
    CLOSINGS,
    HORIZON_S,
    IDLE_TIMEOUT_S,
    MAX_TTL_S,
    ON_IDLE,
    ON_NODES,
    ON_STATES,
    RATE,
    SLOW_CONNECT,
    TEARS,
    Client,
    Fault,
    Schedule,
    Use,
)
from .servers import CROWDED, REPLACED

Kind = TypeVar("Kind", bound=Schedule)
_LONG = "k" * 400
_IN_PIECES = 0.25
"""Share of the other schedules whose bytes are cut."""
_WHOLE = 40 * HORIZON_S


def stream_schedule(chance: random.Random, seed: int) -> Schedule | None:
    """Return a schedule of one of these shapes; None: the seed belongs to another."""
    number = chance.random()
    make = next((make for share, make in _SHAPES if number < share), None)
    return make(chance, seed) if make else None


def in_pieces(chance: random.Random, schedule: Kind) -> Kind:
    """Return the schedule, perhaps with bytes that are cut, and if it has faults with more."""
    if chance.random() > _IN_PIECES:
        return schedule
    pick = chance.choice
    faults = schedule.faults
    if faults:
        nodes, clients = len(schedule.nodes), len(schedule.clients)
        faults += tuple(_fault(chance, nodes, clients) for _ in range(pick((0, 1, 2))))
    room = pick((0, 0, 0, 700, 3000))
    # Each piece takes as long: of a slow link, all of them together would take too long for ever.
    slowness = min(schedule.slowness, 0.002 if room else 0.01)
    return replace(
        schedule, cutting=pick((0.2, 0.7, 1.0)), room=room, slowness=slowness,
        faults=_in_order(faults),
    )  # fmt: skip


def _several(chance: random.Random, seed: int) -> Schedule:
    """Return a schedule of long keys, of which one process has several, renewed in one batch."""
    pick = chance.choice
    clients = tuple(
        Client(
            _rate(chance), 0.0, 0.0,
            tuple(
                Use(
                    chance.uniform(0.0, 0.3), pick(("a", _LONG)), pick((0.2, 0.6)),
                    pick((0.0, 2.0)), chance.uniform(0.2, 1.0),
                    pick(("several", "several", "lock", "ensure")),
                )
                for _ in range(pick((1, 2)))
            ),
            (),
        )
        for _ in range(pick((1, 2)))
    )  # fmt: skip
    count = pick((3, 3, 5))
    faults = tuple(_fault(chance, count, len(clients)) for _ in range(pick((0, 0, 1))))
    return Schedule(
        seed, _nodes(chance, count), pick((0.0005, 0.001, 0.005)), clients, _in_order(faults),
        cutting=pick((0.5, 0.9)), room=pick((0, 0, 0, 1500)),
    )  # fmt: skip


def _ensured(chance: random.Random, seed: int) -> Schedule:
    """Return a schedule of leases that are extended often, while a minority starts again.

    In some of them the connections to all others are reset, twice in a row.
    """
    pick = chance.choice
    count = pick((3, 3, 5))
    client = Client(
        _rate(chance), 0.0, 0.0,
        (
            Use(0.0, "a", pick((0.6, MAX_TTL_S)), 1.0, chance.uniform(1.0, 3.0), "ensure"),
            Use(0.0, "a", MAX_TTL_S, 1.0, chance.uniform(0.5, 1.0), "ensure"),
        ),
        (),
    )  # fmt: skip
    struck = chance.sample(range(count), (count - 1) // 2)
    faults = tuple(
        Fault(
            round(chance.uniform(0.0, 1.5), 4), round(chance.uniform(0.02, 0.3), 4),
            pick(("restart", "forget", "forget", "hang", *ON_STATES)), node,
        )
        for node in struck
    )  # fmt: skip
    for _ in range(pick((0, 0, 8))):
        # Also those connections that are just being made in the place of those before.
        at, again_after = chance.uniform(0.1, 2.0), chance.uniform(0.0005, 0.008)
        faults += tuple(
            Fault(round(one, 4), 0.0, "reset", node)
            for one in (at, at + again_after)
            for node in range(count)
            if node not in struck
        )
    slowness = pick((0.001, 0.01))
    cutting = pick((0.0, 0.5)) if slowness < 0.01 else 0.0
    return Schedule(
        seed, _nodes(chance, count), slowness, (client,), _in_order(faults), cutting=cutting
    )


def _idle(chance: random.Random, seed: int) -> Schedule:
    """Return a schedule of locks that nobody else wants, over connections that end while idle."""
    pick = chance.choice
    count = pick((3, 3, 5))
    kind = pick((*ON_IDLE, *ON_IDLE, BLACK_HOLE, "reset", "half_open"))
    pause = pick((0.5, 1.2, 5.0, 7.0)) if kind == "silent" else pick((0.1, 0.1, 1.2))
    clients = tuple(
        Client(
            _rate(chance), 0.0, 0.0,
            tuple(
                Use(
                    chance.uniform(0.0, 2 * pause), f"k{number}", pick((0.6, MAX_TTL_S)),
                    pick((0.0, 0.0, 1.0)), chance.uniform(0.0, min(0.6, pause)),
                    pick(("acquire", "acquire", "lock")),
                )
                for _ in range(pick((3, 6)))
            ),
            (),
        )
        for number in range(pick((1, 1, 2)))
    )  # fmt: skip
    if kind == "closing":
        size = chance.uniform(0.06, 0.09)
    else:
        size = pick((0.3, 1.0, 5.0)) if kind == "silent" else 5.0
    if kind in ("reset", "half_open"):
        at = round(chance.uniform(0.0, 2.0), 4)
        faults = tuple(Fault(at, 0.0, kind, node) for node in range(count))
    else:
        nodes = pick(((ALL_NODES,), (ALL_NODES,), tuple(range(count // 2 + 1))))
        faults = tuple(Fault(0.0, _WHOLE, kind, node, -1, size) for node in nodes)
    if chance.random() < 0.3:
        # One more node is down for good.
        faults += (Fault(0.0, _WHOLE, pick(("power_loss", "restart", "cut")), count - 1),)
    return Schedule(
        seed, _nodes(chance, count), pick((0.0005, 0.002)), clients, _in_order(faults),
        cutting=pick((0.0, 0.0, 0.3)), idle_timeout=60.0 if kind == "silent" else IDLE_TIMEOUT_S,
    )  # fmt: skip


def _threads(chance: random.Random, seed: int) -> Schedule:
    """Return a schedule of many threads that wait while no quorum can be had."""
    pick = chance.choice
    client = Client(
        _rate(chance), 0.0, 0.0,
        (Use(0.0, "a", 0.6, chance.uniform(1.0, 2.0), 0.0, "acquire"),), (), pick((4, 6, 8)),
    )  # fmt: skip
    count = 3
    kind = pick((*ON_NODES, *ON_STATES, "cut"))
    faults = tuple(
        Fault(0.0, round(chance.uniform(0.5, 2.0), 4), kind, node)
        for node in chance.sample(range(count), 2)
    )
    return Schedule(seed, _nodes(chance, count), 0.0005, (client,), faults)


def _replaced(chance: random.Random, seed: int) -> Schedule:
    """Return a schedule of a lease on two nodes, of which one takes over another's keys."""
    pick = chance.choice
    holder = Client(
        _rate(chance), 0.0, 0.0,
        (Use(0.0, "a", MAX_TTL_S, 1.0, MAX_TTL_S, pick(("acquire", "acquire", "lock"))),), (),
    )  # fmt: skip
    rival = Client(
        _rate(chance), 0.0, 0.0,
        (
            Use(0.0, "b", 0.6, 1.0, 0.0, "acquire"),  # so that it has seen the nodes before
            Use(chance.uniform(0.0, 0.4), "a", 0.6, 2.0, 0.3, "acquire"),
        ), (),
    )  # fmt: skip
    replaced, cut_off = chance.sample(range(3), 2)
    faults = (
        Fault(0.0, round(chance.uniform(0.3, 2.0), 4), "cut", cut_off, 0),
        Fault(
            round(chance.uniform(0.06, 0.4), 4), round(chance.uniform(0.02, 0.2), 4),
            pick((REPLACED, REPLACED, "forget")), replaced,
        ),
    )  # fmt: skip
    return Schedule(seed, _nodes(chance, 3), 0.001, (holder, rival), _in_order(faults))


def _closed(chance: random.Random, seed: int) -> Schedule:
    """Return a schedule of leases on a bare quorum, behind a proxy that closes connections in use.

    In some of them no node is down, and idle connections to one at a time are reset.
    """
    pick = chance.choice
    count = pick((3, 3, 5))
    is_bare = chance.random() < 0.7
    hows = pick((("ensure", "extend", "acquire", "lock"), ("interrupted",)))
    client = Client(
        _rate(chance), 0.0, 0.0,
        tuple(
            Use(chance.uniform(0.0, 0.2), "a", MAX_TTL_S, 2.0, chance.uniform(0.3, 1.0), pick(hows))
            for _ in range(4)
        ),
        (),
    )  # fmt: skip
    down = chance.sample(range(count), (count - 1) // 2) if is_bare else []
    faults = tuple(
        Fault(0.0, *pick(((_WHOLE, "restart"), (0.02, "restart"), (0.02, "forget"))), node)
        for node in down
    )
    if is_bare:
        faults += tuple(
            Fault(
                round(chance.uniform(0.0, HORIZON_S), 4), 0.5, pick(CLOSINGS), ALL_NODES, 0,
                pick((1, 1, 2, 3)),
            )
            for _ in range(pick((2, 4, 6)))
        )  # fmt: skip
    else:
        faults += tuple(
            Fault(round(chance.uniform(0.0, HORIZON_S), 4), 0.0, "reset", chance.randrange(count))
            for _ in range(6)
        )
    return Schedule(
        seed, _nodes(chance, count), pick((0.0005, 0.002)), (client,), _in_order(faults),
        cutting=pick((0.0, 0.0, 0.0, 0.3)),
    )  # fmt: skip


def _slow_to_connect(chance: random.Random, seed: int) -> Schedule:
    """Return a schedule over nodes that answer soon, to some of which it takes long to connect.

    Their connections end now and then, idle or in use. A minority is down, is full, or hangs.
    """
    pick = chance.choice
    count = pick((3, 3, 5))
    client = Client(
        _rate(chance), 0.0, 0.0,
        tuple(
            Use(
                chance.uniform(0.2, 1.2), "a", MAX_TTL_S, pick((0.0, 0.0, 4.0)),
                chance.uniform(0.0, 0.6), pick(("acquire", "acquire", "lock")),
            )
            for _ in range(pick((3, 5)))
        ),
        (),
    )  # fmt: skip
    nodes = chance.sample(range(count), count)
    minority = (count - 1) // 2
    kinds = [
        pick(("hang", "hang", "restart", CROWDED)) for _ in range(pick((minority, minority, 0)))
    ]
    # Who waits beside a server that hangs waits for half a second.
    delays = (0.1, 0.3) if "hang" in kinds else (0.1, 0.3, 0.8)
    slow = nodes[minority : minority + pick((1, 1, 2, count - minority))]
    faults = tuple(
        Fault(pick((0.0, 1.8)), _WHOLE, kind, node)
        for kind, node in zip(kinds, nodes, strict=False)
    )
    longer = pick(delays)
    faults += tuple(Fault(0.0, _WHOLE, SLOW_CONNECT, node, -1, longer) for node in slow)
    for _ in range(pick((2, 4, 6))):
        at, kind = round(chance.uniform(0.1, HORIZON_S), 4), pick(("reset", "reset", *CLOSINGS))
        faults += tuple(Fault(at, 0.5, kind, node, 0, 1) for node in pick((slow, nodes)))
    return Schedule(
        seed, _nodes(chance, count), pick((0.0005, 0.002)), (client,), _in_order(faults),
        cutting=pick((0.0, 0.0, 0.3)),
    )  # fmt: skip


_SHAPES: tuple[tuple[float, Callable[[random.Random, int], Schedule]], ...] = (
    (0.06, _several), (0.10, _ensured), (0.15, _idle), (0.16, _threads),
    (0.175, _replaced), (0.2, _closed), (0.24, _slow_to_connect),
)  # fmt: skip
"""What a number between 0 and 1 must be below for each shape; the rest are shapes of `shapes`."""


def _fault(chance: random.Random, nodes: int, clients: int) -> Fault:
    pick = chance.choice
    kind = pick((*TEARS, *TEARS, *ON_IDLE, BLACK_HOLE, *ON_STATES))
    at = round(chance.uniform(0.0, HORIZON_S) * pick((0.1, 1.0)), 4)
    lasts = round(pick((0.1, 0.5, 2.0)) * chance.uniform(0.5, 1.0), 4)
    if kind in TEARS:
        size = float(int(10 ** chance.uniform(0.0, 3.5)))
    else:
        size = pick((0.02, 0.1, 0.5)) if kind in ON_IDLE else 0.0
    client = -1 if kind in ON_STATES else pick((-1, *range(clients)))
    node = pick((ALL_NODES, *range(nodes))) if kind in ON_IDLE else chance.randrange(nodes)
    return Fault(at, lasts, kind, node, client, size)


def _nodes(chance: random.Random, count: int) -> tuple[tuple[float, float], ...]:
    return tuple((_rate(chance), 0.0) for _ in range(count))


def _rate(chance: random.Random) -> float:
    return 1 + chance.uniform(-RATE, RATE)


def _in_order(faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    return tuple(sorted(faults, key=lambda fault: fault.at))
