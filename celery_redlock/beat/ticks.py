"""Ticks: one entry at one slot, and the claim of one replica on it.

A claim is a lock: acquired for a short time before the message is published, then held for a long
time as the mark that it was. A replica that finds a short claim looks again when it has ended.
"""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from celery_redlock.messages.headers import TICK_HEADER
from celery_redlock.redlock import Lease
from celery_redlock.redlock.errors import LockHeld, QuorumUnavailable
from celery_redlock.redlock.labels import bounded
from celery_redlock.redlock.task_lock import TaskLock

from .grace import GRACE_HEADER
from .slots import Moment

CLAIM_S = 10.0
"""How long publishing may take before another replica claims the tick."""
MISSED = ":missed"
"""End of the key under which a missed tick is noted."""
_NOTED_S = 86_400.0
"""How long it stays noted: until somebody looks, who was asleep."""
_MARK_MARGIN_S = 60.0
_NAME_BYTES = 512
_NAMESPACE = uuid.UUID("6f1c6f0e-4f0b-5d0e-9c39-2a2f3f7d7a11")


@dataclass(slots=True, eq=False)
class Tick:
    """A tick: one entry at one slot.

    Attributes:
        entry: The entry, as it was when due.
        slot: The due time, in UTC.
        app: The identity of its app; see `identity_of`.
        at: When a postponed tick is ready again, seconds on the boot-time clock; 0: not
            postponed.
        until_next: Time from the slot to the next one of the entry, seconds; at most a day.
        grace: Largest delay with which it is published, seconds.
        kept: Time from the slot for which any replica may still look for its claim, seconds.
        held_up_by: What has held it up: "no quorum", "no broker", "clock off" or, if no replica
            was at work, "no beat"; "late": nothing of these.
    """

    entry: Any
    slot: Moment
    app: str
    at: float = 0.0
    until_next: float = 0.0
    grace: float = 0.0
    kept: float = 0.0
    held_up_by: str = "late"

    @property
    def key(self) -> str:
        """The key of its claim. No task's key has a % that is not an escape."""
        # With the app: celery.backend_cleanup is an entry of every app's.
        name = bounded(quote(self.entry.name, safe=""), _NAME_BYTES)
        return f"%beat:{self.app}:{name}:{self.time}"

    @property
    def time(self) -> str:
        """The slot in ISO 8601."""
        return self.slot.astimezone(dt.timezone.utc).isoformat().replace("+00:00", "Z")

    @property
    def task_id(self) -> str:
        """The message's id, the same at every replica."""
        return str(uuid.uuid5(_NAMESPACE, self.key))

    def entry_to_publish(self, more: Mapping[str, str]) -> Any:
        """Return a copy of the entry with the options of this tick, and `more` headers."""
        # copy() would call the constructor, which some entry classes don't survive.
        entry = object.__new__(type(self.entry))
        vars(entry).update(vars(self.entry))
        headers = copy.copy(self.entry.options.get("headers") or {})
        headers.pop(GRACE_HEADER, None)
        headers |= {TICK_HEADER: self.time, "celery_beat_task": True, **more}
        entry.options = {**self.entry.options, "task_id": self.task_id, "headers": headers}
        return entry


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of one replica.

    Attributes:
        redlock: The lock that holds them.
        skew: By how much a replica's clock may differ from the nodes', seconds.
    """

    redlock: TaskLock
    skew: float

    def acquire(self, tick: Tick, after: Lease | None = None) -> Lease:
        """Claim `tick` for a short time and return the claim.

        Args:
            tick: The tick.
            after: Earlier claim of this replica, which may be left on a node; None: there is none.

        Raises:
            LockHeld: Another replica has the claim; held for longer than `CLAIM_S`: published.
            QuorumUnavailable: Fewer nodes than a quorum could answer.
        """
        supersedes = after.owner if after else None
        return self.redlock.reserve(tick.key, CLAIM_S, label=tick.task_id, supersedes=supersedes)

    def mark_published(self, claim: Lease, tick: Tick) -> None:
        """Hold the claim of a published tick for longer than any replica looks back.

        And until the next one is too late: see `is_published`.

        Raises:
            QuorumUnavailable: Less than a majority confirmed.
        """
        keep = tick.kept + 2 * self.skew + CLAIM_S + _MARK_MARGIN_S
        self.redlock.release(claim, keep=keep)

    def is_published(self, tick: Tick) -> bool:
        """Return whether a replica has published `tick`, the last that is too old to be published.

        False also if no quorum answers.
        """
        try:
            held = self.redlock.read_holder(tick.key)
        except QuorumUnavailable:
            return False
        return held is not None and not held.contended and held.remaining > CLAIM_S

    def note_missed(self, tick: Tick) -> None:
        """Note on the nodes, for a day, that `tick` was missed, and what has held it up.

        Not under the key of its claim: another replica may still publish the tick.

        Raises:
            QuorumUnavailable: Fewer nodes than a quorum could answer.
        """
        # Another replica may have noted it.
        with contextlib.suppress(LockHeld):
            self.redlock.reserve(tick.key + MISSED, _NOTED_S, label=tick.held_up_by)

    def release(self, claim: Lease) -> None:
        """Release the claim: any replica may claim the tick.

        Raises:
            QuorumUnavailable: Less than a majority confirmed.
        """
        self.redlock.release(claim)
