"""Snapshots of nodes and locks that many viewers share, however often they ask."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from .locks import Kind, Lock
from .overview import Overview, read_overview
from .target import Target
from .timeline import Tick

SHOWN = (Kind.HELD, Kind.RESERVED, Kind.PENDING)
"""Kinds that viewers choose from."""
_REST = 5
"""The nodes rest for this many times as long as a snapshot took."""
_LEAST_S = 1.0
_MOST_SNAPSHOTS = 16
_MINUTE_S = 60.0
_TICKS_FOR_S = 3600.0
_MOST_TICKS = 5000


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Overview of nodes and locks, with the ticks that were seen since the first one.

    Attributes:
        overview: The overview.
        ticks: Ticks of the last hour that were seen.
        at: When it was taken, seconds since the epoch.
    """

    overview: Overview
    ticks: tuple[Tick, ...]
    at: float


class Snapshots:
    """Snapshots of a target, each at most `most` locks long.

    Args:
        target: The nodes.
        most: Most locks of a snapshot.
        now: Time, seconds since the epoch.
    """

    def __init__(self, target: Target, most: int, now: Callable[[], float] = time.time) -> None:
        self._target = target
        self._most = most
        self._now = now
        self._one_at_a_time = threading.Lock()
        self._taken: dict[tuple[str, str], tuple[float, Snapshot]] = {}
        self._ticks: dict[tuple[str, str, str], Tick] = {}

    def get(self, text: str = "", kind: str = "") -> Snapshot:
        """Return a snapshot, at most a second or five times its own duration old.

        While another viewer waits for a new one, the one before is returned at once.

        Args:
            text: Part of the keys to list; '': all.
            kind: Kind to list; '': all of `SHOWN`.
        """
        _, before = self._taken.get((text, kind), (0.0, None))
        if not self._one_at_a_time.acquire(blocking=before is None) and before:
            return before
        try:
            return self._renewed(text, kind)
        finally:
            self._one_at_a_time.release()

    def _renewed(self, text: str, kind: str) -> Snapshot:
        began = self._now()
        until, snapshot = self._taken.get((text, kind), (0.0, None))
        if snapshot and snapshot.at <= began < until:
            return snapshot
        kinds = [one for one in SHOWN if kind in ("", one.value)]

        def is_wanted(lock: Lock) -> bool:
            return lock.kind in kinds and text in lock.key

        overview = read_overview(self._target, self._most, is_wanted)
        at = self._now()
        self._keep(overview, at)
        snapshot = Snapshot(overview, tuple(self._ticks.values()), at)
        for old in [key for key, (end, _) in self._taken.items() if end <= at]:
            del self._taken[old]
        if len(self._taken) < _MOST_SNAPSHOTS:
            self._taken[text, kind] = at + max(_LEAST_S, _REST * (at - began)), snapshot
        return snapshot

    def _keep(self, overview: Overview, now: float) -> None:
        """Keep the ticks: the nodes forget them after a few minutes."""
        for tick in overview.ticks:
            key = tick.app, tick.entry, tick.slot
            known = self._ticks.get(key, tick)
            # At its end the mark of a published tick looks like the claim on a new one.
            is_published = tick.is_published or known.is_published or now - tick.at > _MINUTE_S
            self._ticks[key] = tick._replace(is_published=is_published)
        latest = sorted(self._ticks.items(), key=lambda item: item[1].at)[-_MOST_TICKS:]
        self._ticks = {key: tick for key, tick in latest if now - tick.at <= _TICKS_FOR_S}
