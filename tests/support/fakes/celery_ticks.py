"""How Celery's versions go through their heap: what is installed is only one of them."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

from celery.beat import Scheduler, event_t


class Until56(Scheduler):
    """Asks the first entry whatever its time, and leaves it there when it is not due (5.5, 5.6)."""

    def tick(self, *args: Any, **kwargs: Any) -> float:
        return tick(self, looks_at_time=False)


class Since57(Scheduler):
    """Asks the first entry when its time has come, and puts it back when it is not due (5.7)."""

    def tick(self, *args: Any, **kwargs: Any) -> float:
        return tick(self, looks_at_time=True)


def tick(scheduler: Any, *, looks_at_time: bool) -> float:
    """Ask the first entry, and run it if it is due; return when to come again, seconds."""
    changed = not scheduler.schedules_equal(scheduler.old_schedulers, scheduler.schedule)
    if scheduler._heap is None or changed:
        scheduler.old_schedulers = dict(scheduler.schedule)
        scheduler.populate_heap()
    if not (heap := scheduler._heap):
        return float(scheduler.max_interval)
    first = heap[0]
    wait = float(first.time - scheduler._when(first.entry, 0))
    if looks_at_time and wait > 0:
        return min(wait, float(scheduler.max_interval))
    is_due, left = scheduler.is_due(first.entry)
    if is_due:
        heappop(heap)
        following = scheduler.reserve(first.entry)
        scheduler.apply_entry(first.entry, producer=scheduler.producer)
        heappush(heap, event_t(scheduler._when(following, left), first.priority, following))
        return 0.0
    if looks_at_time:
        heappop(heap)
        heappush(heap, first._replace(time=scheduler._when(first.entry, left)))
        if heap[0].entry is not first.entry:
            return 0.0
    return float(min(scheduler.adjust(left), scheduler.max_interval))
