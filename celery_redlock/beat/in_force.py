"""The entries in force: an entry has missed nothing before it was in force as it is now."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Mapping
from typing import Any

from .slot_schedule import aware, beginning_of, rows_of
from .slots import INSTANT, Moment, is_clocked, slots_between


class InForce:
    """The entries in force at a replica's last look at the schedule.

    Attributes:
        looked_at: When that was; None before the first look by a clock known to be right.

    Args:
        skew: By how much a clock that is right may differ from the nodes', seconds.
    """

    def __init__(self, skew: float) -> None:
        self.looked_at: Moment | None = None
        self._differs = 2 * dt.timedelta(seconds=skew)
        self._schedules: dict[str, object] | None = None
        self._changed: set[str] = set()

    def was_ahead(self, now: Moment) -> bool:
        """Return whether the clock was ahead at the last look, by more than clocks may differ.

        Less than that costs no more than that time.
        """
        return self.latest(now) < (self.looked_at or now)

    def latest(self, now: Moment) -> Moment:
        """Return the latest moment that a clock that was right can have shown by `now`."""
        return now + self._differs

    def begin(
        self, entries: Mapping[str, Any], seen: dict[str, Moment], now: Moment
    ) -> dict[str, Moment]:
        """Begin the entries that are not in force as they are now since the last look.

        And those that were seen, or ran last, by a clock that was ahead: all at the last look.
        None is begun while `looked_at` is not known.

        Args:
            entries: The entries by name.
            seen: The moment up to which slots were seen, by name; corrected here.
            now: The present time.

        Returns:
            Until when entries were seen by a clock that was ahead.
        """
        changed = self.changed(entries)
        if self.looked_at is None:
            return {}
        latest = self.latest(now)
        for entry in changed:
            seen.pop(entry.name, None)
            begin_at(entry, self.looked_at, latest)
        for name in seen.keys() - entries.keys():
            del seen[name]
        ahead = ahead_of(latest, entries, seen)
        for name in ahead:
            seen[name] = self.looked_at
            begin_at(entries[name], self.looked_at, latest)
        return ahead

    def changed(self, entries: Mapping[str, Any]) -> list[Any]:
        """Record `entries` as those in force; return those that were not, as they are now.

        An entry that was absent (disabled, perhaps) or had another schedule is returned. At the
        first look none is: how long they have been in force is not known. Those of the looks
        before `looked_at` is known are returned at the first one after.
        """
        before = self._schedules
        self._schedules = {
            name: (entry.schedule, beginning_of(entry)) for name, entry in entries.items()
        }
        if before is not None:
            self._changed |= {
                name for name, its in self._schedules.items() if before.get(name) != its
            }
        if self.looked_at is None:
            return []
        changed, self._changed = self._changed, set()
        return [entry for name, entry in entries.items() if name in changed]


class Listed:
    """The entries of RedBeat that its schedule listed at the last look: those that were due."""

    def __init__(self) -> None:
        self._last: dict[str, object] | None = None
        self._present: dict[str, object] = {}

    def end_look(self) -> None:
        """End a look at the schedule."""
        self._last, self._present = self._present, {}

    def is_changed(self, entry: Any, looked_at: Moment) -> bool:
        """Record `entry` as listed; return whether it was not in force at the last look as it is.

        One that was listed with another schedule was not; nor was one that was not listed, though
        by its own reckoning it was due by then. At the first look none is changed: see
        `InForce.changed`.

        Args:
            entry: The entry.
            looked_at: When the last look began.
        """
        self._present[entry.name] = entry.schedule
        if self._last is None or not entry.last_run_at:
            return False
        last_run = aware(entry.last_run_at)
        if entry.name in self._last:
            # With a later run, another replica has begun it.
            return last_run < looked_at and bool(self._last[entry.name] != entry.schedule)
        left = None
        with contextlib.suppress(NotImplementedError):  # a user's class
            left = entry.schedule.remaining_estimate(last_run)
        return left is not None and aware(entry.schedule.now()) + left < looked_at


def begin_at(entry: Any, moment: Moment, latest: Moment) -> None:
    """Let `entry` have missed nothing before `moment`, also after a restart and elsewhere.

    Its last run is changed only if slots would be made up for, or if a clock that was ahead has
    set it. That of a clocked entry is not: its time may be a little before it was made.

    Args:
        entry: The entry.
        moment: When it begins, with a time zone.
        latest: The latest moment that a right clock could have shown by now, likewise.
    """
    last_run = _stored_run_of(entry)
    if last_run is None:
        return
    its_slots = slots_between(entry.schedule, last_run, moment, beginning_of(entry))
    if last_run <= latest and not any(its_slots):
        return
    if not entry.last_run_at.tzinfo:
        # With USE_TZ = False a row takes no other; see `aware`.
        moment, latest = (
            one.astimezone(dt.timezone.utc).replace(tzinfo=None) for one in (moment, latest)
        )
    entry.last_run_at = moment
    rows = rows_of(entry)
    if rows is not None:
        entry.model.last_run_at = moment
        # Another replica's moment may be later.
        rows.exclude(last_run_at__range=(moment, latest)).update(last_run_at=moment)


def last_run_of(entry: Any) -> Moment | None:
    """Return when `entry` ran last, None for never; for a clocked entry, just before its time.

    That of a clocked entry's row is when it was made, which may be a little later than its time.
    """
    if is_clocked(entry.schedule):
        return aware(entry.schedule.clocked_time) - INSTANT
    return _stored_run_of(entry)


def _stored_run_of(entry: Any) -> Moment | None:
    """Return when `entry` ran last, None for never, or if it is a clocked one."""
    is_told = entry.last_run_at and not is_clocked(entry.schedule)
    return aware(entry.last_run_at) if is_told else None


def ahead_of(
    moment: Moment, entries: Mapping[str, Any], seen: Mapping[str, Moment]
) -> dict[str, Moment]:
    """Return until when entries were seen, or when they ran last, where that is after `moment`.

    Args:
        moment: The latest moment that a right clock could have shown by now.
        entries: The entries by name. The last run of a clocked one doesn't count.
        seen: The moment up to which slots were seen here, by name.
    """
    ahead = {}
    for name, entry in entries.items():
        until = max(filter(None, (seen.get(name), _stored_run_of(entry))), default=moment)
        if until > moment:
            ahead[name] = until
    return ahead
