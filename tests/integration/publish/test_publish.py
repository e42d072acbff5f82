"""A message that reserves its lock: what is sent, for how long it is reserved, what if it fails."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from celery_redlock.config.options import Lifetime, OnConflict
from celery_redlock.messages.headers import PLACEMENT_HEADER, PUBLICATION_HEADER
from celery_redlock.messages.headers import RESERVATION_HEADER as HEADER
from tests.integration.conftest import NewProject
from tests.integration.publish.conftest import RESERVING
from tests.support.processes.project import Project

UTC = dt.timezone.utc
HOUR, AN_HOUR = 3600.0, dt.timedelta(hours=1)
SOME_TIME = 60.0
"""Seconds that a test may take: a figure that is counted down is somewhat lower by then."""


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    """Far from UTC, and without a worker: messages stay where they are sent."""
    return new_project("lifetimes", timezone="Asia/Tokyo")


def in_an_hour(zone: dt.tzinfo | None = UTC) -> dt.datetime:
    return dt.datetime.now(UTC).astimezone(zone) + AN_HOUR


def naive_in_an_hour() -> dt.datetime:
    return in_an_hour().replace(tzinfo=None)  # as Celery takes it: UTC, whatever the app's zone


# --- for how long ---------------------------------------------------------------------------------


TIMES: dict[str, tuple[Callable[[], dict[str, Any]], float]] = {
    "nothing": (dict, HOUR),
    "countdown": (lambda: {"countdown": 600}, HOUR + 600),
    "eta": (lambda: {"eta": in_an_hour()}, 2 * HOUR),
    "eta elsewhere": (
        lambda: {"eta": in_an_hour(dt.timezone(dt.timedelta(hours=-5)))},
        2 * HOUR,
    ),
    "naive eta": (lambda: {"eta": naive_in_an_hour()}, 2 * HOUR),
    "eta as text": (lambda: {"eta": f"{naive_in_an_hour().isoformat()}Z"}, 2 * HOUR),
    "eta in the past": (lambda: {"eta": in_an_hour() - 2 * AN_HOUR}, HOUR),
    "countdown beats eta": (lambda: {"countdown": 600, "eta": in_an_hour()}, HOUR + 600),
    "expires": (lambda: {"expires": 600}, 601),
    "expires at": (lambda: {"expires": in_an_hour() - AN_HOUR / 2}, HOUR / 2 + 1),
    "naive expires at": (lambda: {"expires": naive_in_an_hour() - AN_HOUR / 2}, HOUR / 2 + 1),
    "expires late": (lambda: {"expires": in_an_hour() + AN_HOUR}, HOUR),
    "countdown, then expires": (lambda: {"expires": 600, "countdown": 500}, 601),
    "expires long after countdown": (
        lambda: {"expires": 3 * HOUR, "countdown": 600},
        HOUR + 600,
    ),
}


@pytest.mark.parametrize(("options", "expected"), TIMES.values(), ids=TIMES)
def test_a_reservation_lasts_as_long_as_its_message_may_wait(
    project: Project, key: str, task: Any, options: Callable[[], dict[str, Any]], expected: float
) -> None:
    task.apply_async((key,), **options())
    assert expected - SOME_TIME < project.held_for(key) <= expected


@pytest.mark.parametrize(
    ("options", "expected"), [({}, 601), ({"expires": 300}, 301), ({"expires": None}, HOUR)]
)
def test_a_tasks_own_expiry_counts_unless_the_call_has_another(
    project: Project,
    key: str,
    task: Any,
    options: dict[str, Any],
    expected: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task, "expires", 600)
    task.apply_async((key,), **options)
    assert expected - SOME_TIME < project.held_for(key) <= expected


# --- what is sent ---------------------------------------------------------------------------------

OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "none": dict,
    "countdown": lambda: {"countdown": 600},
    "eta": lambda: {"eta": in_an_hour()},
    "naive eta": lambda: {"eta": naive_in_an_hour()},
    "expires": lambda: {"expires": 600},
    "headers": lambda: {"headers": {"trace": "abc"}},
    "priority": lambda: {"priority": 0},
    "limits": lambda: {"time_limit": 60, "soft_time_limit": 30},
    "ignored": lambda: {"ignore_result": True},
    "shadow": lambda: {"shadow": "another name"},
    "compressed": lambda: {"compression": "zlib"},
}
OWN = {"id", "task", "root_id", "eta", "expires", "correlation_id", "delivery_tag", HEADER}
"""What differs between any two messages, or are compared in another way."""


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("lifetime", RESERVING)
def test_the_message_is_that_of_a_plain_task_but_for_three_headers(
    project: Project, key: str, lifetime: Lifetime, options: Callable[[], dict[str, Any]]
) -> None:
    queue = f"queue-{key}"
    task, given = project.tasks.tasks[lifetime, OnConflict.SKIP], options()
    before = repr(given)
    plain = project.tasks.plain.apply_async((key,), queue=queue, **given)
    locked = task.apply_async((key,), queue=queue, **given)
    assert repr(given) == before
    sent_plain, sent = project.messages(queue)
    added = {HEADER, PUBLICATION_HEADER, PLACEMENT_HEADER}
    assert not added & sent_plain["headers"].keys()
    assert sent["headers"].pop(PUBLICATION_HEADER)
    assert sent["headers"].pop(PLACEMENT_HEADER)
    lock, owner = sent["headers"][HEADER]
    assert lock.removesuffix("%next") == f"{task.name}:{key}"
    assert locked.id in owner
    assert (sent_plain["headers"]["id"], sent["headers"]["id"]) == (plain.id, locked.id)
    for name in ("eta", "expires"):
        moment, expected = (moment_of(one["headers"][name]) for one in (sent, sent_plain))
        assert (moment is None) == (expected is None)
        if moment and expected:
            # A countdown is counted from when each is sent.
            assert moment.utcoffset() == expected.utcoffset()
            assert abs((moment - expected).total_seconds()) < SOME_TIME
    for part in ("headers", "properties"):
        assert rest_of(sent[part]) == rest_of(sent_plain[part])
    assert sent["body"] == sent_plain["body"]


def moment_of(text: str | None) -> dt.datetime | None:
    return dt.datetime.fromisoformat(text) if text else None


def rest_of(part: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name not in OWN}


def test_a_given_task_id_is_kept_and_names_the_holder(
    project: Project, key: str, task: Any
) -> None:
    task_id = str(uuid.uuid4())
    assert task.apply_async((key,), task_id=task_id).id == task_id
    assert {hold.task_id for hold in project.holds(key)} == {task_id}
    assert task.apply_async((key,), task_id=str(uuid.uuid4())).id == task_id
    assert task.apply_async((key,), task_id=task_id).id == task_id
