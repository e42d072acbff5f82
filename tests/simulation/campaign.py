"""Many schedules, one after the other; a failing one is shrunk."""

from __future__ import annotations

import gc
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from .bugs import FOUND_WITHIN, WITHOUT_GUARD, with_bug
from .bugs import SEEDS as KNOWN_SEEDS
from .installation import installed
from .run import Outcome, run
from .schedule import Schedule, smaller
from .shapes import schedule_of
from .tasks.apps import App, installed_apps
from .tasks.run import TaskRun
from .tasks.schedule import FIRST_SEED, KINDS_OF_SEEDS, Traffic, smaller_traffic

_COLLECT_EVERY = 10
_FREEZE_EVERY = 100
"""First after `_COLLECT_EVERY` schedules: what is there by then, as the apps are, mostly stays."""
_SLICE = 500
FOUND_FROM_KNOWN = 3000
"""Schedules from a seed on that was known to find a bug, before the code around it changed."""
_FRESH_SEED = 2_000_000
_FRESH_SEEDS = 20_000
_FRESH_STARTS = 1_000


@dataclass(slots=True)
class Counts:
    """What a campaign has counted.

    Attributes:
        schedules: Number of schedules.
        of_calls: How many of them are of calls.
        acquisitions: Number of leases.
        faults: Faults that struck, by kind.
        endings: How messages have ended, by kind.
        failed: Seed and violation of each schedule that failed.
    """

    schedules: int = 0
    of_calls: int = 0
    acquisitions: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    failed: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        self.schedules += other.schedules
        self.of_calls += other.of_calls
        self.acquisitions += other.acquisitions
        self.faults.update(other.faults)
        self.endings.update(other.endings)
        self.failed += other.failed


def campaign(
    seeds: Iterable[int], bug: str | None = None, *, stops_at_first: bool = False
) -> Counts:
    """Run the schedule of each seed, with a bug put in if one is named."""
    counts = Counts()
    try:
        with without_collection(), _ready(bug) as run_once:
            for seed in seeds:
                outcome = run_once(schedule_of(seed), False)
                counts.schedules += 1
                counts.of_calls += seed >= FIRST_SEED
                counts.acquisitions += outcome.acquired
                counts.faults.update(outcome.struck)
                counts.endings.update(outcome.endings)
                if outcome.violation:
                    counts.failed.append((seed, str(outcome.violation)))
                    if stops_at_first:
                        break
                if counts.schedules % _COLLECT_EVERY == 0:
                    gc.collect()
                if counts.schedules % _FREEZE_EVERY == _COLLECT_EVERY % _FREEZE_EVERY:
                    gc.freeze()
    finally:
        if counts.schedules >= _COLLECT_EVERY:
            # Else what is garbage by now would stay for good.
            gc.unfreeze()
    return counts


def slices_of(seed: int, locks: int, calls: int) -> Iterator[range]:
    """Yield the seeds of so many schedules of the lock alone, and of calls, in slices.

    Wherever one stops, the shares of the two kinds are about right.
    """
    reserved, prefork = calls // 4, calls // 10
    counts = (locks, calls - reserved - prefork, reserved, prefork)
    kinds = [
        _slices(first + seed, count) for first, count in zip(KINDS_OF_SEEDS, counts, strict=True)
    ]
    return (seeds for _, seeds in heapq.merge(*kinds, key=lambda one: one[0]))


def _slices(first: int, count: int) -> Iterator[tuple[float, range]]:
    """Yield the seeds of one kind in slices, each with the share of all that comes before it."""
    for start in range(0, count, _SLICE):
        yield start / count, range(first + start, first + min(start + _SLICE, count))


def control(sought: tuple[str, int | None]) -> dict[str, object]:
    """Look for a bug: from the schedule on that was picked for it, or in fresh ones.

    Args:
        sought: The bug, and the number that fresh schedules follow from; None: the picked one.

    Returns:
        What it was found as, "none" if it was not; of fresh ones, after how many of how many.
    """
    bug, seed = sought
    known = KNOWN_SEEDS[bug]
    if seed is None:
        near = campaign(range(known, known + FOUND_FROM_KNOWN), bug, stops_at_first=True)
        return {"bug": bug, "found as": _found_as(near)}
    kind = max(first for first in KINDS_OF_SEEDS if first <= known)
    first, most = kind + _FRESH_SEED + seed % _FRESH_STARTS * _FRESH_SEEDS, FOUND_WITHIN[bug]
    counts = campaign(range(first, first + most), bug, stops_at_first=True)
    return {
        "bug": bug,
        "found as": _found_as(counts),
        "after schedules": counts.schedules,
        "of at most": most,
    }


def is_missed(found: Mapping[str, object]) -> bool:
    """Return whether a control has not found its bug; an exception may be the control's own."""
    return found["found as"] in ("none", "error")


def _found_as(counts: Counts) -> str:
    return counts.failed[0][1].partition(":")[0] if counts.failed else "none"


def traced(schedule: Schedule, bug: str | None = None) -> Outcome:
    """Run one schedule, and note what happens."""
    with _ready(bug) as run_once, without_collection():
        return run_once(schedule, True)


def shrunk(schedule: Schedule, kind: str, bug: str | None = None) -> Schedule:
    """Return a schedule that is as small as can be, and fails in the same way."""
    with _ready(bug) as run_once, without_collection():
        is_smaller = True
        while is_smaller:
            is_smaller = False
            for candidate in _smaller(schedule):
                violation = run_once(candidate, False).violation
                if violation and violation.kind == kind:
                    schedule, is_smaller = candidate, True
                    break
    return schedule


def _smaller(schedule: Schedule) -> Iterator[Schedule]:
    if isinstance(schedule, Traffic):
        return smaller_traffic(schedule)
    return smaller(schedule)


@contextmanager
def _ready(bug: str | None) -> Iterator[Callable[[Schedule, bool], Outcome]]:
    """Yield a function that runs a schedule, and notes what happens if its second argument says so.

    Celery's apps are made when the first schedule needs them.
    """
    apps: list[App] = []
    with installed() as simulated, with_bug(bug), ExitStack() as stack:

        def run_once(schedule: Schedule, is_traced: bool) -> Outcome:
            if not isinstance(schedule, Traffic):
                return run(simulated, schedule, is_traced=is_traced, guard=bug != WITHOUT_GUARD)
            if not apps:
                apps.extend(stack.enter_context(installed_apps(simulated)))
            return TaskRun(simulated, schedule, apps, is_traced=is_traced).outcome()

        yield run_once


@contextmanager
def without_collection() -> Iterator[None]:
    """Collect no garbage: the lock hears of some of it, at a time that depends on earlier runs."""
    gc.disable()
    try:
        yield
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
