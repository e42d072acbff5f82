"""Comparisons that hold on a noisy machine: calls that alternate, and ratios of their medians."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

from .page import Row

_WARM_UP = 50
_MOST_CALLS = 20_000
_BLOCK = 10

Call = Callable[[], object]
"""Does something once; False: it failed."""


@dataclass
class Samples:
    """What a block of calls took: seconds of each, CPU seconds of all; how many failed."""

    walls: list[float]
    cpu: float
    failed: int = 0


Block = Callable[[int], Samples]
"""Makes that many calls in a row."""


@dataclass
class Variant:
    """One of the things that are compared.

    Attributes:
        name: Its name on the page.
        walls: Duration of each call, in seconds.
        cpus: CPU time of the client per call, in seconds, of each block of calls.
        failed: How many calls failed.
    """

    name: str
    walls: list[float] = field(default_factory=list)
    cpus: list[float] = field(default_factory=list)
    failed: int = 0

    def add(self, samples: Samples) -> None:
        """Add a block of calls."""
        self.walls += samples.walls
        self.cpus.append(samples.cpu / len(samples.walls))
        self.failed += samples.failed

    def row(self, **more: float | str) -> Row:
        """Return its figures in µs, and whatever else belongs into its row."""
        cpu = median(self.cpus) * 1e6 if self.cpus else None
        figures = percentiles_us(self.walls) | {"cpu_us": cpu}
        return {"name": self.name, **more, **figures, "failed": self.failed}


def percentiles_us(seconds: list[float]) -> Row:
    """Return median, p95, p99 and p99.9 in µs; of few calls p99.9 is the worst."""
    ordered = sorted(seconds)
    return {
        **{
            f"{name}_us": ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e6
            for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999))
        },
        "calls": len(ordered),
    }


def timed(call: Call) -> Block:
    """Return what makes a call many times, and notes how long each took this thread."""

    def block(calls: int) -> Samples:
        walls, failed = [], 0
        computed = time.thread_time()
        for _ in range(calls):
            began = time.perf_counter()
            failed += call() is False
            walls.append(time.perf_counter() - began)
        return Samples(walls, time.thread_time() - computed, failed)

    return block


def interleaved(
    blocks: Mapping[str, Block], seconds: float, *, in_a_row: int = _BLOCK
) -> list[Variant]:
    """Time calls in turn, in an order that changes, so that each meets the same noise.

    Args:
        blocks: What to compare, by name.
        seconds: How long to measure, without the turn that has begun.
        in_a_row: Calls of each before the next one's turn: more than one, since some packages leave
            work behind that would slow down whoever comes next.
    """
    share = seconds / len(blocks) / 10
    for block in blocks.values():
        ends_at = time.perf_counter() + share
        for _ in range(0, _WARM_UP, in_a_row):
            block(in_a_row)
            if time.perf_counter() > ends_at:
                break
    variants = {name: Variant(name) for name in blocks}
    order = list(blocks)
    ends_at = time.perf_counter() + seconds
    for _ in range(0, _MOST_CALLS, in_a_row):
        random.shuffle(order)
        for name in order:
            variants[name].add(blocks[name](in_a_row))
        if time.perf_counter() > ends_at:
            break
    return list(variants.values())
