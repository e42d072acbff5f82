"""The grace of a tick: the largest delay with which it is still published.

An entry, or the setting, may name it. Otherwise it grows with the time to the entry's next slot: a
tick that comes again tomorrow is worth more than one that comes again in a minute. It depends on
configuration, schedule and slot alone, so all replicas agree.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.redlock.validation import seconds_given
from celery_redlock.throttled_log import ThrottledLog

from .slot_schedule import beginning_of, until_next
from .slots import INSTANT, Moment, last_slot

logger = logging.getLogger(__name__)
GRACE_HEADER = "redlock_beat_misfire_grace_time"
"""Header of an entry with its grace, in seconds. It is not sent."""
SHORTEST_GRACE_S = 1.0
_DEFAULT_S = 60.0
_SHARE = 24
"""The default is the time to the next slot, which counts for a day at most, divided by this."""
_LONGEST_DEFAULT_S = 86_400.0 / _SHARE
_QUIET_S = 60.0


class Graces:
    """The graces of an app's ticks.

    Args:
        setting: Grace of all entries that name none, seconds; None: by their schedules.
        now: Returns the time by which log lines are throttled, seconds.
    """

    def __init__(self, setting: float | None, now: Callable[[], float]) -> None:
        self._setting = setting
        self._refused = defaultdict[str, ThrottledLog](partial(ThrottledLog, now, _QUIET_S))

    def grace(self, entry: Any, until_next_s: float) -> float:
        """Return the grace of a tick of `entry` by the time to its next one; both in seconds."""
        named = self._named(entry)
        return _default(until_next_s) if named is None else named

    def oldest(self, entry: Any, after: Moment | None, now: Moment, busy: float) -> Moment:
        """Return the moment after which each slot of `entry` is in time, and no earlier one.

        Args:
            entry: The entry.
            after: Until when its slots were seen; None: it has never run, and has missed nothing.
            now: The present time.
            busy: Time by which each tick may be later, seconds.
        """
        named = self._named(entry)
        oldest = now - dt.timedelta(seconds=(_DEFAULT_S if named is None else named) + busy)
        if named is not None or after is None:
            return oldest
        # One slot at most: that of any earlier one ended before the next, long ago.
        first = now - dt.timedelta(seconds=_LONGEST_DEFAULT_S + busy)
        last = last_slot(entry.schedule, max(after, first), oldest, beginning_of(entry))
        if last and now < last + dt.timedelta(seconds=_default(until_next(entry, last)) + busy):
            return last - INSTANT
        return oldest

    def _named(self, entry: Any) -> float | None:
        """Return the grace that the entry or the setting names; None: neither does."""
        try:
            own = grace_named_by(entry.options)
        except ConfigurationError as error:
            # In a row of a table, perhaps, which anybody edits while beat runs.
            logger.log(
                self._refused[entry.name].occurred(logging.ERROR),
                "grace time of entry ignored entry=%s error=%s", entry.name, error,
            )  # fmt: skip
            own = None
        return self._setting if own is None else own


def grace_named_by(options: Any) -> float | None:
    """Return the grace that an entry's options name, in seconds; None: they name none.

    Raises:
        ConfigurationError: It is not valid, or not among the headers.
    """
    if not isinstance(options, Mapping):
        return None
    if GRACE_HEADER in options:
        remedy = 'write {"headers": {"' + GRACE_HEADER + '": 3600}}'
        _refuse(options[GRACE_HEADER], "is not among the entry's headers", remedy)
    headers = options.get("headers")
    if not isinstance(headers, Mapping) or headers.get(GRACE_HEADER) is None:
        return None
    value = headers[GRACE_HEADER]
    return seconds_given(value, partial(_refuse, value), SHORTEST_GRACE_S)


def _refuse(value: object, problem: str, remedy: str) -> NoReturn:
    raise ConfigurationError(f"{GRACE_HEADER} = {value!r} {problem}; {remedy}")


def _default(until_next_s: float) -> float:
    return max(_DEFAULT_S, until_next_s / _SHARE)
