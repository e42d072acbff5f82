"""The rows of django-celery-beat, which replicas, its admin and others change as well."""

from __future__ import annotations

from typing import Any

from celery.beat import ScheduleEntry, Scheduler

from .slot_schedule import aware, rows_of

_THEIRS = "django_celery_beat.schedulers"


class SharesRows(Scheduler):
    """Mixin for a scheduler class: its rows, as django-celery-beat's, are others' too."""

    def __init_subclass__(cls) -> None:
        """Let the entries store no more of their rows than when they ran."""
        super().__init_subclass__()
        if hasattr(cls.Entry, "save_fields") and not issubclass(cls.Entry, StoresItsRuns):
            cls.Entry = type(cls.Entry.__name__, (StoresItsRuns, cls.Entry), {})

    def schedule_changed(self) -> bool:
        """Return whether rows were changed since the last call.

        django-celery-beat compares the times of changes, and takes an earlier one for none: that
        of a clock that was set back.
        """
        before = getattr(self, "_last_timestamp", None)
        is_changed: bool = super().schedule_changed()  # type: ignore[misc]
        return is_changed or bool(before and getattr(self, "_last_timestamp", None) != before)


class StoresItsRuns(ScheduleEntry):
    """Mixin for an entry class: stores when the entry ran, and never an earlier time.

    django-celery-beat reads the row and writes all of it, which undoes a change in between.
    """

    model: Any
    save_fields: Any

    def save(self) -> None:
        """Store when the entry ran, and how often."""
        save: Any = super().save  # type: ignore[misc]
        rows = rows_of(self)
        if rows is None:
            # A database's without Django.
            save()
            return
        row = rows.get()
        if row.last_run_at and self.model.last_run_at:
            # This replica may have stood still, and another one has begun the entry anew meanwhile.
            self.model.last_run_at = max(self.model.last_run_at, row.last_run_at, key=aware)
        if save.__module__ != _THEIRS:
            save()
            return
        for name in self.save_fields:
            setattr(row, name, getattr(self.model, name))
        columns = {field.name for field in row._meta.concrete_fields}  # noqa: SLF001  # public in Django
        # Of an entry that is enabled again, the last change is taken for its last run.
        row.save(update_fields=columns.intersection((*self.save_fields, "date_changed")))
