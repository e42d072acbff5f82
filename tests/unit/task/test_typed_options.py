"""The options that a type checker knows are those that a task takes."""

from __future__ import annotations

import inspect
from enum import Enum
from typing import Any, get_args, get_type_hints

import pytest
from celery import Celery, Task

from celery_redlock import SingletonTask, singleton_task
from celery_redlock.config.options import (
    KNOWN_OPTIONS,
    Lifetime,
    OnConflict,
    OnLost,
    OnUnavailable,
)
from celery_redlock.task import typed_options


def test_the_typed_lock_options_are_those_that_are_known() -> None:
    assert set(get_type_hints(typed_options.TypedLockOptions)) == KNOWN_OPTIONS


@pytest.mark.parametrize(
    ("option", "choices"),
    [
        ("lock_lifetime", Lifetime),
        ("lock_on_conflict", OnConflict),
        ("lock_on_unavailable", OnUnavailable),
        ("lock_on_lost", OnLost),
    ],
)
def test_the_typed_values_are_those_that_are_accepted(option: str, choices: type[Enum]) -> None:
    typed = get_args(get_type_hints(typed_options.TypedLockOptions)[option])
    assert typed == tuple(choice.value for choice in choices)


def test_every_plain_attribute_of_celery_s_task_is_a_typed_option() -> None:
    from_config = {name for name, _ in Task.from_config}
    internal = {"abstract", "request_stack", "from_config", "request"}
    plain = {
        name
        for name, value in vars(Task).items()
        if isinstance(value, bool | int | float | str | None)
        and name[0].islower()
        and name not in internal
    }
    assert plain | from_config <= set(get_type_hints(typed_options.TypedOptions))


def test_a_subscripted_base_is_the_class_itself() -> None:
    class Report(SingletonTask[[int], str]):
        name = "report"

        def run(self, tenant: int) -> str:
            return str(tenant)

    assert Report.__mro__[1] is SingletonTask
    with Celery("typed", broker="memory://", set_as_current=False) as app:
        app.conf.update(redlock_nodes=["redis://127.0.0.1:1"])
        report = app.register_task(Report())
        assert report(3) == "3"
        assert app.tasks["report"] is report


def test_a_task_with_a_subscripted_base_is_pickled_by_name() -> None:
    with Celery("typed", broker="memory://", set_as_current=False) as app:
        app.conf.update(redlock_nodes=["redis://127.0.0.1:1"])

        class Adding(SingletonTask[[int], int]):
            abstract = True

        @singleton_task(app=app, shared=False, name="t", base=Adding)
        def body(a: int) -> int:
            return a

        reduced: Any = body.__reduce__()
        assert reduced[1][0] == "t"
        assert isinstance(body, Adding)
        assert list(inspect.signature(body.run).parameters) == ["a"]
