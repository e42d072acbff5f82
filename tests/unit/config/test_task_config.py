"""What is known of a task's locking before it is called."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, Task

from celery_redlock import SingletonTask
from celery_redlock.config.task_config import (
    checked_at_binding,
    is_singleton,
    refusing_later,
    task_lock_config,
)
from celery_redlock.redlock.errors import ConfigurationError


def test_options_come_from_the_task_before_the_settings(app: Celery) -> None:
    app.conf.update(redlock_ttl=11.0, redlock_max_deliveries=4)

    @app.task(base=SingletonTask, lazy=False, name="default", lock_key="{a}")
    def default(a: int) -> None: ...

    @app.task(base=SingletonTask, lazy=False, name="own", lock_key="{a}", lock_ttl=12.0)
    def own(a: int) -> None: ...

    assert [task_lock_config(task, app).options.ttl for task in (default, own)] == [11.0, 12.0]
    assert task_lock_config(own, app).max_deliveries == 4


def test_whether_the_body_takes_the_token_is_known(app: Celery) -> None:
    @app.task(base=SingletonTask, lazy=False, name="with", lock_key=[])
    def taking(*, fencing_token: int | None = None) -> None: ...

    @app.task(base=SingletonTask, lazy=False, name="without", lock_key=[])
    def leaving() -> None: ...

    assert task_lock_config(taking, app).rule.takes_token
    assert not task_lock_config(leaving, app).rule.takes_token


@pytest.mark.parametrize("form", ["method", "staticmethod", "classmethod"])
def test_the_key_is_derived_from_what_callers_pass(app: Celery, form: str) -> None:
    if form == "method":

        class Cls(SingletonTask):
            name = "cls"
            lock_key = "{a}"

            def run(self, a: int) -> None: ...

    elif form == "classmethod":

        class Cls(SingletonTask):  # type: ignore[no-redef]
            name = "cls"
            lock_key = "{a}"

            @classmethod
            def run(cls, a: int) -> None: ...
    else:

        class Cls(SingletonTask):  # type: ignore[no-redef]
            name = "cls"
            lock_key = "{a}"

            @staticmethod
            def run(a: int) -> None: ...

    task: Any = app.register_task(Cls())
    config = task_lock_config(task, app)
    assert config.rule.key_for((7,), {}) == config.rule.key_for((), {"a": 7}) == "cls:7"


def test_a_class_without_a_name_gets_the_one_celery_will_give_it(app: Celery) -> None:
    class Nameless(SingletonTask):
        lock_key = "{a}"

        def run(self, a: int) -> None: ...

    expected = app.gen_task_name("Nameless", __name__)
    assert task_lock_config(Nameless, app).rule.key_for((7,), {}) == f"{expected}:7"


def test_an_invalid_option_is_refused_by_the_name_of_its_task(app: Celery) -> None:
    class Wrong(SingletonTask):
        name = "shop.wrong"
        lock_key = "{a}"
        lock_ttl = -1

        def run(self, a: int) -> None: ...

    with pytest.raises(ConfigurationError, match=r"shop\.wrong.*lock_ttl"):
        task_lock_config(Wrong, app)
    with pytest.raises(ConfigurationError, match=r"shop\.wrong.*lock_ttl"):
        checked_at_binding(Wrong, app)
    with refusing_later():
        assert checked_at_binding(Wrong, app) is None


def test_a_task_is_configured_before_the_nodes_are_known(app: Celery) -> None:
    app.conf.redlock_nodes = None

    @app.task(base=SingletonTask, lazy=False, name="t", lock_key=[])
    def body() -> None: ...

    assert task_lock_config(body, app).rule.key_for((), {}) == "t"


def test_tasks_of_a_singletons_class_are_singletons_but_not_celerys(app: Celery) -> None:
    app.task_cls = SingletonTask  # type: ignore[assignment]

    @app.task(name="locked", lazy=False)
    def locked() -> None: ...

    @app.task(base=Task, name="plain", lazy=False)
    def plain() -> None: ...

    accumulate = app.tasks["celery.accumulate"]
    assert [is_singleton(task) for task in (locked, plain, accumulate)] == [True, False, False]
