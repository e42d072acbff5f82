"""An entry has the same name in every process, or is refused."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery.beat import BeatLazyFunc, ScheduleEntry
from celery.schedules import crontab

from celery_redlock.beat.entry_names import check_names
from celery_redlock.redlock.errors import ConfigurationError


@pytest.fixture
def app() -> Celery:
    app = Celery("app", set_as_current=False)

    @app.task(name="task", shared=False)
    def task(*_: Any, **__: Any) -> None: ...

    return app


def entries(app: Celery, *args: Any, name: str | None = None, **kwargs: Any) -> Any:
    app.add_periodic_task(5.0, app.tasks["task"].s(*args, **kwargs), name=name)
    return app.conf.beat_schedule


@pytest.mark.parametrize(
    "argument",
    [
        BeatLazyFunc(len, "abc"),
        [{"at": BeatLazyFunc(len)}],
        object(),
        lambda: None,
        {"a", "b"},
        [{"some": frozenset({1, 2})}],
    ],
    ids=["lazy", "lazy inside", "object", "function", "set", "set inside"],
)
def test_an_unnamed_entry_whose_name_differs_by_process_is_refused(
    app: Celery, argument: object
) -> None:
    keywords: dict[str, Any] = {"keyword": argument}
    for args, kwargs in ([argument], {}), ([], keywords):
        app.conf.beat_schedule = {}
        with pytest.raises(ConfigurationError, match=r"beat entry .task\(.*pass a name"):
            check_names(entries(app, *args, **kwargs))


def test_a_chain_with_an_address_in_its_name_is_refused(app: Celery) -> None:
    task = app.tasks["task"]
    app.add_periodic_task(5.0, task.s(object()) | task.s())
    with pytest.raises(ConfigurationError, match="differs from process to process"):
        check_names(app.conf.beat_schedule)


@pytest.mark.parametrize("argument", [BeatLazyFunc(len, "abc"), object(), {"a", "b"}])
def test_a_named_entry_may_have_any_argument(
    app: Celery, argument: object, caplog: pytest.LogCaptureFixture
) -> None:
    check_names(entries(app, argument, name="named"))
    assert caplog.records == []


def test_arguments_that_name_an_entry_are_warned_of(
    app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    entries(app, 1)
    entries(app, a={"b": {2}})
    check_names(entries(app))
    [record] = caplog.records
    assert (record.levelname, record.getMessage()) == (
        "WARNING",
        "entries unnamed, with other arguments they are other entries entries="
        + str(["task(1)", "task(a={'b': {2}})"]),
    )


def test_an_entry_need_not_have_arguments(caplog: pytest.LogCaptureFixture) -> None:
    check_names({"task()": {"task": "task", "schedule": 5.0}})
    assert caplog.records == []


def test_the_names_of_entry_objects_are_checked(app: Celery) -> None:
    entry = ScheduleEntry("task({1, 2})", "task", schedule=crontab(), args=({1, 2},), app=app)
    with pytest.raises(ConfigurationError, match="pass a name"):
        check_names({str(entry.name): entry})
