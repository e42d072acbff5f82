"""Entries are those of `beat_schedule`: they change with a replica's start, one by one."""

from __future__ import annotations

import shelve
from types import SimpleNamespace
from typing import Any

from celery.beat import PersistentScheduler
from celery.schedules import crontab
from kombu.utils.functional import reprcall

from tests.support.judges.slots_in_force import Between, Span

from .stage import EVERY, HEART, NAMES, RESTARTS, Stage

Version = dict[str, int]
"""Seconds between the slots of each entry."""


class Deploys(Stage):
    """Replicas with a file each, and for a while with two versions of the schedule."""

    changes = ("deploy",)
    # Not a deploy: ticks that wait at a replica are lost with it, if their entry is.
    meanwhile = RESTARTS

    def set_up(self) -> None:
        """Make the first version."""
        self._files: dict[str, dict[str, bytes]] = {}
        in_memory = {"persistence": SimpleNamespace(open=self._open)}
        self.base = type("InMemory", (PersistentScheduler,), in_memory)
        self._version: Version = {HEART: 1, "a": 2}
        self._has: list[Version] = [{}, {}]
        self._spans: list[dict[str, Span]] = [{}, {}]
        self._unnamed = 0

    def start(self, number: int) -> None:
        """Start a replica with the version it has; the first time, with the first one."""
        if not self._has[number]:
            return self._start_version(number)
        schedule = dict(map(_entry, self._has[number].items()))
        return self.new_replica(number, beat_schedule=schedule)

    def end_replica(self, number: int, *, is_killed: bool) -> None:
        """End a replica; one that is killed leaves its file as it was."""
        super().end_replica(number, is_killed=is_killed)
        # Or it is written when it is garbage.
        self.replicas[number].scheduler._store.cache.clear()

    def _open(self, name: str, *, writeback: bool) -> shelve.Shelf[Any]:
        file: Any = self._files.setdefault(name, {})
        return shelve.Shelf(file, writeback=writeback)

    def deploy(self) -> None:
        """Give the replicas another version, one after the other or at the same time."""
        self._version = self._next_version()
        numbers = self.random.sample(range(len(self.replicas)), len(self.replicas))
        is_rolling = self.random.random() < 0.7
        for number in numbers:
            self._end_version(number)
            self.pass_some(3)
            if is_rolling:
                self._start_version(number)
                self.pass_some(8)
        for number in () if is_rolling else numbers:
            self._start_version(number)

    def _next_version(self) -> Version:
        version = dict(self._version)
        for name in self.random.sample(NAMES, 2):
            version.pop(name, None)
            if self.random.random() < 0.7:
                version[name] = self.random.choice(EVERY)
        unnamed = [name for name in version if name.startswith("unnamed")]
        if unnamed and self.random.random() < 0.5:
            del version[unnamed[0]]
        if self.random.random() < 0.5:
            # Each has other arguments, so it is another entry.
            self._unnamed += 1
            version[f"unnamed-{self._unnamed}"] = self.random.choice(EVERY)
        return version

    def _end_version(self, number: int) -> None:
        self.end_replica(number, is_killed=self.random.random() < 0.3)
        for name, span in list(self._spans[number].items()):
            if self._version.get(name) != span.every:
                # A slot that has come since its last tick is lost with the entry, unless the other
                # replica has it still.
                self.end_span(span, self.replicas[number].ticked_at, self.now())
                del self._spans[number][name]

    def _start_version(self, number: int) -> None:
        self._has[number] = dict(self._version)
        self.tell(f"replica {number}: {self._version}")
        self.start(number)
        if not self.publishes(number):
            return
        now = Between(self.now(), self.now())
        for name, every in self._version.items():
            if name not in self._spans[number]:
                self._spans[number][name] = self.begin(name, now, every=every)


def _entry(of: tuple[str, int]) -> tuple[str, dict[str, Any]]:
    """Return the name of an entry, as Celery gives it if need be, and the entry."""
    name, every = of
    due = crontab() if every == 60 else float(every)
    called = reprcall("task", (name,), {}) if name.startswith("unnamed") else name
    return called, {"task": "task", "schedule": due, "args": (name,)}
