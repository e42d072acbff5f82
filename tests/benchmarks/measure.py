"""Comparisons that hold on a slow and noisy machine: ratios of medians of calls that alternate."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import median
from typing import TypeVar

ATTEMPTS = 5
_WARM_UP = 50
_MOST_CALLS = 4000

T = TypeVar("T")


@dataclass
class Variant:
    """One of the things that are compared, and what its calls took.

    Attributes:
        name: What it is called in the report.
        walls: Seconds that passed during each call.
        cpus: Seconds for which this thread computed, of these.
    """

    name: str
    walls: list[float] = field(default_factory=list)
    cpus: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median call, in seconds."""
        return median(self.walls)

    @property
    def cpu(self) -> float:
        """The CPU time of the median call, in seconds."""
        return median(self.cpus)

    def time(self, call: Callable[[], object]) -> None:
        """Make one call and note what it took."""
        began, computed = time.perf_counter(), time.thread_time()
        call()
        self.walls.append(time.perf_counter() - began)
        self.cpus.append(time.thread_time() - computed)


Cost = Callable[[Variant], float]
wall: Cost = attrgetter("median")
cpu: Cost = attrgetter("cpu")

Report = list[tuple[str, list[Variant], str]]
"""Tables: the title, the rows, the first of which is 1, and a note."""


def interleaved(
    calls: Mapping[str, Callable[[], object]], seconds: float, in_a_row: int = 1
) -> list[Variant]:
    """Time calls in turn, in an order that changes, so that each meets the same noise.

    Args:
        calls: What to compare, by name.
        seconds: How long to measure at most; a few thousand calls of each are enough.
        in_a_row: How often to make each call before the next one's turn; more than once when some
            leave work behind that would slow down whoever comes next.
    """
    for call in calls.values():
        for _ in range(_WARM_UP):
            call()
    variants = {name: Variant(name) for name in calls}
    order = list(calls)
    ends_at = time.perf_counter() + seconds
    for _ in range(0, _MOST_CALLS, in_a_row):
        random.shuffle(order)
        for name in order:
            for _ in range(in_a_row):
                variants[name].time(calls[name])
        if time.perf_counter() > ends_at:
            break
    return list(variants.values())


def first_within(
    limits: Mapping[str, float],
    measure: Callable[[float], list[Variant]],
    seconds: float,
    cost: Cost = wall,
) -> tuple[list[Variant], str]:
    """Measure until every ratio is within its limit, a few times at most.

    One measurement that says so will do: what else runs on the machine makes a ratio worse far
    more often than better, for it strikes the side that does more.

    Args:
        limits: The largest allowed ratio of a variant's cost to the first variant's, by name.
        measure: Measures for that many seconds; the first variant is what others are compared to.
        seconds: For all attempts together.
        cost: What of a variant is compared.

    Returns:
        The measurement that was within the limits, failing that the best, and how many it took.
    """
    best: tuple[float, list[Variant], str] | None = None
    for attempt in range(1, ATTEMPTS + 1):
        variants = measure(seconds / ATTEMPTS)
        excess = max(ratio(variants, name, cost) / limit for name, limit in limits.items())
        note = f"measurement {attempt} of {ATTEMPTS} at most"
        if best is None or excess < best[0]:
            best = (excess, variants, note)
        if excess <= 1:
            break
    assert best is not None
    return best[1:]


def ratio(variants: list[Variant], name: str, cost: Cost = wall) -> float:
    """Return the ratio of a variant's cost to the first variant's."""
    [named] = [variant for variant in variants if variant.name == name]
    return cost(named) / cost(variants[0])
