"""Who is told of an attempt before any node hears of it."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.redlock import QuorumUnavailable
from celery_redlock.redlock.attempt import Attempt
from celery_redlock.redlock.task_lock import TaskLock
from tests.support.fakes.fake_clock import FakeClock

NOBODY = ["redis://127.0.0.1:1"]


class EnoughError(Exception):
    """Ends a wait."""


@pytest.mark.parametrize(
    ("options", "gets_token"),
    [
        ({}, True),
        ({"is_reservation": True}, False),
        ({"is_reservation": True, "supersedes": "holder"}, True),
        ({"is_reservation": True, "highest_floor": 1}, True),
    ],
)
def test_a_reservation_gets_a_token_only_from_the_script(
    options: dict[str, Any], gets_token: bool
) -> None:
    assert Attempt("k", "owner", 1000, **options).gets_token() == gets_token


def test_each_attempts_owner_is_told_before_it_is_made() -> None:
    told: list[str] = []
    with pytest.raises(QuorumUnavailable):
        TaskLock(NOBODY, clock=FakeClock(0.0)).acquire_for_task(
            "k", wait=1.0, on_attempt=told.append
        )
    assert len(told) > 1
    assert len(set(told)) == len(told)


def test_an_owner_that_was_given_is_told_too() -> None:
    told: list[str] = []
    with pytest.raises(QuorumUnavailable):
        TaskLock(NOBODY).reserve("k", 1.0, owner="given", on_attempt=told.append)
    assert told == ["given"]


def test_what_the_told_one_raises_ends_the_wait() -> None:
    told: list[str] = []

    def tell(owner: str) -> None:
        told.append(owner)
        if len(told) == 3:
            raise EnoughError

    with pytest.raises(EnoughError):
        TaskLock(NOBODY, clock=FakeClock(0.0)).acquire_for_task("k", wait=60.0, on_attempt=tell)
    assert len(told) == 3
