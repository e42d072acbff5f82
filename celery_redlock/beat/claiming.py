"""A scheduler that claims each tick before it is published.

The claim is on the quorum, for a short time; after publishing, it is marked published for a long
time. A replica that finds a claim not marked published looks again when that ends: the claimant
may have died in between.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import itertools
import logging
import math
from collections.abc import Iterable, Mapping
from typing import Any

from celery import Celery
from celery.beat import Scheduler
from celery.schedules import maybe_schedule
from kombu.exceptions import OperationalError

from celery_redlock.config.app_lock import log_weak_locking, redlock_of
from celery_redlock.config.foreign_options import is_foreign_duplicate
from celery_redlock.config.identity import identity_of
from celery_redlock.config.settings import beat_settings_from, settings_from
from celery_redlock.messages.headers import placement_header
from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.redlock.task_lock import TaskLock

from . import slots
from .clock_check import ClockCheck, Trust
from .entry_names import check_names
from .grace import Graces, grace_named_by
from .in_force import InForce, last_run_of
from .liveness import LivenessFile
from .shared_rows import SharesRows
from .slot_schedule import (
    beginning_of,
    due_at_slots,
    is_one_off,
    store_beginning,
    until_next,
)
from .tick_queue import TickQueue, announce
from .ticks import Claims, Tick

logger = logging.getLogger(__name__)
_LONGEST_PAUSE_S = 10.0
_AGAIN_S = 1.0
_MOST_AT_ONCE = 100
_CLOSE_S = 1.0
_MOST_TOLD = 1000
_DAY = dt.timedelta(days=1)


class ShowsLiveness(Scheduler):
    """Mixin for a scheduler class: records its ticks in the liveness file."""

    @functools.cached_property
    def _liveness(self) -> LivenessFile:
        # Beat sets its log up after it has made the scheduler, and before the first tick.
        log_weak_locking(self.app)
        return LivenessFile(self.app)

    def tick(self) -> float:  # type: ignore[override]  # nobody passes anything
        """Process due entries; return the seconds until the next call."""
        self._show_life()
        return min(super().tick(), _LONGEST_PAUSE_S)

    def _show_life(self) -> None:
        self._liveness.touch()


class ClaimsTicks(SharesRows, ShowsLiveness):
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
        self._in_force = InForce(self._skew)
        self._errors: list[Exception] | None = None
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
        return Claims(self._redlock, self._skew)

    @functools.cached_property
    def _graces(self) -> Graces:
        return Graces(self._beat_settings.misfire_grace_time, self._redlock.clock.now)

    @functools.cached_property
    def _queue(self) -> TickQueue:
        return TickQueue(self._claims, self._publish, self._is_clock_right, self._beat_settings)

    @functools.cached_property
    def _producer(self) -> Any:
        # One try: on failure the ticks stay queued, and the next tick tries again.
        try:
            connection = self.connection.ensure_connection(max_retries=1, interval_start=0)
        except Exception as error:
            # Some refusals, such as RabbitMQ's of a virtual host, are none of kombu's errors.
            raise OperationalError(str(error)) from error
        return self.Producer(connection, auto_declare=False)

    def _now(self) -> slots.Moment:
        return slots.EPOCH + dt.timedelta(microseconds=self._redlock.clock.wall_us())

    def _is_clock_right(self) -> bool:
        trust = self._clock_check.check()
        return trust is Trust.RIGHT or (
            trust is Trust.UNKNOWN and self._beat_settings.publishes_without_quorum
        )

    # ---- what the scheduler calls

    def setup_schedule(self) -> None:
        """Set up the schedule; refuse bad nodes, names that differ and schedules without slots.

        Raises:
            ConfigurationError: The message names the node or the entry.
        """
        self._redlock.check()
        check_names(self.app.conf.beat_schedule)
        self._check(self.app.conf.beat_schedule)
        self._set_up_at = self._redlock.clock.now()
        super().setup_schedule()
        self._check(self.schedule)

    def _check(self, entries: Mapping[str, Any]) -> None:
        for name, entry in entries.items():
            due: Any = entry.get("schedule") if isinstance(entry, dict) else entry.schedule
            try:
                slots.check(maybe_schedule(due, app=self.app))
                if isinstance(entry, dict):
                    grace_named_by(entry.get("options"))
            except ConfigurationError as error:
                raise ConfigurationError(f"beat entry {name!r}: {error}") from error

    def merge_inplace(self, b: Any) -> None:
        """Replace the stored schedule by the settings'."""
        self._look()
        super().merge_inplace(b)

    def update_from_dict(self, dict_: Any) -> None:
        """Add entries of the settings to the stored schedule."""
        self._look()
        super().update_from_dict(dict_)

    def _look(self) -> None:
        """Begin the entries that were not in force at the last look; see `InForce.begin`."""
        now = self._now()
        if ahead := self._in_force.begin(self.schedule, self._seen, now):
            self.sync()
            report_set_back(ahead, now)

    def _end_look(self, began: slots.Moment) -> None:
        """Record that all entries were asked, in a look at the schedule that began then."""
        self._in_force.looked_at = began

    def _begin_schedule(self, now: slots.Moment) -> None:
        """Begin the entries that were new at the start: then, by a clock found right just now."""
        up_s = self._redlock.clock.now() - self._set_up_at
        self._in_force.looked_at = now - dt.timedelta(seconds=up_s)
        self._look()
        for entry in self.schedule.values():
            store_beginning(entry)
        self.sync()

    def _check_clock(self, now: slots.Moment) -> None:
        """Forget what was seen by a clock that was ahead, the nodes' too, if it was set back."""
        if self._in_force.was_ahead(now):
            self._in_force.looked_at = now
            self._queue.drop_after(now)
            self._heap = None
            self._look()

    def populate_heap(self) -> None:  # type: ignore[override]
        """Order the entries by their next slots."""
        self._look()
        with self._due_at_slots(self.schedule.values()):
            super().populate_heap()

    def adjust(self, n: Any, *_: Any, **__: Any) -> Any:
        """Return `n` unchanged: Celery's 10 ms head start would spin until the slot has come."""
        return n

    def is_due(self, entry: Any) -> tuple[bool, float]:
        """Return whether an unseen slot has come, and the seconds until the next one.

        Celery before 5.7 asks the first entry of its heap at each tick, whatever its time. An
        entry that waits to advance must not be due meanwhile, or no other entry is ever asked.
        """
        with self._due_at_slots([entry]):
            return super().is_due(entry)

    def _due_at_slots(self, entries: Iterable[Any]) -> contextlib.AbstractContextManager[None]:
        return due_at_slots(entries, self._now, self._seen, self._unadvanced)

    def tick(self) -> float:  # type: ignore[override]  # nobody passes anything
        """Process due entries; return the seconds until the next call."""
        if not self._is_clock_right():
            self._show_life()
            self._queue.busy_since = math.inf
            return _AGAIN_S
        self._queue.busy_since = min(self._queue.busy_since, self._redlock.clock.now())
        began = self._now()
        if self._in_force.looked_at is None:
            self._begin_schedule(began)
        self._check_clock(began)
        pause = super().tick()
        self._end_look(began)
        # Only when all entries have been asked: ticks are processed in the order of their slots.
        if pause > 0 or len(self._queue) >= _MOST_AT_ONCE:
            asked_at = self._redlock.clock.now()
            self._queue.process_ready()
            self._advance()
            pause -= self._redlock.clock.now() - asked_at
        pause = max(0.0, min(pause, self._queue.until_next()))
        if pause:
            self._queue.busy_since = math.inf
        return pause

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """Queue the entry's due ticks; see `_send` for when Celery's method is called."""
        # As Celery's does, for a class of the user's that overrides that one.
        self.apply_async(entry, producer=producer, advance=False)

    def apply_async(
        self,
        entry: Any,
        producer: Any = None,
        advance: bool = True,  # noqa: FBT001, FBT002  # Celery's signature
        **kwargs: Any,
    ) -> Any:
        """Queue the entry's ticks that are due and were not seen by this replica."""
        if self._errors is not None:
            try:
                return super().apply_async(entry, producer=producer, advance=advance, **kwargs)
            except Exception as error:  # noqa: BLE001  # `_send` raises it
                self._errors.append(error)
                return None
        self._queue.add(self._due_ticks(entry))
        if advance:
            self._unadvanced[entry.name] = entry
        return None

    def reserve(self, entry: Any) -> Any:
        """Record that `entry` must advance once none of its ticks is queued any more."""
        self._unadvanced[entry.name] = entry
        return entry

    def _show_life(self) -> None:
        if not self._queue.is_paused():
            super()._show_life()

    # ---- ticks

    def _due_ticks(self, entry: Any) -> list[Tick]:
        now = self._now()
        after = self._seen.get(entry.name) or last_run_of(entry)
        oldest = self._graces.oldest(entry, after, now, self._queue.busy_s())
        self._seen[entry.name] = now
        find = functools.partial(slots.slots_between, entry.schedule, since=beginning_of(entry))
        if after and after < oldest:
            self._report_too_old(entry, max(after, oldest - _DAY), oldest)
        found = list(find(max(after or oldest, oldest), now))
        if is_one_off(entry):
            # A one-off entry is due until it advances, which is when its one tick is published.
            found = [] if self._queue.is_waiting_for(entry.name) else found[:1]
        # An entry that never ran has missed nothing.
        return [self._tick(entry, slot) for slot in (found if after else found[-1:])]

    def _tick(self, entry: Any, slot: slots.Moment) -> Tick:
        until = until_next(entry, slot)
        after_that = until_next(entry, slot + dt.timedelta(seconds=until))
        grace = self._graces.grace(entry, until)
        kept = until + max(grace, self._graces.grace(entry, after_that))
        return Tick(entry, slot, self._identity, until_next=until, grace=grace, kept=kept)

    def _report_too_old(self, entry: Any, after: slots.Moment, until: slots.Moment) -> None:
        """Report slots that nobody publishes any more, unless another replica was at work.

        It has published the last of them then. If all replicas were away before that, the one that
        came back first has reported it.
        """
        since = beginning_of(entry)
        last = slots.last_slot(entry.schedule, after, until, since)
        if last is None:
            return
        missed = list(
            itertools.islice(slots.slots_between(entry.schedule, after, until, since), _MOST_TOLD)
        )
        if self._claims.is_published(Tick(entry, last, self._identity)):
            logger.info("ticks left to other replicas entry=%s from=%s", entry.name, missed[0])
            return
        logger.error("ticks skipped as too old entry=%s from=%s", entry.name, missed[0])
        self._queue.note_missed(Tick(entry, last, self._identity, held_up_by="no beat"))
        for slot in missed:
            announce(Tick(entry, slot, self._identity), "missed")

    def _publish(self, tick: Tick) -> None:
        try:
            entry = tick.entry_to_publish(placement_header(self._redlock))
            self._send(entry, self._producer)
        except Exception:
            # Only kombu's retries, which the app may have switched off, would open a channel again.
            self._drop_connection()
            raise

    def _send(self, entry: Any, producer: Any) -> None:
        """Publish `entry` by Celery's `apply_entry`, and raise the error that it would only log.

        Others wrap that method. Sentry Crons opens a check-in whenever it is called: once for each
        tick, at the replica that publishes it.
        """
        self._errors = errors = list[Exception]()
        try:
            super().apply_entry(entry, producer=producer)
        finally:
            self._errors = None
        for error in errors:
            if not is_foreign_duplicate(error):
                raise error
            # Tried again, the tick would run after the task that it is a duplicate of.
            logger.info(
                "tick is a duplicate for another package entry=%s error=%s", entry.name, error
            )

    def _drop_connection(self) -> None:
        vars(self).pop("_producer", None)
        connection = vars(self).pop("connection", None)
        if connection is not None:
            # `release` would wait for the answer of a broker that may be gone.
            with contextlib.suppress(Exception):
                connection.collect(socket_timeout=_CLOSE_S)

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


def report_set_back(ahead: Mapping[str, slots.Moment], now: slots.Moment) -> None:
    """Report entries that were seen, by a clock that was ahead, up to a moment after now."""
    logger.warning(
        "clock set back, slots from now on are due entries=%d by_s=%.1f",
        len(ahead), (max(ahead.values()) - now).total_seconds(),
    )  # fmt: skip
