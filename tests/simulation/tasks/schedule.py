"""A schedule of calls: who calls what when, which policy it has, and what strikes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tests.simulation.process import Strike
from tests.simulation.schedule import HORIZON_S, RATE, Client, Fault, Schedule, smaller

FIRST_SEED = 1_000_000_000
"""Seeds from here on are of schedules of calls."""
FIRST_RESERVED_SEED = 2_000_000_000
"""Seeds from here on are of calls that are reserved when they are published."""
FIRST_PREFORK_SEED = 3_000_000_000
"""Seeds from here on are of calls that a pool's children execute: few of the others are."""
KINDS_OF_SEEDS = (0, FIRST_SEED, FIRST_RESERVED_SEED, FIRST_PREFORK_SEED)
"""The first seed of each kind: that of the lock alone, then those of calls."""
RESERVING, RESERVING_SLOT = "until_executed", "until_and_while_executing"
QUEUE_TTL_S = 200.0
"""Longer than a message may take to end, if nobody waits for a reservation that is left."""
_DELAYED = 0.06
"""Share of the schedules whose task has a lock delay."""
_LIMITED_AT_END = 0.5
"""Share of the schedules with time limits whose limits strike about the end of a body."""
_ENDS_WITHIN_S = 0.08
"""Longest time that an execution mostly takes then, besides its body."""
_SLOW_S = 0.01
"""Mean delay of the network then: a result is stored before what was sent arrives."""
POLICIES = ("skip", "reschedule", "complete", "raise", "wait", "coalesce")
LATE, EARLY = "late", "early"
REFUSE, SWALLOW, DROP = "refuse", "swallow", "drop"
ON_BROKER = (REFUSE, SWALLOW, DROP)
KILL = "kill"
"""Of a client, at a time: a strike comes at one of its steps."""
_ON_LINKS = ("slow", "cut", "deaf", "mute", "reset")
FORGETTING = ("forget", "power_loss")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the task.

    Attributes:
        at: When it is called, seconds.
        key: Its lock key.
        runs: How long its body runs, seconds.
        countdown: Delay that its caller demands, seconds.
        retries: How often its body retries.
        pause: Delay of each retry, seconds.
        expires: Time after which it is not to be executed, seconds; 0.0: none.
        soft_limit: Soft time limit of each execution, seconds; 0.0: none.
        revoked_after: Time after which it is revoked, seconds; 0.0: it is not.
    """

    at: float
    key: str
    runs: float
    countdown: float = 0.0
    retries: int = 0
    pause: float = 0.0
    expires: float = 0.0
    soft_limit: float = 0.0
    revoked_after: float = 0.0


@dataclass(frozen=True, slots=True)
class Traffic(Schedule):
    """All of one run. The first clients call, the others are workers; the last one comes late.

    Attributes:
        policy: Conflict policy of the task.
        acks: `LATE` or `EARLY`: after the run of a message, or before it.
        visibility: Time after which the broker delivers an unacknowledged message again, as with
            Redis, seconds; 0.0: when its connection is lost, as with RabbitMQ.
        prefetch: How many messages a worker takes at once.
        calls: What is called.
        lifetime: Lifetime of the task's lock.
        callers: How many clients call; call n is of caller n modulo that.
        is_prefork: Whether the workers are the children of a process that comes before them.
        lock_delay: Lock delay of the task, seconds. With one, a body whose lease is lost retries.
    """

    policy: str = "skip"
    acks: str = LATE
    visibility: float = 0.0
    prefetch: int = 1
    calls: tuple[Call, ...] = ()
    lifetime: str = "while_executing"
    callers: int = 1
    is_prefork: bool = False
    lock_delay: float = 0.0


def smaller_traffic(traffic: Traffic) -> Iterator[Schedule]:
    """Yield schedules with one thing less."""
    for number in range(len(traffic.calls)):
        yield replace(traffic, calls=traffic.calls[:number] + traffic.calls[number + 1 :])
    yield from smaller(traffic)
    for number, call in enumerate(traffic.calls):
        for plain in _plainer(call):
            calls = (*traffic.calls[:number], plain, *traffic.calls[number + 1 :])
            yield replace(traffic, calls=calls)
    if traffic.prefetch > 1:
        yield replace(traffic, prefetch=1)
    if traffic.lock_delay:
        yield replace(traffic, lock_delay=0.0)


def _plainer(call: Call) -> Iterator[Call]:
    for name in ("countdown", "expires", "soft_limit", "revoked_after"):
        if getattr(call, name):
            none: dict[str, Any] = {name: 0.0}
            yield replace(call, **none)
    if call.retries:
        yield replace(call, retries=call.retries - 1)


def traffic_of(seed: int) -> Traffic:
    """Return the schedule of a seed."""
    traffic = _without_delay(seed)
    of_delay = random.Random(f"lock delay {seed}")
    return _delayed(of_delay, traffic) if of_delay.random() < _DELAYED else traffic


def _without_delay(seed: int) -> Traffic:
    chance = random.Random(seed)
    if seed >= FIRST_PREFORK_SEED:
        make = _prefork
    elif seed >= FIRST_RESERVED_SEED:
        make = _reserved
    else:
        share = chance.random()
        make = _coalesced if share < 0.15 else _prefork if share < 0.23 else _any
    traffic = make(chance, seed)
    if chance.random() < 0.35:
        return chance.choice((_retrying, _retrying, _expiring, _limited, _revoking))(
            chance, traffic
        )
    return traffic


def _delayed(chance: random.Random, traffic: Traffic) -> Traffic:
    """Return a schedule with a lock delay, and more of that by which leases are lost."""
    pick = chance.choice
    workers = range(traffic.callers + traffic.is_prefork, len(traffic.clients) - 1)
    clients = [*traffic.clients]
    for number in () if traffic.is_prefork else workers:
        pauses = [
            Strike(int(10 ** chance.uniform(1.6, 2.8)), "pause", pick((0.8, 1.2, 1.6)))
            for _ in range(pick((0, 1, 1)))
        ]
        strikes = sorted((*clients[number].strikes, *pauses))
        clients[number] = replace(clients[number], strikes=tuple(strikes))
    calls = (
        replace(call, retries=pick((call.retries, 1, 2)), pause=pick((0.0, 0.3)))
        for call in traffic.calls
    )
    return replace(
        traffic, clients=tuple(clients), calls=tuple(calls),
        faults=_in_order((*traffic.faults, *_outage(chance, traffic, workers))),
        lock_delay=pick((0.2, 0.5, 1.0)),
    )  # fmt: skip


def _outage(chance: random.Random, traffic: Traffic, workers: range) -> Iterator[Fault]:
    """Yield faults that strike a majority of the nodes at once, or none.

    Meanwhile children of a pool may be killed.
    """
    pick = chance.choice
    if not pick((False, True, traffic.is_prefork)):
        return
    at = round(chance.uniform(0.0, pick((1.0, HORIZON_S))), 4)
    lasts = round(chance.uniform(0.1, 0.8), 4)
    # What was sent to a node that hangs, or is cut off, is done after that, a release as well.
    kind = pick(("cut", "hang", "restart", "restart"))
    for node in range(len(traffic.nodes) // 2 + 1):
        yield Fault(at, lasts, kind, node)
    if traffic.is_prefork:
        for number in workers:
            if pick((False, True, True)):
                killed_at = round(at + lasts * chance.random(), 4)
                yield Fault(killed_at, 0.0, KILL, 0, number)


def _expiring(chance: random.Random, traffic: Traffic) -> Traffic:
    """Return a schedule in which most messages expire, some of them retries."""
    return _with(chance, traffic, lambda: {"expires": chance.choice((0.3, 1.0, 3.0))})


def _limited(chance: random.Random, traffic: Traffic) -> Traffic:
    """Return a schedule in which a soft time limit strikes most executions."""
    traffic = _with(chance, traffic, lambda: {"soft_limit": chance.choice((0.01, 0.03, 0.3, 1.0))})
    of_end = random.Random(f"limit {traffic.seed}")
    if of_end.random() < _LIMITED_AT_END:
        calls = tuple(
            replace(call, soft_limit=round(call.runs + of_end.uniform(0.0, _ENDS_WITHIN_S), 4))
            if call.soft_limit
            else call
            for call in traffic.calls
        )
        traffic = replace(traffic, calls=calls, slowness=_SLOW_S)
    return traffic


def _revoking(chance: random.Random, traffic: Traffic) -> Traffic:
    """Return a schedule in which most messages are revoked, while they wait or run."""
    return _with(chance, traffic, lambda: {"revoked_after": round(chance.uniform(0.01, 3.0), 4)})


def _with(chance: random.Random, traffic: Traffic, more: Callable[[], dict[str, Any]]) -> Traffic:
    pick = chance.choice
    calls = []
    for call in traffic.calls:
        changes: dict[str, Any] = more() if pick((0, 1, 1)) else {}
        calls.append(replace(call, retries=pick((0, 0, 1)), pause=0.3, **changes))
    return replace(traffic, calls=tuple(calls))


def _retrying(chance: random.Random, traffic: Traffic) -> Traffic:
    """Return a schedule in which most bodies retry, soon or at once."""
    pick = chance.choice
    calls = (
        replace(
            call, runs=min(call.runs, 1.0), retries=pick((0, 1, 1, 2, 3)),
            pause=pick((0.0, 0.0, 0.3, 1.5)),
        )
        for call in traffic.calls[:4]
    )  # fmt: skip
    return replace(traffic, calls=tuple(calls))


def _coalesced(chance: random.Random, seed: int) -> Traffic:
    """Return a schedule in which calls go on after a message with the pending slot is in trouble.

    The slot outlives its message by a minute, if nobody releases it.
    """
    pick = chance.choice
    calls = [
        Call(round(chance.uniform(0.0, 8.0), 4), "a", round(chance.uniform(0.2, 1.5), 3))
        for _ in range(pick((6, 8, 10)))
    ]
    workers = tuple(
        Client(
            1.0, 0.0, 0.0, (),
            tuple(
                Strike(int(10 ** chance.uniform(1.6, 2.5)), "crash", 0.0)
                for _ in range(pick((0, 0, 1)))
            ),
        )
        for _ in range(pick((2, 3)))
    )  # fmt: skip
    refusals = tuple(
        Fault(round(chance.uniform(0.0, HORIZON_S), 4), chance.uniform(0.7, 2.0), REFUSE, 0, 1)
        for _ in range(pick((0, 1, 2)))
    )
    still = Client(1.0, 0.0, 0.0, (), ())
    traffic = Traffic(
        seed, ((1.0, 0.0),) * 3, 0.0005, (still, *workers, still), _in_order(refusals), "coalesce",
        LATE, pick((0.0, 1.5)), 1, _in_turn(calls),
    )  # fmt: skip
    if chance.random() < 0.4:
        return _flapping(chance, traffic)
    return traffic


def _prefork(chance: random.Random, seed: int) -> Traffic:
    """Return a schedule of a pool whose children die, and whose main process stands still."""
    pick = chance.choice
    traffic = _any(chance, seed)
    caller, *workers, last = traffic.clients
    faults = tuple(one for one in traffic.faults if one.kind not in ON_BROKER)
    pauses = tuple(one for one in _strikes(chance) if one.kind == "pause")
    # On one machine, they have one clock.
    main = Client(_rate(chance), 0.0, 0.0, (), pauses)
    children = tuple(
        replace(main, strikes=tuple(it for it in one.strikes if it.kind == "crash"))
        for one in (*workers, last)
    )
    return replace(
        traffic, clients=(caller, main, *children), is_prefork=True, acks=LATE,
        faults=faults if pick((0, 0, 1)) else (),
    )  # fmt: skip


def _flapping(chance: random.Random, traffic: Traffic) -> Traffic:
    """Return a schedule in which one node after the other is cut off, and a message waits long.

    Each renewal of its pending slot then leaves an earlier owner on another node.
    """
    at, cuts = 0.5, []
    for node in range(chance.choice((2, 3, 4))):
        lasts = round(chance.uniform(0.3, 2.0), 4)
        cuts.append(Fault(at, lasts, "cut", node % 3))
        at = round(at + lasts + chance.uniform(0.0, 0.3), 4)
    still = tuple(replace(client, strikes=()) for client in traffic.clients)
    calls = (Call(0.0, "a", 5.0), *traffic.calls[:3])
    return replace(traffic, clients=still, faults=tuple(cuts), calls=_in_turn(calls))


def _reserved(chance: random.Random, seed: int) -> Traffic:
    """Return a schedule of calls that are reserved when they are published, by two who may die."""
    pick = chance.choice
    traffic = _any(chance, seed)
    _, *workers = traffic.clients
    callers = tuple(Client(_rate(chance), 0.0, 0.0, (), _strikes(chance)) for _ in range(2))
    faults = tuple(
        replace(
            fault,
            client=pick((0, 1, fault.client + 1)) if fault.kind == SWALLOW else fault.client + 1,
        )
        if fault.kind in ON_BROKER
        else fault
        for fault in traffic.faults
    )
    calls = [*traffic.calls, *pick((_at_once, _scattered))(chance, ("a",))]
    traffic = replace(
        traffic, clients=(*callers, *workers), faults=faults, calls=_in_turn(calls), callers=2,
        lifetime=RESERVING, policy=pick(POLICIES[:5]),
    )  # fmt: skip
    if chance.random() < 0.4:
        traffic = replace(traffic, lifetime=RESERVING_SLOT, policy=pick(POLICIES))
    return traffic


def _any(chance: random.Random, seed: int) -> Traffic:
    pick = chance.choice
    workers = pick((1, 2, 2, 3))
    clients = (
        Client(1.0, 0.0, 0.0, (), ()),
        *(Client(_rate(chance), 0.0, 0.0, (), _strikes(chance)) for _ in range(workers)),
        Client(1.0, 0.0, 0.0, (), ()),
    )
    keys = pick((("a",), ("a",), ("a", "b")))
    calls = pick((_at_once, _scattered, _scattered, _scattered))(chance, keys)
    count = pick((3, 3, 3, 5))
    faults = [_on_broker(chance, workers) for _ in range(pick((0, 0, 1, 2)))]
    faults += [_on_nodes(chance, count, len(clients)) for _ in range(pick((0, 0, 1, 2)))]
    return Traffic(
        seed,
        tuple((_rate(chance), chance.uniform(-0.1, 0.1)) for _ in range(count)),
        pick((0.0005, 0.002, 0.01)),
        clients,
        _in_order(faults),
        pick(POLICIES),
        pick((LATE, LATE, EARLY)),
        pick((0.0, 0.0, 1.5, 4.0)),
        pick((1, 1, 3)),
        _in_turn(calls),
    )


def _in_order(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    return tuple(sorted(faults, key=lambda fault: fault.at))


def _in_turn(calls: Iterable[Call]) -> tuple[Call, ...]:
    return tuple(sorted(calls, key=lambda call: call.at))


def _scattered(chance: random.Random, keys: tuple[str, ...]) -> list[Call]:
    pick = chance.choice
    spread = pick((0.02, 0.5, 2.0, HORIZON_S))
    return [
        Call(
            round(chance.uniform(0.0, spread), 4), pick(keys), _runs(chance),
            pick((0.0, 0.0, 0.0, 0.0, 0.5, 3.0)),
        )
        for _ in range(pick((2, 3, 4, 5)))
    ]  # fmt: skip


def _at_once(chance: random.Random, keys: tuple[str, ...]) -> list[Call]:
    """Return calls that are all due at one moment: each node may vote for another one."""
    return [
        Call(number / 100, keys[0], _runs(chance), 0.5 - number / 100)
        for number in range(chance.choice((2, 3, 3, 4)))
    ]


def _runs(chance: random.Random) -> float:
    return round(chance.choice((0.01, 0.1, 0.5, 2.0, 5.0)) * chance.uniform(0.5, 1.0), 3)


def _rate(chance: random.Random) -> float:
    return 1 + chance.choice((0.0, -RATE, RATE))


def _strikes(chance: random.Random) -> tuple[Strike, ...]:
    strikes = (
        Strike(
            int(10 ** chance.uniform(1.3, 2.8)), chance.choice(("crash", "crash", "pause")),
            round(chance.choice((0.1, 0.5, 2.0, 4.0)) * chance.uniform(0.5, 1.0), 3),
        )
        for _ in range(chance.choice((0, 0, 1, 2)))
    )  # fmt: skip
    return tuple(sorted(strikes))


def _on_broker(chance: random.Random, workers: int) -> Fault:
    kind = chance.choice(ON_BROKER)
    at = round(chance.uniform(0.0, HORIZON_S), 4)
    lasts = round(chance.choice((0.1, 0.5, 2.0)) * chance.uniform(0.5, 1.0), 4)
    return Fault(at, lasts, kind, 0, 1 + chance.randrange(workers))


def _on_nodes(chance: random.Random, nodes: int, clients: int) -> Fault:
    pick = chance.choice
    kind = pick((*_ON_LINKS, "hang", "restart", *FORGETTING))
    at = round(chance.uniform(0.0, HORIZON_S), 4)
    lasts = round(pick((0.02, 0.1, 0.5, 2.0)) * chance.uniform(0.5, 1.0), 4)
    client = pick((-1, *range(clients))) if kind in _ON_LINKS else -1
    size = pick((0.02, 0.08, 0.3)) if kind == "slow" else 0.0
    return Fault(at, lasts, kind, chance.randrange(nodes), client, size)
