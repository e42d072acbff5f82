"""Ticks of RedBeat: its own scheduler keeps the entries, on a server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

from celery import Celery

from .claiming import ClaimsTicks, report_set_back
from .in_force import Listed, ahead_of, last_run_of
from .slot_schedule import due_at_slots
from .slots import Moment


class ClaimsRedBeatTicks(ClaimsTicks):
    """Mixin for RedBeat, which asks its entries itself and keeps its schedule on a server."""

    lock_key: str | None
    Entry: Any

    def __init__(self, app: Celery, *args: Any, **kwargs: Any) -> None:
        self._listed = Listed()
        self._settings: dict[str, Any] = {}
        super().__init__(app, *args, **kwargs)
        # RedBeat's own leader lock would leave only one replica active.
        self.lock_key = None

    @property
    def _looked_at(self) -> Any:
        """When the last look began. Entries are asked only once that is known."""
        return self._in_force.looked_at

    def update_from_dict(self, dict_: Any) -> None:
        """Add entries of the settings to the stored schedule, once the clock is found right."""
        self._settings |= dict_
        if self._looked_at:
            self._look()

    def _stored(self, keys: Iterable[str]) -> dict[str, Any]:
        found = {}
        for key in keys:
            with contextlib.suppress(KeyError):
                entry = self.Entry.from_key(key, app=self.app)
                found[entry.name] = entry
        return found

    def _look(self) -> None:
        """Add the settings' entries, and begin those that are new; for others see `maybe_due`.

        And those that ran last by a clock that was ahead. RedBeat's schedule is only the entries
        that are due by then, so all that it keeps are looked at.
        """
        keys = [self.Entry.generate_key(self.app, name) for name in self._settings]
        before = {name: entry.schedule for name, entry in self._stored(keys).items()}
        super(ClaimsTicks, self).update_from_dict(self._settings)
        for name, entry in self._stored(keys).items():
            if before.get(name) != entry.schedule:
                self._begin(entry)
        self._settings = {}
        now, entries = self._now(), self._stored(all_keys(self.app))
        if ahead := ahead_of(self._in_force.latest(now), entries, self._seen):
            for name in ahead:
                self._begin(entries[name])
            report_set_back(ahead, now)

    def _end_look(self, began: Moment) -> None:
        """Record that all entries listed were asked, in a look that began then."""
        super()._end_look(began)
        self._listed.end_look()

    def maybe_due(self, entry: Any, **kwargs: Any) -> Any:
        """Queue the entry's due ticks; return the time until its next slot."""
        if not entry.enabled:
            # Nothing is missed while it is disabled.
            self._seen[entry.name] = self._now()
        elif last_run := last_run_of(entry):
            # It was made anew, or another replica has seen more.
            self._seen[entry.name] = max(last_run, self._seen.get(entry.name, last_run))
        if self._listed.is_changed(entry, self._looked_at):
            self._begin(entry)
        with due_at_slots([entry], self._now):
            return super().maybe_due(entry, **kwargs)  # type: ignore[misc]

    def _begin(self, entry: Any) -> None:
        """Let `entry` have missed nothing before the last look, at any replica."""
        self._seen[entry.name] = self._looked_at
        with due_at_slots([entry], self._now):
            entry.reschedule(last_run_at=self._looked_at)

    def _send(self, entry: Any, producer: Any) -> None:
        """Publish `entry` by the method that RedBeat calls, and others wrap."""
        super(ClaimsTicks, self).apply_async(entry, producer=producer, advance=False)

    def _advance_entry(self, entry: Any) -> Any:
        """Record for all replicas that every slot seen here is done."""
        with due_at_slots([entry], self._now):
            return entry._next_instance(last_run_at=self._seen[entry.name])  # noqa: SLF001


def all_keys(app: Celery) -> Sequence[str]:
    """Return the keys of all entries that RedBeat keeps on its server."""
    from redbeat.schedulers import get_redis  # noqa: PLC0415  # only where it is in use

    keys: Sequence[str] = get_redis(app).zrange(app.redbeat_conf.schedule_key, 0, -1)  # type: ignore[attr-defined]
    return keys
