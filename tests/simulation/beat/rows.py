"""Entries are rows of django-celery-beat, which change while replicas run."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import django
from django.conf import settings

if not settings.configured:
    # Without migrations the tables are made as they are at last, at once.
    settings.configure(
        USE_TZ=True,
        TIME_ZONE="UTC",
        LOGGING_CONFIG=None,
        SECRET_KEY="of no use",  # noqa: S106
        INSTALLED_APPS=["django_celery_beat"],
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
        MIGRATION_MODULES={"django_celery_beat": None},
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    )
    django.setup()

from django.core.management import call_command  # only after setup()
from django.db.models.signals import pre_save
from django.utils import timezone
from django_celery_beat.models import PeriodicTask
from django_celery_beat.schedulers import DatabaseScheduler, ModelEntry

from celery_redlock.beat.slots import EPOCH
from tests.integration.apps.django_changes import change
from tests.support.judges.slots_in_force import Between, Span

from .stage import EVERY, HEART, NAMES, START, Stage


class Rows(Stage):
    """Replicas that share a database, in memory."""

    base = DatabaseScheduler
    meanwhile = ("put", "put", "pause", "enable", "delete", "rename", "clocked", "clocked")
    changes = (*meanwhile, "change_amid")

    def set_up(self) -> None:
        """Empty the database, and let Django's time be this one."""
        call_command("migrate", run_syncdb=True, verbosity=0)
        call_command("flush", interactive=False, verbosity=0)
        # No two changes come at the same moment: replicas would see only the first.
        moments = itertools.count()
        self._patch.setattr(
            timezone,
            "now",
            lambda: EPOCH + dt.timedelta(seconds=self.now(), microseconds=next(moments)),
        )
        self._patch.setattr(ModelEntry, "_default_now", lambda entry: entry.app.now())
        self._in_force: dict[str, Span] = {}
        self._paused: dict[str, int] = {}
        self._is_amid = False
        pre_save.connect(self._between, sender=PeriodicTask)
        self._clocked = 0
        self.begin(HEART, Between(self.now(), self.now()), every=1)

    def start(self, number: int) -> None:
        """Start a replica."""
        heart = {"task": "task", "schedule": 1.0, "args": (HEART,)}
        self.new_replica(number, beat_schedule={HEART: heart})

    def give(self, name: str, every: int) -> None:
        """Let an entry be due every so many seconds."""
        change("every", name, "task", str(every))

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

    def change_amid(self) -> None:
        """Change or delete an entry just when a replica has read its row to store a run.

        Replicas store runs when they see that rows were changed.
        """
        self._is_amid = True
        self.put()
        self.pass_time(2)
        self._is_amid = False

    def _between(self, instance: Any, **_: Any) -> None:
        """Change a row that a replica has read and not yet written."""
        if self._is_amid and instance.no_changes and instance.name in self._in_force:
            self._is_amid = False
            if self.random.random() < 0.7:
                self._put(instance.name)
            else:
                change("delete", instance.name, "")
                self._ended(instance.name)

    def pause(self) -> None:
        """Disable an entry."""
        if name := self._any(self._in_force):
            change("disable", name, "")
            self._paused[name] = self._ended(name)

    def enable(self) -> None:
        """Enable an entry."""
        if name := self._any(self._paused):
            change("enable", name, "")
            self._began(name, self._paused.pop(name))

    def delete(self) -> None:
        """Delete an entry, which may be made anew later."""
        if name := self._any({*self._in_force, *self._paused}):
            change("delete", name, "")
            self._ended(name)

    def rename(self) -> None:
        """Rename an entry."""
        name = self._any(self._in_force)
        new = self._any(set(NAMES) - self._in_force.keys() - self._paused.keys())
        if name and new:
            change("rename", name, "", new)
            self._began(new, self._ended(name))

    def clocked(self) -> None:
        """Make a clocked entry: for now, for a few ms ago, or for soon."""
        self._clocked += 1
        name = f"clocked-{self._clocked}"
        at = round(self.now() + self.random.choice((-0.004, 0.0, 0.7, 5.2)), 3)
        change("clocked", name, "task", str(at))
        self.begin(name, Between(at - 1, at - 1), at=at)

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
        began = Between(min(self._last("looked_at")), self.now())
        self._in_force[name] = self.begin(name, began, every=every)

    def _ended(self, name: str) -> int:
        """Note the end of an entry, if it was in force; return its interval."""
        if name in self._paused:
            return self._paused.pop(name)
        span = self._in_force.pop(name)
        self.end_span(span, max(self._last("ticked_at")), self.now())
        assert span.every
        return int(span.every)
