"""Many schedules, one after the other; a failing one is shrunk."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from .bugs import KNOWN_SEEDS, WITHOUT_GUARD, with_bug
from .installation import Simulated, installed
from .run import Outcome, run
from .schedule import Schedule, smaller
from .shapes import schedule_of

_COLLECT_EVERY = 100
_FRESH_SEED = 2_000_000


@dataclass(slots=True)
class Counts:
    """What a campaign has counted.

    Attributes:
        schedules: Number of schedules.
        acquisitions: Number of leases.
        faults: Faults that struck, by kind.
        failed: Seed and violation of each schedule that failed.
    """

    schedules: int = 0
    acquisitions: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    failed: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        self.schedules += other.schedules
        self.acquisitions += other.acquisitions
        self.faults.update(other.faults)
        self.failed += other.failed


def campaign(
    seeds: Iterable[int], bug: str | None = None, *, stops_at_first: bool = False
) -> Counts:
    """Run the schedule of each seed, with a bug put in if one is named."""
    counts = Counts()
    # When objects are collected must not depend on what ran before: some of the lock hears of it.
    gc.disable()
    gc.collect()
    gc.freeze()
    try:
        with installed() as simulated, with_bug(bug):
            for seed in seeds:
                outcome = run(simulated, schedule_of(seed), guard=bug != WITHOUT_GUARD)
                counts.schedules += 1
                counts.acquisitions += outcome.acquired
                counts.faults.update(outcome.struck)
                if outcome.violation:
                    counts.failed.append((seed, str(outcome.violation)))
                    if stops_at_first:
                        break
                if counts.schedules % _COLLECT_EVERY == 0:
                    gc.collect()
    finally:
        gc.unfreeze()
        gc.enable()
    return counts


def control(sought: tuple[str, int]) -> dict[str, object]:
    """Look for a bug in so many fresh schedules, or for 1 in the one that is known to find it."""
    bug, most = sought
    first = KNOWN_SEEDS[bug] if most == 1 else _FRESH_SEED
    counts = campaign(range(first, first + most), bug, stops_at_first=True)
    kind = counts.failed[0][1].partition(":")[0] if counts.failed else "none"
    found: dict[str, object] = {"bug": bug, "found as": kind}
    return found if most == 1 else {**found, "after schedules": counts.schedules}


def traced(schedule: Schedule, bug: str | None = None) -> Outcome:
    """Run one schedule, and note what happens."""
    with installed() as simulated, with_bug(bug):
        return _once(simulated, schedule, bug, is_traced=True)


def shrunk(schedule: Schedule, kind: str, bug: str | None = None) -> Schedule:
    """Return a schedule that is as small as can be, and fails in the same way."""
    with installed() as simulated, with_bug(bug):
        is_smaller = True
        while is_smaller:
            is_smaller = False
            for candidate in smaller(schedule):
                violation = _once(simulated, candidate, bug).violation
                if violation and violation.kind == kind:
                    schedule, is_smaller = candidate, True
                    break
    return schedule


def _once(
    simulated: Simulated, schedule: Schedule, bug: str | None, *, is_traced: bool = False
) -> Outcome:
    gc.disable()
    try:
        return run(simulated, schedule, is_traced=is_traced, guard=bug != WITHOUT_GUARD)
    finally:
        gc.enable()


def explained(seed: int, bug: str | None = None) -> str:
    """Return the smallest failing schedule that a seed leads to, and its trace."""
    violation = traced(schedule_of(seed), bug).violation
    if violation is None:
        return f"seed {seed}: no violation"
    small = shrunk(schedule_of(seed), violation.kind, bug)
    outcome = traced(small, bug)
    return "\n".join([f"seed {seed}: {outcome.violation}", str(small), *outcome.trace])
