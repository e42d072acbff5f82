"""Timeline of beat's ticks: which replica has published which, by the claims on the nodes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from urllib.parse import unquote

from celery_redlock.beat.ticks import MISSED

from .locks import Kind, Lock

_MINUTE_S = 60.0


OF_TICKS = frozenset({Kind.CLAIM, Kind.MISSED, Kind.PUBLISHED})
"""Kinds of what beat leaves on the nodes."""


class Tick(NamedTuple):
    """A tick that a replica of beat has claimed.

    Attributes:
        app: Name of the app.
        entry: Name of the entry.
        slot: Its due time, in ISO 8601.
        replica: Host of the replica.
        state: What became of it, one of `OF_TICKS`.
        why: What held a missed one up; '': it was not missed.
    """

    app: str
    entry: str
    slot: str
    replica: str
    state: Kind
    why: str = ""

    @property
    def at(self) -> float:
        """Due time, seconds since the epoch."""
        return datetime.fromisoformat(self.slot.replace("Z", "+00:00")).timestamp()

    def as_json(self) -> dict[str, object]:
        """Return the tick as plain JSON values."""
        return {
            "app": self.app, "entry": self.entry, "slot": self.slot, "replica": self.replica,
            "why": self.why or None,
        }  # fmt: skip


class Timeline(NamedTuple):
    """Ticks of all entries.

    Attributes:
        rows: By app and entry the ticks that each replica has claimed, each with its place from 0
            (the oldest) to 100 (now).
        minutes: Time that it spans.
        hidden: Number of entries that are left out.
    """

    rows: Mapping[tuple[str, str], Mapping[str, Sequence[tuple[float, Tick]]]]
    minutes: int
    hidden: int


def tick_of(claim: Lock) -> Tick | None:
    """Return the tick of a claim, or of a note of a missed one; None for a key not of beat's."""
    parts = claim.key.split(":", 3)
    if len(parts) < 4:  # noqa: PLR2004  # as beat writes it: mark, app, entry, slot
        return None
    _, app, entry, slot = parts
    name = unquote(app.split("@")[0])
    why = (claim.task_id or "") if claim.kind is Kind.MISSED else ""
    tick = Tick(name, unquote(entry), slot.removesuffix(MISSED), claim.host or "-", claim.kind, why)
    try:
        tick.at  # noqa: B018  # is it a time?
    except ValueError:
        return None
    return tick


def certain(ticks: Sequence[Tick]) -> list[Tick]:
    """Return ticks without those that one replica missed and another has published."""
    published = {tick[:3] for tick in ticks if tick.state is Kind.PUBLISHED}
    return [tick for tick in ticks if not (tick.state is Kind.MISSED and tick[:3] in published)]


def timeline_of(ticks: Iterable[Tick], now: float, most: int) -> Timeline:
    """Return the timeline up to `now`, seconds since the epoch, with at most `most` entries."""
    ticks = sorted(ticks)
    minutes = max([1, *(math.ceil((now - tick.at) / _MINUTE_S) for tick in ticks)])
    entries = list(dict.fromkeys((tick.app, tick.entry) for tick in ticks))
    rows = {}
    for app, entry in entries[:most]:
        # A replica that has published nothing of this entry lately is worth seeing.
        replicas = sorted({one.replica for one in ticks if one.app == app})
        lanes: dict[str, list[tuple[float, Tick]]] = {replica: [] for replica in replicas}
        for tick in ticks:
            if (tick.app, tick.entry) == (app, entry):
                share = 1 - (now - tick.at) / (minutes * _MINUTE_S)
                lanes[tick.replica].append((round(100 * min(1.0, share), 2), tick))
        rows[app, entry] = lanes
    return Timeline(rows, minutes, len(entries) - len(rows))
