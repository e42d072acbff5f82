"""The known name that was probably meant."""

from __future__ import annotations

import pytest

from celery_redlock.suggestion import closest

KNOWN = ["lock_key", "lock_ttl", "lock_on_conflict"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [("lock_tll", "lock_ttl"), ("lock_onconflict", "lock_on_conflict"), ("priority", None)],
)
def test_the_most_similar_name_is_suggested_if_any(name: str, meant: str | None) -> None:
    assert closest(name, KNOWN) == meant
    assert closest(name, iter(())) is None
