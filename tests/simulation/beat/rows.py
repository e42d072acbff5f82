"""Entries are rows of django-celery-beat, which change while replicas run."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any

import tests.support.fakes.django_site  # noqa: F401  # it configures Django, which comes first

# isort: split
from django.core.management import call_command
from django.db.models.signals import pre_save
from django.utils import timezone
from django_celery_beat.models import PeriodicTask
from django_celery_beat.schedulers import DatabaseScheduler, ModelEntry

from celery_redlock.beat.slots import EPOCH
from tests.integration.apps import django_changes
from tests.support.judges.slots_in_force import Between

from .kept import Kept


class Rows(Kept):
    """Replicas that share a database, in memory."""

    base = DatabaseScheduler
    meanwhile = (*Kept.meanwhile, "clocked", "clocked")
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
        self._is_amid = False
        pre_save.connect(self._between, sender=PeriodicTask)
        self._clocked = 0
        super().set_up()

    def change(self, how: str, name: str, value: str = "") -> None:
        """Change a row, as its admin does."""
        django_changes.change(how, name, "task", value)

    # ---- events

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
                self.change("delete", instance.name)
                self._ended(instance.name)

    def clocked(self) -> None:
        """Make a clocked entry: for now, for a few ms ago, or for soon."""
        self._clocked += 1
        name = f"clocked-{self._clocked}"
        at = round(self.now() + self.random.choice((-0.004, 0.0, 0.7, 5.2)), 3)
        self.change("clocked", name, str(at))
        self.begin(name, Between(at - 1, at - 1), at=at)
