"""Rows that replicas share: when an entry ran last, by any of them."""

from __future__ import annotations

import datetime as dt
from types import SimpleNamespace
from typing import Any

import pytest

from celery_redlock.beat.in_force import keep_later_run
from celery_redlock.beat.slots import EPOCH, Moment


class Model:
    """A row of django-celery-beat, and what is stored of it by now."""

    objects: Any = None

    def __init__(self, last_run_at: Moment | None, stored: Moment | None) -> None:
        self.pk = 7
        self.last_run_at = last_run_at
        type(self).objects = self
        self._stored = {7: stored}
        self._found: list[Moment | None] = []

    def filter(self, pk: int) -> Model:
        self._found = [self._stored[pk]]
        return self

    def values_list(self, name: str, *, flat: bool) -> Model:
        assert (name, flat) == ("last_run_at", True)
        return self

    def first(self) -> Moment | None:
        return self._found[0]


def at(seconds: float | None) -> Moment | None:
    return None if seconds is None else EPOCH + dt.timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("here", "stored", "kept"),
    [(5.0, 9.0, 9.0), (9.0, 5.0, 9.0), (5.0, None, 5.0), (None, 9.0, None)],
)
def test_the_later_last_run_of_a_row_is_kept(
    here: float | None, stored: float | None, kept: float | None
) -> None:
    model = Model(at(here), at(stored))
    keep_later_run(SimpleNamespace(model=model))
    assert model.last_run_at == at(kept)


@pytest.mark.parametrize(
    "entry", [None, SimpleNamespace(), SimpleNamespace(model=SimpleNamespace(last_run_at=at(5)))]
)
def test_an_entry_without_a_row_is_let_be(entry: Any) -> None:
    before = vars(entry).copy() if entry else None
    keep_later_run(entry)
    assert (vars(entry) if entry else None) == before
