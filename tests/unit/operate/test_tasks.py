"""What an app tells of its singleton tasks: keys of calls, options, and names that were meant."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery.signals import import_modules

from celery_redlock import singleton_task
from celery_redlock.operate.tasks import doubt_about, key_of_call, options_of, singleton_tasks
from celery_redlock.redlock.errors import ConfigurationError


@pytest.fixture
def bank(app: Celery) -> Celery:
    """An app that has `bank.sync`, and `bank.late` in a module that nothing has imported yet."""

    def body(account_id: int) -> None: ...

    def imported(**_: Any) -> None:
        singleton_task(app=app, shared=False, name="bank.late", lock_ttl=20)(body)

    app.task(name="bank.plain")(body)
    singleton_task(app=app, shared=False, name="bank.sync", lock_key="{account_id}")(body)
    import_modules.connect(imported, sender=app, weak=False)
    return app


def test_singleton_tasks_are_those_of_all_modules_in_order(bank: Celery) -> None:
    assert [*singleton_tasks(bank)] == ["bank.late", "bank.sync"]


@pytest.mark.parametrize(
    ("name", "tasks", "hint"),
    [
        ("bank.snyc", ["bank.late", "bank.sync"], "did you mean bank.sync?"),
        ("x", ["bank.late", "bank.sync"], "known: bank.late, bank.sync"),
        ("x", [], "known: none"),
    ],
)
def test_an_unknown_task_is_told_with_those_known(name: str, tasks: list[str], hint: str) -> None:
    assert doubt_about(name, tasks) == f"unknown singleton task {name!r}; {hint}"
    assert doubt_about(name, [*tasks, name]) is None


def test_the_key_of_a_call_is_the_worker_s(bank: Celery) -> None:
    assert key_of_call(bank, "bank.sync", [42], {}) == "bank.sync:42"
    assert key_of_call(bank, "bank.sync", [], {"account_id": 42}) == "bank.sync:42"


@pytest.mark.parametrize(
    ("name", "args", "says"),
    [
        ("bank.plain", [42], "^unknown singleton task 'bank.plain'"),
        ("bank.sync", [], "^task 'bank.sync' can't be called so: missing .*'account_id'"),
    ],
)
def test_a_call_that_has_no_key_is_refused(
    bank: Celery, name: str, args: list[int], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        key_of_call(bank, name, args, {})


def test_the_options_of_a_task_are_the_app_s(bank: Celery) -> None:
    bank.conf.redlock_ttl = 40.0
    options = [options_of(bank, f"bank.{name}") for name in ("late", "sync", "plain")]
    assert [one and one.ttl for one in options] == [20.0, 40.0, None]
    assert options_of(None, "bank.late") is None
