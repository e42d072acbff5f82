"""Ticks: one entry at one slot, and the claim that one replica has on it.

A claim is a lock. It is taken for a short time before the message is published, and kept for a long
time after that: whoever finds one that ends soon looks again when it has ended.
"""

from __future__ import annotations

import copy
import datetime as dt
import uuid
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from .redlock import Lease, Redlock
from .run import TICK_HEADER
from .slots import Moment

CLAIM_S = 10.0
"""How long publishing may take before another replica takes the tick over."""
_KEPT_LONGER_S = 60.0
_NAMESPACE = uuid.UUID("6f1c6f0e-4f0b-5d0e-9c39-2a2f3f7d7a11")


@dataclass(slots=True, eq=False)
class Tick:
    """One entry at one slot.

    Attributes:
        entry: The entry, as it stood.
        slot: Its moment, in UTC.
        app: The app's name.
        at: Until when it was put off, seconds on the boot-time clock; 0: it never was.
    """

    entry: Any
    slot: Moment
    app: str
    at: float = 0.0

    @property
    def key(self) -> str:
        """Name of its claim. No task's lock has a % that is not an escape."""
        # With the app's name: celery.backend_cleanup is an entry of every app's.
        return f"%beat:{quote(self.app)}:{quote(self.entry.name, safe='')}:{self.time}"

    @property
    def time(self) -> str:
        """Its slot in ISO 8601."""
        return self.slot.astimezone(dt.timezone.utc).isoformat().replace("+00:00", "Z")

    @property
    def task_id(self) -> str:
        """The message's id: the same at every replica."""
        return str(uuid.uuid5(_NAMESPACE, self.key))

    def entry_to_publish(self) -> Any:
        """Return the entry with the options of this one tick."""
        # Not by copy(), which some entries don't survive: it makes them by their constructor.
        entry = object.__new__(type(self.entry))
        vars(entry).update(vars(self.entry))
        headers = copy.copy(self.entry.options.get("headers") or {})
        headers |= {TICK_HEADER: self.time, "celery_beat_task": True}
        entry.options = {**self.entry.options, "task_id": self.task_id, "headers": headers}
        return entry


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of one replica.

    Attributes:
        redlock: Where they are held.
        look_back: How old a tick may be for any replica to try and claim it, seconds.
    """

    redlock: Redlock
    look_back: float

    def take(self, tick: Tick) -> Lease:
        """Return a claim on `tick`, for a short time.

        Raises:
            LockHeld: Another replica has it: published if it holds it for longer than `CLAIM_S`.
            QuorumUnavailable: Fewer nodes than a quorum could answer.
        """
        return self.redlock.reserve(tick.key, CLAIM_S, label=tick.task_id)

    def keep(self, claim: Lease) -> None:
        """Hold the claim on a published tick for longer than any replica looks back.

        Raises:
            QuorumUnavailable: Less than a majority confirmed.
        """
        self.redlock.release(claim, keep=self.look_back + CLAIM_S + _KEPT_LONGER_S)

    def give_back(self, claim: Lease) -> None:
        """Let any replica have the tick.

        Raises:
            QuorumUnavailable: Less than a majority confirmed.
        """
        self.redlock.release(claim)
