"""Timeline of beat's ticks: which replica has published which, by the claims on the nodes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple
from urllib.parse import unquote

from celery_redlock.beat.ticks import CLAIM_S

from .locks import Lock

_MINUTE_S = 60.0


class Tick(NamedTuple):
    """A tick that a replica of beat has claimed.

    Attributes:
        app: Name of the app.
        entry: Name of the entry.
        slot: Its due time, in ISO 8601.
        replica: Host of the replica.
        is_published: Whether it is published; False: the replica is about to, or died.
    """

    app: str
    entry: str
    slot: str
    replica: str
    is_published: bool

    @property
    def at(self) -> float:
        """Due time, seconds since the epoch."""
        return datetime.fromisoformat(self.slot.replace("Z", "+00:00")).timestamp()


class Dot(NamedTuple):
    """A tick on a lane.

    Attributes:
        percent: Place, from 0 (the oldest) to 100 (now).
        slot: Its due time, in ISO 8601.
        is_published: Whether it is published.
    """

    percent: float
    slot: str
    is_published: bool


class Lane(NamedTuple):
    """Ticks of one entry that one replica has claimed."""

    replica: str
    dots: Sequence[Dot]


class Row(NamedTuple):
    """Ticks of one entry, with a lane for each replica."""

    app: str
    entry: str
    lanes: Sequence[Lane]


class Timeline(NamedTuple):
    """Ticks of all entries.

    Attributes:
        rows: One for each entry, by name.
        minutes: Time that it spans.
        hidden: Number of entries that are left out.
    """

    rows: Sequence[Row]
    minutes: int
    hidden: int


def tick_of(claim: Lock) -> Tick | None:
    """Return the tick that a claim is on; None: its key is not one of beat's."""
    parts = claim.key.split(":", 3)
    if len(parts) < 4:  # noqa: PLR2004  # as beat writes it: mark, app, entry, slot
        return None
    _, app, entry, slot = parts
    name = unquote(app.rpartition("@")[0])
    tick = Tick(name, unquote(entry), slot, claim.host or "-", claim.remaining > CLAIM_S)
    try:
        tick.at  # noqa: B018  # is it a time?
    except ValueError:
        return None
    return tick


def timeline_of(ticks: Iterable[Tick], now: float, most: int) -> Timeline:
    """Return the timeline up to `now`, seconds since the epoch, with at most `most` entries."""
    ticks = sorted(ticks)
    span = max((now - tick.at for tick in ticks), default=0.0)
    minutes = max(1, math.ceil(span / _MINUTE_S))
    entries = list(dict.fromkeys((tick.app, tick.entry) for tick in ticks))
    rows = []
    for app, entry in entries[:most]:
        # A replica that has published nothing of this entry lately is worth seeing.
        lanes: dict[str, list[Dot]] = {one.replica: [] for one in ticks if one.app == app}
        for tick in ticks:
            if (tick.app, tick.entry) == (app, entry):
                share = 1 - (now - tick.at) / (minutes * _MINUTE_S)
                percent = round(100 * min(1.0, max(0.0, share)), 2)
                lanes[tick.replica].append(Dot(percent, tick.slot, tick.is_published))
        rows.append(Row(app, entry, [Lane(name, lanes[name]) for name in sorted(lanes)]))
    return Timeline(rows, minutes, len(entries) - len(rows))
