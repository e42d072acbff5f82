"""What processes do that were started with a pickled lock."""

from __future__ import annotations

from typing import Any

from celery_redlock.redlock import LockHeld, Redlock
from celery_redlock.redlock.events import Acquired, Event
from celery_redlock.redlock.hold import Hold

seen: list[Event] = []


def observe(event: Event) -> None:
    """Note an event in the process in which it happens."""
    seen.append(event)


def hold_in_a_child(results: Any, redlock: Redlock, hold: Hold) -> None:
    """Enter a block that is refused, then one under another key; report what was seen."""
    assert redlock.keeper.kept() == []
    try:
        with hold:
            results.put("entered")
    except LockHeld as held:
        results.put(held.remaining)
    with redlock.lock("another") as lease:
        lease.ensure()
    results.put([one.lease.key for one in seen if isinstance(one, Acquired)])
