"""Shapes of schedules: each makes other promises hard to keep. A seed makes a schedule of one."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from .process import Strike
from .schedule import (
    EXIT,
    HORIZON_S,
    LOSE_CONFIRM,
    MAX_TTL_S,
    ON_CLIENTS,
    ON_LINKS,
    ON_NODES,
    RATE,
    STEP,
    Client,
    Fault,
    Schedule,
    Use,
)
from .stream_shapes import in_pieces, stream_schedule
from .tasks.schedule import FIRST_SEED, traffic_of

_TTLS = (0.08, 0.2, 0.6, MAX_TTL_S)
_DELAYED = 0.06
"""Share of the schedules whose locks have a delay."""
_ENDING = 0.05
"""Share of the schedules in which clients do little else than to end."""
_EXITING = 0.07
"""Share of the others in which clients end by an exception."""
_EACH_EXITS = 0.6


def schedule_of(seed: int) -> Schedule:
    """Return the schedule of a seed: from `FIRST_SEED` on, one of calls."""
    of_bytes = random.Random(f"bytes {seed}")
    if seed >= FIRST_SEED:
        return in_pieces(of_bytes, traffic_of(seed))
    schedule = stream_schedule(of_bytes, seed) or in_pieces(of_bytes, _whole(seed))
    of_exits = random.Random(f"exits {seed}")
    return _exiting(of_exits, schedule) if of_exits.random() < _EXITING else schedule


def _whole(seed: int) -> Schedule:
    if (of_ends := random.Random(f"ends {seed}")).random() < _ENDING:
        return _ending(of_ends, seed)
    if (of_delays := random.Random(f"delays {seed}")).random() < _DELAYED:
        return _delayed(of_delays, seed)
    chance = random.Random(seed)
    number = chance.random()
    return next(make for share, make in _SHAPES if number < share)(chance, seed)


def _exiting(chance: random.Random, schedule: Schedule) -> Schedule:
    """Return the schedule with some clients that an exception ends; with several threads, none."""
    clients = tuple(
        replace(client, strikes=tuple(sorted((*client.strikes, _exit(chance)))))
        if client.threads == 1 and chance.random() < _EACH_EXITS
        else client
        for client in schedule.clients
    )
    return replace(schedule, clients=clients)


def _exit(chance: random.Random) -> Strike:
    return Strike(int(10 ** chance.uniform(1.2, 2.3)), EXIT, 0.0)


def _ending(chance: random.Random, seed: int) -> Schedule:
    """Return a schedule of clients that an exception ends as they acquire or release a lock."""
    pick = chance.choice
    clients = tuple(
        Client(
            _rate(chance), 0.0, 0.0,
            tuple(
                Use(
                    chance.uniform(0.0, 0.05), "a", MAX_TTL_S, pick((0.0, 4.0)),
                    chance.uniform(0.0, 0.02), pick(("acquire", "lock", "reserve", "interrupted")),
                )
                for _ in range(3)
            ),
            (Strike(chance.randrange(15, 90), EXIT, 0.0),) if chance.random() < _EACH_EXITS else (),
        )
        for _ in range(pick((1, 2, 3)))
    )  # fmt: skip
    count = pick((3, 5))
    faults = tuple(_fault(chance, count, len(clients), 0.2) for _ in range(pick((0, 0, 1))))
    nodes = tuple((_rate(chance), 0.0) for _ in range(count))
    return Schedule(seed, nodes, pick((0.0005, 0.002, 0.005)), clients, _in_order(faults))


def _crowd(chance: random.Random, seed: int) -> Schedule:
    """Return a schedule of clients that come at once, for a short time, with few faults.

    Many propose one token, and few releases raise the floors: tokens rest on CONFIRM alone.
    """
    pick = chance.choice
    count = pick((3, 3, 5))
    tick = pick((0.0, 1.0, 1.0))
    clients = tuple(
        Client(
            _rate(chance), 0.0, tick,
            tuple(
                Use(
                    chance.uniform(0.0, pick((0.002, 0.05))), "a", pick((0.03, 0.08)),
                    pick((0.0, 0.1, 0.3)), pick((0.0, 0.02, 0.1)),
                    pick(("leave", "leave", "leave", "acquire", "extend")),
                )
                for _ in range(pick((2, 3, 4)))
            ),
            (),
        )
        for _ in range(pick((2, 3, 3)))
    )  # fmt: skip
    faults = tuple(_fault(chance, count, len(clients), 0.3) for _ in range(pick((0, 1, 2))))
    nodes = tuple((_rate(chance), 0.0) for _ in range(count))
    return Schedule(seed, nodes, pick((0.001, 0.005, 0.02)), clients, _in_order(faults))


def _faulty(chance: random.Random, seed: int) -> Schedule:
    pick = chance.choice
    count = pick((3, 3, 3, 5))
    # Skew is shared between error, drift and steps.
    nodes = tuple((_rate(chance), chance.uniform(-0.1, 0.1)) for _ in range(count))
    keys = ("a",) if chance.random() < 0.8 else ("a", "b")
    ttls = pick(((0.08,), (0.2,), _TTLS, _TTLS))
    clients = tuple(_client(chance, keys, ttls) for _ in range(pick((2, 2, 3, 3, 4))))
    faults = tuple(_fault(chance, count, len(clients)) for _ in range(pick((0, 1, 2, 2, 3, 4, 6))))
    return Schedule(
        seed, nodes, pick((0.0005, 0.002, 0.01, 0.06)), clients,
        _in_order(faults),
    )  # fmt: skip


def _in_order(faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    return tuple(sorted(faults, key=lambda fault: fault.at))


def _client(chance: random.Random, keys: tuple[str, ...], ttls: tuple[float, ...]) -> Client:
    pick = chance.choice
    spread = pick((0.01, 0.1, 1.0))
    uses = tuple(
        Use(
            after=chance.uniform(0.0, spread),
            key=pick(keys),
            ttl=pick(ttls),
            wait=pick((0.0, 0.3, 2.0)),
            hold=pick((0.0, 0.01, 0.1, 0.5, 1.5)) * chance.uniform(0.5, 1.0),
            how=pick(("acquire", "acquire", "extend", "lock", "lock", "reserve")),
        )
        for _ in range(pick((1, 2, 2, 3)))
    )
    strikes = tuple(
        sorted(
            Strike(
                int(10 ** chance.uniform(1.0, 3.0)),
                pick(ON_CLIENTS),
                round(pick((0.03, 0.1, 0.3, 1.0, 3.0)) * chance.uniform(0.5, 1.0), 3),
            )
            for _ in range(pick((0, 0, 0, 1, 1, 2)))
        )
    )
    wall_ahead = pick((0.0, 0.0, -3600.0, 3600.0, chance.uniform(-0.5, 0.5)))
    wall_tick = pick((0.0, 0.0, 0.3, 1.0))
    return Client(_rate(chance), wall_ahead, wall_tick, uses, strikes)


def _rate(chance: random.Random) -> float:
    return 1 + chance.choice((-RATE, RATE, chance.uniform(-RATE, RATE)))


def _fault(chance: random.Random, nodes: int, clients: int, horizon: float = HORIZON_S) -> Fault:
    pick = chance.choice
    kind = STEP if chance.random() < 0.03 else pick(ON_LINKS + ON_NODES)
    at = round(chance.uniform(0.0, horizon) * pick((0.1, 1.0)), 4)
    lasts = round(pick((0.02, 0.1, 0.5, 2.0)) * chance.uniform(0.5, 1.0), 4)
    size = 0.0
    if kind == "slow":
        size = pick((0.02, 0.08, 0.3))
    elif kind == STEP:
        size = chance.uniform(-0.3, 0.3)
    client = pick((-1, *range(clients))) if kind in ON_LINKS else -1
    return Fault(at, lasts, kind, chance.randrange(nodes), client, size)


def _unconfirmed(chance: random.Random, seed: int) -> Schedule:
    """Return a schedule of clients whose clocks are ahead, of short leases, and of lost CONFIRMs.

    Each node grants the highest token that its own clock allows, so that tokens rest on CONFIRM.
    """
    pick = chance.choice
    clients = tuple(
        Client(
            1.0, 3600.0, 0.0,
            tuple(
                Use(
                    chance.uniform(0.0, pick((0.01, 0.1))), "a", pick((0.08, 0.12)),
                    pick((0.0, 0.1, 0.3)), 0.0, pick(("leave", "leave", "leave", "acquire")),
                )
                for _ in range(pick((2, 3)))
            ),
            (),
        )
        for _ in range(pick((2, 2, 3)))
    )  # fmt: skip
    losses = tuple(
        Fault(
            round(chance.uniform(0.0, 0.2), 4), 1.0, LOSE_CONFIRM, node, number,
        )
        for node in range(3)
        for number in range(len(clients))
        if chance.random() < 0.4
    )  # fmt: skip
    cuts = tuple(
        Fault(
            round(chance.uniform(0.0, 0.4), 4), round(chance.uniform(0.02, 0.15), 4),
            pick(("cut", "hang")), chance.randrange(3), pick((-1, *range(len(clients)))),
        )
        for _ in range(pick((2, 4, 6)))
    )  # fmt: skip
    nodes = tuple((1.0, pick((-0.1, 0.1))) for _ in range(3))
    return Schedule(seed, nodes, pick((0.001, 0.005)), clients, _in_order(cuts + losses))


def _extended(chance: random.Random, seed: int) -> Schedule:
    """Return a schedule in which one client extends its lease over bad links, and others wait."""
    pick = chance.choice
    ttl = pick((0.08, 0.2, 0.2, 0.6))
    uses = tuple(
        Use(
            chance.uniform(0.0, 0.02), "a", ttl, 2.0, ttl * chance.uniform(1.2, 2.4),
            pick(("extend", "extend", "extend", "lock")),
        )
        for _ in range(pick((1, 2)))
    )  # fmt: skip
    extends = Client(_rate(chance), 0.0, 0.0, uses, ())
    waits = tuple(
        Client(
            _rate(chance), 0.0, 0.0,
            (Use(chance.uniform(0.0, ttl), "a", 0.6, 2.0, 0.3, "acquire"),) * pick((1, 2)), (),
        )
        for _ in range(pick((1, 2)))
    )  # fmt: skip
    count = pick((3, 3, 5))
    faults = tuple(
        Fault(
            round(chance.uniform(0.0, 2 * ttl), 4), round(ttl * chance.uniform(0.1, 4.0), 4),
            pick(("slow", "mute", "cut", "cut", "deaf", "forget")), chance.randrange(count), 0,
            pick((0.01, 0.03, 0.08)),
        )
        for _ in range(pick((1, 2, 3, 4)))
    )  # fmt: skip
    nodes = tuple((_rate(chance), 0.0) for _ in range(count))
    slowness = pick((0.0005, 0.01, 0.03, 0.06))
    return Schedule(seed, nodes, slowness, (extends, *waits), _in_order(faults))


def _stalled(chance: random.Random, seed: int) -> Schedule:
    """Return a schedule of clients that stand still in an attempt, are given up, and try again."""
    pick = chance.choice
    clients = tuple(
        Client(
            _rate(chance), 0.0, 0.0,
            tuple(
                Use(
                    chance.uniform(0.0, 0.2), "a", MAX_TTL_S, 8.0,
                    chance.uniform(1.0, 1.9), pick(("acquire", "acquire", "lock")),
                )
                for _ in range(pick((1, 2)))
            ),
            tuple(
                Strike(
                    int(10 ** chance.uniform(1.6, 2.7)), "stall",
                    round(chance.uniform(1.1, 1.6), 3),
                )
                for _ in range(pick((0, 1, 1)))
            ),
        )
        for _ in range(pick((2, 3)))
    )  # fmt: skip
    nodes = tuple((_rate(chance), 0.0) for _ in range(3))
    # Releases are repeated until each node has confirmed them, and once more.
    hang = Fault(
        round(chance.uniform(0.5, 3.0), 4), round(chance.uniform(0.5, 3.0), 4), "hang",
        chance.randrange(3),
    )  # fmt: skip
    return Schedule(seed, nodes, pick((0.0005, 0.005)), clients, (hang,))


def _delayed(chance: random.Random, seed: int) -> Schedule:
    """Return a schedule of holders that lose their leases, or die, and of others that wait."""
    pick = chance.choice
    ttl, delay = pick((0.08, 0.2, 0.6)), pick((0.1, 0.4, 1.2))
    clients = tuple(
        Client(
            _rate(chance), 0.0, 0.0,
            tuple(
                Use(
                    chance.uniform(0.0, pick((0.02, 0.5))), "a", ttl, pick((0.3, 4.0)),
                    ttl * chance.uniform(0.2, 2.5), pick(("leave", "extend", "acquire", "lock")),
                    delay,
                )
                for _ in range(pick((1, 2, 3)))
            ),
            tuple(
                Strike(int(10 ** chance.uniform(1.0, 3.0)), pick(ON_CLIENTS), ttl * pick((1, 3)))
                for _ in range(pick((0, 0, 1)))
            ),
        )
        for _ in range(pick((2, 3)))
    )  # fmt: skip
    count = pick((3, 5))
    faults = tuple(_fault(chance, count, len(clients), 1.0) for _ in range(pick((0, 0, 1, 2))))
    nodes = tuple((_rate(chance), 0.0) for _ in range(count))
    return Schedule(seed, nodes, pick((0.0005, 0.005)), clients, _in_order(faults))


def _waiting(chance: random.Random, seed: int) -> Schedule:
    """Return a schedule of clients that wait for each other, mostly with nothing in their way."""
    pick = chance.choice
    clients = tuple(
        Client(
            _rate(chance), 0.0, 0.0,
            tuple(
                Use(
                    chance.uniform(0.0, pick((0.01, 0.5))), "a", pick((0.6, MAX_TTL_S)), 8.0,
                    chance.uniform(0.0, pick((0.05, 0.5))), pick(("acquire", "lock")),
                )
                for _ in range(pick((1, 2, 3)))
            ),
            (),
        )
        for _ in range(pick((2, 3, 4, 5)))
    )  # fmt: skip
    count = pick((3, 5))
    faults = tuple(_fault(chance, count, len(clients), 2.0) for _ in range(pick((0, 0, 0, 1, 2))))
    nodes = tuple((_rate(chance), 0.0) for _ in range(count))
    return Schedule(seed, nodes, pick((0.0005, 0.002, 0.01)), clients, _in_order(faults))


_SHAPES: tuple[tuple[float, Callable[[random.Random, int], Schedule]], ...] = (
    (0.30, _crowd), (0.63, _faulty), (0.68, _waiting), (0.80, _unconfirmed), (0.95, _extended),
    (1.0, _stalled),
)  # fmt: skip
"""What a number between 0 and 1 must be below for each shape."""
