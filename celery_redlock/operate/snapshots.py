"""Overviews of nodes and locks that many viewers share, however often they ask."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from .locks import Kind
from .overview import Overview, read_overview
from .running import Watch
from .target import Target
from .timeline import Tick

SHOWN = (Kind.HELD, Kind.RESERVED, Kind.PENDING)
"""Kinds that viewers choose from."""
_REST = 5
"""The nodes rest for this many times as long as an overview took."""
_LEAST_S = 1.0
_KEPT = 50_000
"""Locks of an overview, of which each viewer's filter chooses; in some 30 MB."""
_MINUTE_S = 60.0
_TICKS_FOR_S = 3600.0
_MOST_TICKS = 5000
_MOST_ACTIONS = 20


class Snapshots:
    """Overviews of a target, each at most `most` locks long.

    Args:
        target: The nodes.
        most: Most locks that a viewer gets.
        now: Time, seconds since the epoch.
    """

    def __init__(self, target: Target, most: int, now: Callable[[], float] = time.time) -> None:
        self._target = target
        self._most = most
        self._now = now
        self._one_at_a_time = threading.Lock()
        self._until = 0.0
        self._whole: Overview | None = None
        self._ticks: dict[tuple[str, str, str], Tick] = {}
        self._watch = Watch(target)

    def get(self, text: str = "", kind: str = "") -> Overview:
        """Return an overview, at most a second or five times its own duration old.

        With the ticks of the last hour that were seen since the first one, and the latest actions
        of operators.

        The nodes are read once for all filters. While another viewer waits for a new one, the
        one before is returned at once.

        Args:
            text: Part of the keys to list; '': all.
            kind: Kind to list; '': all of `SHOWN`.
        """
        whole = self._latest()
        kinds = [one for one in SHOWN if kind in ("", one.value)]
        wanted = [lock for lock in whole.oldest if lock.kind in kinds and text in lock.key]
        found = len(wanted) if text or kind else whole.found
        return replace(whole, oldest=wanted[: self._most], found=found)

    def _latest(self) -> Overview:
        before = self._whole
        if not self._one_at_a_time.acquire(blocking=not before) and before:
            return before
        try:
            return self._renewed()
        finally:
            self._one_at_a_time.release()

    def _renewed(self) -> Overview:
        began, whole = self._now(), self._whole
        if whole and whole.at <= began < self._until:
            return whole
        overview = read_overview(
            self._target, _KEPT, lambda lock: lock.kind in SHOWN, self._now, _MOST_ACTIONS
        )
        self._keep(overview)
        searched = _KEPT if overview.found > _KEPT else None
        problem = self._watch.tell(overview.oldest).problem
        self._whole = replace(
            overview, ticks=tuple(self._ticks.values()), searched=searched, problem=problem
        )
        self._until = overview.at + max(_LEAST_S, _REST * (overview.at - began))
        return self._whole

    def _keep(self, overview: Overview) -> None:
        """Keep the ticks: the nodes forget them after a few minutes."""
        now = overview.at
        for tick in overview.ticks:
            key = tick.app, tick.entry, tick.slot
            states = tick.state, self._ticks.get(key, tick).state
            if Kind.MISSED in states and tick.state is not Kind.PUBLISHED:
                state = Kind.MISSED
            # At its end the mark of a published tick looks like the claim on a new one.
            elif Kind.PUBLISHED in states or now - tick.at > _MINUTE_S:
                state = Kind.PUBLISHED
            else:
                state = Kind.CLAIM
            self._ticks[key] = tick._replace(state=state)
        latest = sorted(self._ticks.items(), key=lambda item: item[1].at)[-_MOST_TICKS:]
        self._ticks = {key: tick for key, tick in latest if now - tick.at <= _TICKS_FOR_S}
