"""Beat on every host: each due tick is published once, and nobody leads.

Every replica is active. Before publishing a tick, a replica claims it on the quorum for a short
time; after publishing, it marks the claim published for a long time. A replica that finds a claim
not marked published looks again when that ends: the claimant may have died in between. The
message's id is derived from entry and slot, so a singleton task runs once even for a tick that was
published twice.
"""

from __future__ import annotations

import datetime as dt
import functools
import logging
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from celery import Celery
from celery.beat import PersistentScheduler, Scheduler
from celery.schedules import maybe_schedule
from celery.utils.imports import load_extension_class_names, symbol_by_name

from celery_redlock.config.app_lock import is_enabled, redlock_of
from celery_redlock.config.identity import identity_of
from celery_redlock.config.settings import beat_settings_from, settings_from
from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.redlock.task_lock import TaskLock

from . import slots
from .clock_check import ClockCheck, Trust
from .liveness import LivenessFile
from .slot_schedule import (
    aware,
    beginning_of,
    due_at_slots,
    is_one_off,
    store_beginning,
    until_next,
)
from .tick_queue import TickQueue
from .ticks import Claims, Tick

logger = logging.getLogger(__name__)
_LONGEST_PAUSE_S = 10.0
_AGAIN_S = 1.0
_MOST_AT_ONCE = 100
_DAY = dt.timedelta(days=1)


def RedlockScheduler(app: Celery, *args: Any, **kwargs: Any) -> Scheduler:  # noqa: N802  # -S names it
    """Return a scheduler that claims each tick, built on the one that the settings name.

    Raises:
        ConfigurationError: A setting, a node or an entry's schedule can't be used.
    """
    return scheduler_on(_base(beat_settings_from(app.conf).scheduler), app, *args, **kwargs)


def scheduler_on(base: type[Scheduler], app: Celery, *args: Any, **kwargs: Any) -> Scheduler:
    """Return a scheduler that claims each tick, built on `base`.

    Raises:
        ConfigurationError: A setting, a node or an entry's schedule can't be used.
    """
    mixin: Any = ShowsLiveness
    if is_enabled(app):
        mixin = ClaimsRedBeatTicks if hasattr(base, "maybe_due") else ClaimsTicks
    return type(f"Redlock{base.__name__}", (mixin, base), {})(app, *args, **kwargs)  # type: ignore[no-any-return]


def _base(chosen: Any) -> type[Scheduler]:
    if chosen is None:
        return PersistentScheduler
    problem: object = "not a subclass of celery.beat.Scheduler"
    try:
        names: Any = load_extension_class_names("celery.beat_schedulers")
        base: Any = symbol_by_name(chosen, aliases=dict(names))
    except (ImportError, AttributeError, ValueError) as error:
        base, problem = None, error
    if isinstance(base, type) and issubclass(base, Scheduler):
        return base
    raise ConfigurationError(
        f"redlock_beat_scheduler must be a scheduler class, got {chosen!r}: {problem}; "
        "name the scheduler that beat would use without this package"
    )


class ShowsLiveness(Scheduler):
    """Mixin for a scheduler class: records each tick in the liveness file."""

    @functools.cached_property
    def _liveness(self) -> LivenessFile:
        return LivenessFile(self.app)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Process due entries; return the seconds until the next call."""
        self._liveness.touch()
        return min(super().tick(*args, **kwargs), _LONGEST_PAUSE_S)


class ClaimsTicks(ShowsLiveness):
    """Mixin for a scheduler class: claims each tick before it is published."""

    Producer: Any
    _heap: Any
    producer: Any = None
    """None: Celery would create one before asking for due entries, and block until connected."""

    def __init__(self, app: Celery, *args: Any, **kwargs: Any) -> None:
        self._beat_settings = beat_settings_from(app.conf)
        self._skew = settings_from(app.conf).max_clock_skew
        self._seen: dict[str, slots.Moment] = {}
        self._unadvanced: dict[str, Any] = {}
        super().__init__(app, *args, **kwargs)

    @property
    def _redlock(self) -> TaskLock:
        return redlock_of(self.app)

    @functools.cached_property
    def _identity(self) -> str:
        return identity_of(self.app)

    @functools.cached_property
    def _clock_check(self) -> ClockCheck:
        return ClockCheck(self._redlock, self._skew)

    @functools.cached_property
    def _claims(self) -> Claims:
        return Claims(self._redlock, self._beat_settings.misfire_grace_time + 2 * self._skew)

    @functools.cached_property
    def _queue(self) -> TickQueue:
        return TickQueue(self._claims, self._publish, self._is_clock_right, self._beat_settings)

    @functools.cached_property
    def _producer(self) -> Any:
        # One try: on failure the ticks stay queued, and the next tick tries again.
        connection = self.connection.ensure_connection(max_retries=1, interval_start=0)
        return self.Producer(connection, auto_declare=False)

    def _now(self) -> slots.Moment:
        return slots.EPOCH + dt.timedelta(microseconds=self._redlock.clock.wall_us())

    def _is_clock_right(self) -> bool:
        trust = self._clock_check.look()
        return trust is Trust.RIGHT or (
            trust is Trust.UNKNOWN and self._beat_settings.publishes_without_quorum
        )

    # ---- what the scheduler calls

    def setup_schedule(self) -> None:
        """Set up the schedule; refuse nodes that can't form a quorum and schedules without slots.

        Raises:
            ConfigurationError: The message names the node or the entry.
        """
        self._redlock.check()
        self._check(self.app.conf.beat_schedule or {})
        super().setup_schedule()
        self._check(self.schedule)
        for entry in self.schedule.values():
            store_beginning(entry)

    def _check(self, entries: Mapping[str, Any]) -> None:
        for name, entry in dict(entries).items():
            due: Any = entry.get("schedule") if isinstance(entry, dict) else entry.schedule
            try:
                slots.check(maybe_schedule(due, app=self.app))
            except ConfigurationError as error:
                raise ConfigurationError(f"beat entry {name!r}: {error}") from error

    def populate_heap(self, *args: Any, **kwargs: Any) -> None:
        """Order the entries by their next slots."""
        entries = self.schedule
        # An entry that was absent for a while (disabled, perhaps) has missed nothing.
        self._seen = {name: seen for name, seen in self._seen.items() if name in entries}
        with self._due_at_slots(entries.values()):
            super().populate_heap(*args, **kwargs)

    def adjust(self, n: Any, drift: float = 0.0) -> Any:  # noqa: ARG002
        """Return `n` unchanged: Celery's 10 ms head start would spin until the slot has come."""
        return n

    def is_due(self, entry: Any) -> tuple[bool, float]:
        """Return whether an unseen slot has come, and the seconds until the next one.

        Celery before 5.7 asks the first entry of its heap at each tick, whatever its time. An
        entry that waits to advance must not be due meanwhile, or no other entry is ever asked.
        """
        with self._due_at_slots([entry]):
            return super().is_due(entry)

    def _due_at_slots(self, entries: Iterable[Any]) -> AbstractContextManager[None]:
        return due_at_slots(entries, self._now, self._seen, self._unadvanced)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Process due entries; return the seconds until the next call."""
        if not self._is_clock_right():
            self._liveness.touch()
            return _AGAIN_S
        pause = super().tick(*args, **kwargs)
        # Only when all entries have been asked: ticks are processed in the order of their slots.
        if pause > 0 or len(self._queue) >= _MOST_AT_ONCE:
            asked_at = self._redlock.clock.now()
            self._queue.process_ready()
            self._advance()
            pause -= self._redlock.clock.now() - asked_at
        return max(0.0, min(pause, self._queue.until_next()))

    def apply_async(
        self,
        entry: Any,
        producer: Any = None,  # noqa: ARG002
        advance: bool = True,  # noqa: FBT001, FBT002  # Celery's signature
        **kwargs: Any,  # noqa: ARG002
    ) -> Any:
        """Queue the entry's ticks that are due and were not seen by this replica."""
        self._queue.add(self._due_ticks(entry))
        if advance:
            self._unadvanced[entry.name] = entry
        return None

    def reserve(self, entry: Any) -> Any:
        """Record that `entry` must advance once none of its ticks is queued any more."""
        self._unadvanced[entry.name] = entry
        return entry

    # ---- ticks

    def _due_ticks(self, entry: Any) -> list[Tick]:
        now = self._now()
        oldest = now - dt.timedelta(seconds=self._beat_settings.misfire_grace_time)
        last_run = aware(entry.last_run_at) if entry.last_run_at else None
        after = self._seen.get(entry.name) or last_run
        self._seen[entry.name] = now
        find = functools.partial(slots.slots_between, entry.schedule, since=beginning_of(entry))
        if after and after < oldest:
            self._report_too_old(entry, max(after, oldest - _DAY), oldest)
        found = list(find(max(after or oldest, oldest), now))
        if is_one_off(entry):
            # A one-off entry is due until it advances, which is when its one tick is published.
            found = [] if self._queue.is_waiting_for(entry.name) else found[:1]
        # An entry that never ran has missed nothing.
        return [
            Tick(entry, slot, self._identity, until_next=until_next(entry, slot))
            for slot in (found if after else found[-1:])
        ]

    def _report_too_old(self, entry: Any, after: slots.Moment, until: slots.Moment) -> None:
        """Report slots that nobody publishes any more, unless another replica was at work.

        It has published the last of them then. If all replicas were away before that, the one that
        came back first has reported it.
        """
        since = beginning_of(entry)
        first = next(slots.slots_between(entry.schedule, after, until, since), None)
        last = slots.last_slot(entry.schedule, after, until, since)
        if first is None or last is None:
            return
        if self._claims.is_published(Tick(entry, last, self._identity)):
            logger.info("ticks left to other replicas entry=%s from=%s", entry.name, first)
        else:
            logger.warning("ticks skipped as too old entry=%s from=%s", entry.name, first)

    def _publish(self, tick: Tick) -> None:
        super().apply_async(tick.entry_to_publish(), producer=self._producer, advance=False)

    def _advance(self) -> None:
        """Advance the entries none of whose ticks is queued.

        Not sooner: a scheduler that stores its state must not tell other replicas, or itself after
        a restart, that a tick ran before it was published.
        """
        done = [name for name in self._unadvanced if not self._queue.is_waiting_for(name)]
        advanced = {name: self._advance_entry(self._unadvanced.pop(name)) for name in done}
        if advanced and self._heap:
            self._heap = [
                event._replace(entry=advanced.get(event.entry.name) or event.entry)
                for event in self._heap
            ]

    def _advance_entry(self, entry: Any) -> Any:
        """Advance `entry`; return its new version, or None if it was removed."""
        # The entry may have been reloaded or removed since.
        present = self.schedule.get(entry.name)
        return present and super().reserve(present)


class ClaimsRedBeatTicks(ClaimsTicks):
    """Mixin for RedBeat, which asks its entries itself and keeps its schedule on a server."""

    lock_key: str | None

    def __init__(self, app: Celery, *args: Any, **kwargs: Any) -> None:
        super().__init__(app, *args, **kwargs)
        # RedBeat's own leader lock would leave only one replica active.
        self.lock_key = None

    def maybe_due(self, entry: Any, **kwargs: Any) -> Any:
        """Queue the entry's due ticks; return the time until its next slot."""
        if not entry.enabled:
            # Nothing is missed while it is disabled.
            self._seen[entry.name] = self._now()
        with due_at_slots([entry], self._now):
            return super().maybe_due(entry, **kwargs)  # type: ignore[misc]

    def _advance_entry(self, entry: Any) -> Any:
        """Record for all replicas that every slot seen here is done."""
        with due_at_slots([entry], self._now):
            return entry._next_instance(last_run_at=self._seen.get(entry.name))  # noqa: SLF001
