"""Rows that replicas share: when an entry ran last, by any of them, and nothing else."""

from __future__ import annotations

import datetime as dt
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from celery.beat import ScheduleEntry

from celery_redlock.beat.shared_rows import SharesRows
from celery_redlock.beat.slots import EPOCH, Moment

FIELDS = ("pk", "last_run_at", "total_run_count", "date_changed", "interval")


class Row:
    """A row of django-celery-beat."""

    stored: ClassVar[dict[str, Any]]
    _default_manager: ClassVar[Any]
    _meta = SimpleNamespace(concrete_fields=[SimpleNamespace(name=name) for name in FIELDS])
    no_changes = False

    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)

    def save(self, update_fields: Any = FIELDS) -> None:
        # Someone else gave it another interval, after this was read.
        self.stored["interval"] = "new"
        assert self.no_changes
        self.date_changed = 2
        self.stored.update({name: vars(self)[name] for name in update_fields})


class Manager:
    """Reads rows."""

    def filter(self, pk: int) -> Manager:
        assert pk == Row.stored["pk"]
        return self

    def get(self) -> Row:
        return Row(**Row.stored)


Row._default_manager = Manager()


class Entry(ScheduleEntry):
    """An entry as django-celery-beat's."""

    save_fields: Any = ("last_run_at", "total_run_count", "no_changes")

    def __init__(self, model: Any) -> None:
        self.model = model

    def save(self) -> None:
        raise AssertionError


Entry.save.__module__ = "django_celery_beat.schedulers"


class OwnEntry(Entry):
    """A user's, which stores in its own way."""

    def save(self) -> None:
        self.model.is_stored = True


class Rows:
    """What a scheduler of django-celery-beat says of changes."""

    Entry: Any = Entry

    def __init__(self) -> None:
        self.last_change: Any = None
        self._last_timestamp: Any = None
        self.is_forced = False

    def schedule_changed(self) -> bool:
        last, self._last_timestamp = self._last_timestamp, self.last_change
        return self.is_forced or (last is not None and self.last_change > last)


def shared(kind: type[ScheduleEntry] = Entry) -> Any:
    """Return a new class of schedulers with entries of this kind."""

    class SharedRows(SharesRows, Rows):
        Entry: Any = kind
        __init__ = Rows.__init__

    return SharedRows


def at(seconds: float | None, zone: dt.tzinfo | None = dt.timezone.utc) -> Moment | None:
    if seconds is None:
        return None
    return (EPOCH + dt.timedelta(seconds=seconds)).replace(tzinfo=zone)


def row(stored: Moment | None, here: Moment | None) -> Row:
    Row.stored = {
        "pk": 7,
        "last_run_at": stored,
        "total_run_count": 1,
        "date_changed": 1,
        "interval": "old",
    }
    return Row(pk=7, last_run_at=here, total_run_count=2, interval="old", no_changes=True)


@pytest.mark.parametrize(
    ("zone", "zone_here"),
    [(dt.timezone.utc, dt.timezone.utc), (None, None), (dt.timezone.utc, None)],
)
@pytest.mark.parametrize(
    ("here", "stored", "kept"),
    [(5.0, 9.0, 9.0), (9.0, 5.0, 9.0), (5.0, None, 5.0), (None, 9.0, None)],
)
def test_the_later_last_run_of_a_row_is_kept(
    here: float | None,
    stored: float | None,
    kept: float | None,
    zone: dt.tzinfo | None,
    zone_here: dt.tzinfo | None,
) -> None:
    model: Any = row(at(stored, zone), at(here, zone_here))
    shared().Entry(model).save()
    assert model.last_run_at == Row.stored["last_run_at"]
    assert model.last_run_at in (at(kept, zone), at(kept, zone_here))


def test_a_change_made_while_a_run_is_stored_is_not_undone() -> None:
    shared().Entry(row(at(5.0), at(9.0))).save()
    assert Row.stored == {
        "pk": 7,
        "last_run_at": at(9.0),
        "total_run_count": 2,
        "date_changed": 2,
        "interval": "new",
    }


def test_a_users_entry_stores_in_its_own_way() -> None:
    model: Any = row(at(9.0), at(5.0))
    shared(OwnEntry).Entry(model).save()
    assert (model.is_stored, model.last_run_at) == (True, at(9.0))


def test_an_entry_of_another_database_stores_in_its_own_way() -> None:
    model = SimpleNamespace(last_run_at=at(5.0))
    shared(OwnEntry).Entry(model).save()
    assert model.is_stored


def test_a_scheduler_without_rows_has_its_own_entries() -> None:
    assert shared(ScheduleEntry).Entry is ScheduleEntry


def test_a_class_derived_from_ours_has_the_same_entries() -> None:
    base = shared()
    derived = type("Derived", (base,), {})
    assert derived.Entry is base.Entry  # type: ignore[attr-defined]
    assert (base.Entry.__name__, issubclass(base.Entry, Entry)) == ("Entry", True)


def test_a_class_of_a_user_may_initialise_its_subclasses() -> None:
    class Named(Rows):
        def __init_subclass__(cls) -> None:
            cls.name = "named"  # type: ignore[attr-defined]

    assert type("Derived", (SharesRows, Named), {}).name == "named"  # type: ignore[attr-defined]


def test_a_scheduler_may_find_changes_in_a_way_of_its_own() -> None:
    """Without the time of the last one, which django-celery-beat keeps."""

    class Others:
        Entry: Any = Entry

        def schedule_changed(self) -> bool:
            return True

    mixed: Any = type("Mixed", (SharesRows, Others), {"__init__": object.__init__})()
    assert mixed.schedule_changed()


def test_a_change_at_an_earlier_time_is_seen() -> None:
    rows = shared()()
    seen = []
    for change in (None, 9, 9, 12, 3, 3, 4):
        rows.last_change = change
        seen.append(rows.schedule_changed())
    assert seen == [False, False, False, True, True, False, True]
    rows.is_forced = True
    assert rows.schedule_changed()
