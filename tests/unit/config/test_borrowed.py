"""One app's tasks, which Celery gives to all apps of the process, break none of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_redlock import ConfigurationError, SingletonTask, singleton_task
from celery_redlock.config.borrowed import is_bystander
from tests.support.processes.project import celery_to_itself

TOO_LONG = r"task 'bank\.long': lock_ttl = 120 is longer than redlock_max_ttl \(60 s\)"


def new_app(name: str, **settings: Any) -> Celery:
    app = Celery(name, broker="memory://", set_as_current=False)
    app.conf.update(settings)
    return app


@pytest.fixture
def mailer() -> Iterator[Celery]:
    """An app without a lock."""
    with celery_to_itself():
        yield new_app("mailer")


@pytest.fixture
def bank(mailer: Celery) -> Celery:
    """An app whose leases may be long."""
    return new_app("bank", redlock_nodes=["redis://127.0.0.1:1"], redlock_max_ttl=300)


def declare(app: Celery, form: str = "decorator") -> Any:
    """Declare the task `bank.long`, whose ttl is too long for other apps."""

    def long(number: int) -> None: ...

    if form == "base":
        return app.task(base=SingletonTask, name="bank.long", lock_ttl=120)(long)
    return singleton_task(app=app, name="bank.long", lock_ttl=120)(long)


@pytest.mark.parametrize("form", ["decorator", "base"])
@pytest.mark.parametrize("is_first", [True, False])
def test_an_option_right_for_its_owner_breaks_no_other_app(
    bank: Celery, mailer: Celery, form: str, is_first: bool
) -> None:
    declare(bank, form)
    for app in (mailer, bank) if is_first else (bank, mailer):
        app.finalize()
    with pytest.raises(ConfigurationError, match=TOO_LONG):
        mailer.tasks["bank.long"].delay(1)


@pytest.mark.parametrize("form", ["decorator", "base"])
def test_an_apps_own_task_is_refused_after_another_app_has_it(
    bank: Celery, mailer: Celery, form: str
) -> None:
    declare(mailer, form)
    bank.finalize()
    with pytest.raises(ConfigurationError, match=TOO_LONG):
        mailer.finalize()


def test_a_task_of_no_app_is_checked_by_the_first_that_has_it(bank: Celery, mailer: Celery) -> None:
    @singleton_task(name="bank.long", lock_ttl=120)
    def long(number: int) -> None: ...

    bank.finalize()
    mailer.finalize()
    with pytest.raises(ConfigurationError, match=TOO_LONG):
        mailer.tasks["bank.long"].delay(1)


def test_a_task_that_is_wrong_everywhere_is_refused_everywhere(
    bank: Celery, mailer: Celery
) -> None:
    @singleton_task(name="bank.wrong", lock_ttl=-1)
    def wrong(number: int) -> None: ...

    for app in (mailer, bank):
        with pytest.raises(ConfigurationError, match=r"bank\.wrong.*lock_ttl"):
            app.finalize()


def test_an_app_without_nodes_and_tasks_of_its_own_locks_nothing(
    bank: Celery, mailer: Celery
) -> None:
    declare(bank)
    assert not is_bystander(bank)
    assert is_bystander(mailer)


def test_an_app_without_nodes_for_a_task_of_its_own_is_no_bystander(mailer: Celery) -> None:
    @singleton_task(app=mailer, name="mailer.send")
    def send(number: int) -> None: ...

    assert not is_bystander(mailer)


def test_a_wrong_setting_is_refused_also_without_own_tasks(mailer: Celery) -> None:
    mailer.conf.redlock_tll = 5
    with pytest.raises(ConfigurationError, match="redlock_tll is an unknown setting"):
        is_bystander(mailer)
