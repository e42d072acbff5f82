"""Beat on every host: each due tick is published once, and nobody leads.

Every replica is active. Before a replica publishes a tick it claims it on the quorum, for a short
time; when it has published it, the claim is kept for long. A replica that finds a claim which is
not kept yet looks again when it ends: its holder may have died in between. The message's id is
made from the entry and the slot, so that a tick that was published twice all the same is executed
once by a singleton task.
"""

from __future__ import annotations

import datetime as dt
import functools
import logging
from collections.abc import Mapping
from typing import Any

from celery import Celery
from celery.beat import PersistentScheduler, Scheduler
from celery.schedules import maybe_schedule
from celery.utils.imports import load_extension_class_names, symbol_by_name

from . import slots
from .clock_check import ClockCheck, Trust
from .due import aware, beginning_of, by_slots
from .heartbeat import Heartbeat
from .redlock import Redlock
from .redlock.errors import ConfigurationError
from .runtime import is_enabled, redlock_of
from .settings import beat_settings_from, settings_from
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
    base = _base(beat_settings_from(app.conf).scheduler)
    mixin: Any = ShowsItTicks
    if is_enabled(app):
        mixin = ClaimsRedBeatTicks if hasattr(base, "maybe_due") else ClaimsTicks
    return type(f"Redlock{base.__name__}", (mixin, base), {})(app, *args, **kwargs)  # type: ignore[no-any-return]


def _base(chosen: Any) -> type[Scheduler]:
    if chosen is None:
        return PersistentScheduler
    problem: object = "it is no subclass of celery.beat.Scheduler"
    try:
        names: Any = load_extension_class_names("celery.beat_schedulers")
        base: Any = symbol_by_name(chosen, aliases=dict(names))
    except (ImportError, AttributeError, ValueError) as error:
        base, problem = None, error
    if isinstance(base, type) and issubclass(base, Scheduler):
        return base
    raise ConfigurationError(
        f"redlock_beat_scheduler = {chosen!r} can't be built on: {problem}; "
        "name the scheduler that beat would use without this package"
    )


class ShowsItTicks(Scheduler):
    """Writes down that it ticks; to be mixed in before any scheduler class."""

    @functools.cached_property
    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(self.app)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Do what is due; return after how many seconds to come again."""
        self._heartbeat.beat()
        return min(super().tick(*args, **kwargs), _LONGEST_PAUSE_S)


class ClaimsTicks(ShowsItTicks):
    """The part of a scheduler that claims; to be mixed in before any scheduler class."""

    Producer: Any
    _heap: Any
    producer: Any = None
    """Celery would make one before it asks what is due, and wait there until it is connected."""

    def __init__(self, app: Celery, *args: Any, **kwargs: Any) -> None:
        self._beat_settings = beat_settings_from(app.conf)
        self._skew = settings_from(app.conf).max_clock_skew
        self._seen: dict[str, slots.Moment] = {}
        self._unadvanced: dict[str, Any] = {}
        super().__init__(app, *args, **kwargs)

    @property
    def _redlock(self) -> Redlock:
        return redlock_of(self.app)

    @functools.cached_property
    def _clock_check(self) -> ClockCheck:
        return ClockCheck(self._redlock, self._skew)

    @functools.cached_property
    def _queue(self) -> TickQueue:
        look_back = self._beat_settings.misfire_grace_time + 2 * self._skew
        claims = Claims(self._redlock, look_back)
        return TickQueue(claims, self._publish, self._is_clock_right, self._beat_settings)

    @functools.cached_property
    def _producer(self) -> Any:
        # One try: the ticks wait, and this is asked again.
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
        """Set up as always, but refuse nodes that can't be a quorum, and schedules without slots.

        Raises:
            ConfigurationError: It names the node or the entry.
        """
        self._redlock.check()
        self._check(self.app.conf.beat_schedule or {})
        super().setup_schedule()
        self._check(self.schedule)

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
        # What was away for a while, disabled perhaps, has missed nothing.
        self._seen = {name: seen for name, seen in self._seen.items() if name in entries}
        with by_slots(entries.values(), self._now):
            super().populate_heap(*args, **kwargs)

    def adjust(self, n: Any, drift: float = 0.0) -> Any:  # noqa: ARG002
        """Return `n`: who comes 10 ms early, as Celery does, spins until the slot has come."""
        return n

    def is_due(self, entry: Any) -> tuple[bool, float]:
        """Tell whether a slot has come, and how far off the next is."""
        with by_slots([entry], self._now):
            return super().is_due(entry)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Do what is due; return after how many seconds to come again."""
        if not self._is_clock_right():
            self._heartbeat.beat()
            return _AGAIN_S
        pause = super().tick(*args, **kwargs)
        # When all entries have been asked: ticks are taken in the order of their slots.
        if pause > 0 or len(self._queue) >= _MOST_AT_ONCE:
            self._queue.work()
            self._advance()
        return max(0.0, min(pause, self._queue.until_next()))

    def apply_async(
        self,
        entry: Any,
        producer: Any = None,  # noqa: ARG002
        advance: bool = True,  # noqa: FBT001, FBT002  # Celery's signature
        **kwargs: Any,  # noqa: ARG002
    ) -> Any:
        """Queue what of `entry` is due and was not seen here."""
        self._queue.add(self._due_ticks(entry))
        if advance:
            self._unadvanced[entry.name] = entry
        return None

    def reserve(self, entry: Any) -> Any:
        """Note that `entry` is to go on, when none of its ticks waits any more."""
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
            late = next(find(max(after, oldest - _DAY), oldest), None)
            if late:
                logger.warning("ticks passed over entry=%s from=%s", entry.name, late)
        found = list(find(max(after or oldest, oldest), now))
        # One that never ran has missed nothing.
        return [Tick(entry, slot, self.app.main or "") for slot in (found if after else found[-1:])]

    def _publish(self, tick: Tick) -> None:
        super().apply_async(tick.entry_to_publish(), producer=self._producer, advance=False)

    def _advance(self) -> None:
        """Let entries go on of which no tick waits.

        Only now: a scheduler that stores its state must not tell others, or itself after a restart,
        that a tick has run which nobody has published.
        """
        done = [name for name in self._unadvanced if not self._queue.is_waiting_for(name)]
        gone_on = {name: self._go_on(self._unadvanced.pop(name)) for name in done}
        if gone_on and self._heap:
            self._heap = [
                event._replace(entry=gone_on.get(event.entry.name) or event.entry)
                for event in self._heap
            ]

    def _go_on(self, entry: Any) -> Any:
        """Let `entry` go on; return what it is from now on, or None if there is none."""
        # It may have been read anew since, or removed.
        present = self.schedule.get(entry.name)
        return present and super().reserve(present)


class ClaimsRedBeatTicks(ClaimsTicks):
    """For RedBeat, which asks its entries itself, and keeps its schedule on a server."""

    lock_key: str | None

    def __init__(self, app: Celery, *args: Any, **kwargs: Any) -> None:
        super().__init__(app, *args, **kwargs)
        # Its own leader lock would leave one replica alone at work.
        self.lock_key = None

    def maybe_due(self, entry: Any, **kwargs: Any) -> Any:
        """Tell how far off the next slot is, after queueing what is due."""
        if not entry.enabled:
            # So it has missed nothing when it is enabled again.
            self._seen[entry.name] = self._now()
        with by_slots([entry], self._now):
            return super().maybe_due(entry, **kwargs)  # type: ignore[misc]

    def _go_on(self, entry: Any) -> Any:
        """Tell all replicas that what was due until it was last asked here is done."""
        with by_slots([entry], self._now):
            return entry._next_instance(last_run_at=self._seen.get(entry.name))  # noqa: SLF001
