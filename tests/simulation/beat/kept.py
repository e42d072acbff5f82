"""Entries are kept in a store that all replicas share, and change while replicas run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

from tests.support.judges.slots_in_force import Between, Span

from .stage import EVERY, HEART, NAMES, START, Stage


class Kept(Stage):
    """Replicas that share a store."""

    meanwhile: ClassVar[tuple[str, ...]] = ("put", "put", "pause", "enable", "delete", "rename")
    changes = meanwhile
    conf: ClassVar[dict[str, Any]] = {}
    """More of the replicas' configuration."""
    unlisted: ClassVar[int] = 0
    """Intervals of an entry before its last look that a replica may not have seen."""

    def set_up(self) -> None:
        """Empty the store."""
        self._in_force: dict[str, Span] = {}
        self._paused: dict[str, int] = {}
        self.begin(HEART, Between(self.now(), self.now()), every=1)

    def start(self, number: int) -> None:
        """Start a replica."""
        heart = {"task": "task", "schedule": 1.0, "args": (HEART,)}
        self.new_replica(number, beat_schedule={HEART: heart}, **self.conf)

    def give(self, name: str, every: int) -> None:
        """Let an entry be due every so many seconds."""
        self.change("every", name, str(every))

    def change(self, how: str, name: str, value: str = "") -> None:
        """Change an entry; see `django_changes.change`."""
        raise NotImplementedError

    def end_replica(self, number: int, *, is_killed: bool) -> None:
        """End a replica; what none has seen by the end of the last is due since its last run."""
        super().end_replica(number, is_killed=is_killed)
        if any(one.is_up for one in self.replicas):
            return
        looked_at = max(one.looked_at for one in self.replicas)
        for span in self.spans:
            if span.began.latest >= looked_at:
                span.began = replace(span.began, earliest=START)

    # ---- events

    def put(self) -> None:
        """Add an entry, or give it another schedule."""
        if name := self._any(set(NAMES) - self._paused.keys()):
            self._put(name)

    def pause(self) -> None:
        """Disable an entry."""
        if name := self._any(self._in_force):
            self.change("disable", name)
            self._paused[name] = self._ended(name)

    def enable(self) -> None:
        """Enable an entry."""
        if name := self._any(self._paused):
            self.change("enable", name)
            self._began(name, self._paused.pop(name))

    def delete(self) -> None:
        """Delete an entry, which may be made anew later."""
        if name := self._any({*self._in_force, *self._paused}):
            self.change("delete", name)
            self._ended(name)

    def rename(self) -> None:
        """Rename an entry."""
        name = self._any(self._in_force)
        new = self._any(set(NAMES) - self._in_force.keys() - self._paused.keys())
        if name and new:
            self.change("rename", name, new)
            self._began(new, self._ended(name))

    def _put(self, name: str) -> None:
        present = self._in_force.get(name)
        every = self._any(n for n in EVERY if not present or n != present.every)
        self.give(name, every)
        if present:
            self._ended(name)
        self._began(name, every)

    def _any(self, names: Iterable[Any]) -> Any:
        names = sorted(names)
        return self.random.choice(names) if names else None

    def _last(self, what: str) -> list[float]:
        """Return when replicas looked last, or ticked; if one is at it, it is now."""
        up = [one for one in self.replicas if one.is_up]
        # One that has only just been started has not made up for all that it missed.
        soon = self.clock.now() + 0.001
        if any(one.is_right and not one.is_stopped and one.due_at > soon for one in up):
            return [self.now()]
        return [getattr(one, what) for one in up]

    def _began(self, name: str, every: int) -> None:
        began = Between(min(self._last("looked_at")) - self.unlisted * every, self.now())
        self._in_force[name] = self.begin(name, began, every=every)

    def _ended(self, name: str) -> int:
        """Note the end of an entry, if it was in force; return its interval."""
        if name in self._paused:
            return self._paused.pop(name)
        span = self._in_force.pop(name)
        self.end_span(span, max(self._last("ticked_at")), self.now())
        assert span.every
        return int(span.every)
