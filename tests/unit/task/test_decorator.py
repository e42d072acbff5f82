"""Every wrong form of a singleton task is refused, and every right one is a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, Task
from celery.local import maybe_evaluate

from celery_redlock import ConfigurationError, SingletonTask, singleton_task
from celery_redlock.config.task_config import refusing_later
from tests.support.processes.project import celery_to_itself


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app whose lock nodes are never reached."""
    with celery_to_itself(), Celery("shop", broker="memory://") as app:
        app.conf.redlock_nodes = ["redis://127.0.0.1:1"]
        yield app


def test_a_decorated_function_keeps_its_name_and_documentation(app: Celery) -> None:
    @singleton_task(app=app)
    def rebuild(tenant: int) -> None:
        """Rebuild it."""

    assert rebuild.__name__ == "rebuild"
    assert rebuild.__doc__ == "Rebuild it."
    assert rebuild.name.endswith(".rebuild")
    assert isinstance(rebuild, SingletonTask)
    # The lock is around it once.
    assert type(maybe_evaluate(rebuild)).__call__ is SingletonTask.__call__


def test_parentheses_are_not_needed(app: Celery) -> None:
    @singleton_task
    def ship(number: int) -> int:
        return number

    assert ship.name.endswith(".ship")
    assert ship(3) == 3


def test_a_plain_base_is_below_the_lock(app: Celery) -> None:
    class Company(Task):  # type: ignore[type-arg]
        abstract = True
        country = "NO"
        bound_to: Celery | None = None

        @classmethod
        def on_bound(cls, app: Celery) -> None:
            cls.bound_to = app

    @singleton_task(app=app, base=Company)
    def ship(number: int) -> None: ...

    task: Any = ship
    assert isinstance(task, SingletonTask)
    assert isinstance(task, Company)
    assert task.country == "NO"
    assert task.bound_to is app
    kinds = task.__class__.__mro__  # of the task, not of its proxy
    assert kinds.index(SingletonTask) < kinds.index(Company)


def test_a_base_that_locks_is_used_as_it_is(app: Celery) -> None:
    class Locking(SingletonTask):
        abstract = True
        lock_ttl = 9

    @singleton_task(app=app, base=Locking, lock_key=[])
    def ship(number: int) -> None: ...

    task: Any = ship
    assert task._lock_config().options.ttl == 9
    assert "SingletonLocking" not in [kind.__name__ for kind in task.__class__.__mro__]


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_shared_task_belongs_to_the_app_that_is_current(app: Celery, is_shared: bool) -> None:
    @singleton_task(app=None if is_shared else app, name="shop.ship")
    def ship(number: int) -> None: ...

    with Celery("other", broker="memory://") as other:
        assert (ship.app is other) is is_shared
        assert (ship.app is app) is not is_shared


def test_options_of_celery_pass_through(app: Celery) -> None:
    @singleton_task(app=app, name="shop.ship", acks_late=True, lock_ttl=9)
    def ship(number: int) -> None: ...

    assert (ship.name, ship.acks_late) == ("shop.ship", True)


def test_a_shared_task_is_no_burden_to_an_app_that_locks_nothing(app: Celery) -> None:
    # Celery's own default app is such a one, and shared tasks are everybody's.
    with Celery("other", broker="memory://", set_as_current=False) as other:
        other.finalize()

        @singleton_task(name="shop.ship")
        def ship(number: int) -> None: ...

        with Celery("third", broker="memory://", set_as_current=False) as third:
            third.finalize()
        ship.delay(1)


WRONG_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"lock_tll": 5}, "lock_tll = 5 is an unknown lock option; did you mean lock_ttl?"),
    ({"lock_key": "{order}"}, "lock_key='{order}' names the unknown parameter 'order'"),
    ({"lock_min_hold": 2, "lock_max_hold": 1}, "lock_min_hold = 2 is longer than lock_max_hold"),
]


def refusal(caught: pytest.ExceptionInfo[ConfigurationError]) -> str:
    message = str(caught.value)
    assert message.startswith("task 'shop.ship': "), message
    return message


def write_down(app: Celery, form: str, options: dict[str, Any]) -> Any:
    """Write a task in one of the forms; it is bound to its app when that is used."""

    def ship(number: int) -> None:
        raise AssertionError("it must not run")

    if form == "class":
        attributes = {"name": "shop.ship", "run": staticmethod(ship), **options}
        return app.register_task(type("Ship", (SingletonTask,), attributes))
    if form == "base":
        decorate: Any = app.task(base=SingletonTask, name="shop.ship", **options)
        return decorate(ship)
    if form == "shared":
        return singleton_task(name="shop.ship", **options)(ship)
    if form == "annotations":
        app.conf.task_annotations = {"shop.ship": options}
        return singleton_task(app=app, name="shop.ship")(ship)
    return singleton_task(app=app, name="shop.ship", **options)(ship)


def write_down_and_finalize(app: Celery, form: str, options: dict[str, Any]) -> None:
    write_down(app, form, options)
    app.finalize()


@pytest.mark.parametrize(("options", "problem"), WRONG_OPTIONS)
@pytest.mark.parametrize("form", ["decorator", "shared", "base", "class", "annotations"])
def test_a_wrong_option_is_refused_in_every_form(
    app: Celery, options: dict[str, Any], problem: str, form: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        write_down_and_finalize(app, form, options)
    assert problem in refusal(caught)


@pytest.mark.parametrize(("options", "problem"), WRONG_OPTIONS)
def test_a_wrong_task_may_be_refused_when_it_is_called(
    app: Celery, options: dict[str, Any], problem: str
) -> None:
    with refusing_later():
        task = write_down(app, "decorator", options)
        app.finalize()
    with pytest.raises(ConfigurationError) as caught:
        task.delay(1)
    assert problem in refusal(caught)


def test_the_workers_of_a_singleton_task_check_their_nodes(app: Celery) -> None:
    app.finalize()
    checks = "celery_redlock.worker.bootsteps:CheckNodes"
    assert checks not in app.steps["worker"]
    write_down(app, "class", {})
    assert checks in app.steps["worker"]


@pytest.mark.parametrize(("options", "problem"), WRONG_OPTIONS)
def test_a_task_with_a_wrong_option_never_runs(
    app: Celery, options: dict[str, Any], problem: str
) -> None:
    task = write_down(app, "decorator", options)
    # Also for those who swallow the first error: the app counts as finalized after that.
    uses: list[Callable[[], Any]] = [
        lambda: task.delay(1),
        lambda: task.delay(1),
        lambda: task.apply((1,), throw=True),
        lambda: task.apply((1,)).get(),
    ]
    for use in uses:
        with pytest.raises(ConfigurationError) as caught:
            use()
        assert problem in refusal(caught)


@pytest.mark.parametrize(
    ("arguments", "options", "problem"),
    [
        ((Celery("proj", set_as_current=False),), {}, "write @singleton_task(app=app)"),
        (("{number}",), {}, "got '{number}' for the function; give options by name"),
        ((), {"app": "proj"}, "app='proj' is not a Celery app"),
        ((), {"base": "proj:Base"}, "base='proj:Base' is not a class"),
    ],
)
def test_wrong_decorator_arguments_are_refused_at_definition(
    arguments: tuple[Any, ...], options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        singleton_task(*arguments, **options)
    assert problem in str(caught.value)


WRONG_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"redlock_on_conflict": "skipp"}, "(from the setting redlock_on_conflict)"),
    ({"redlock_key": "{order}"}, "lock_key='{order}' names the unknown parameter 'order'"),
    ({"redlock_nodes": []}, "redlock_nodes is empty"),
]


@pytest.mark.parametrize(("settings", "problem"), WRONG_SETTINGS)
def test_a_wrong_setting_is_refused_when_the_app_is_finalized(
    app: Celery, settings: dict[str, Any], problem: str
) -> None:
    app.conf.update(settings)

    @singleton_task(app=app)
    def ship(number: int) -> None: ...

    with pytest.raises(ConfigurationError) as caught:
        app.finalize()
    assert problem in str(caught.value)
    with pytest.raises(ConfigurationError):
        ship.delay(1)


def test_without_a_server_to_lock_on_a_task_can_not_be_sent(app: Celery) -> None:
    app.conf.redlock_nodes = None

    @singleton_task(app=app)
    def ship(number: int) -> None: ...

    with pytest.raises(
        ConfigurationError, match="redlock_nodes is not set, and neither the result"
    ):
        ship.delay(1)


def test_a_token_that_arguments_could_land_in_is_refused(app: Celery) -> None:
    @singleton_task(app=app, name="shop.ship")
    def ship(fencing_token: int, number: int) -> None: ...

    with pytest.raises(ConfigurationError) as caught:
        app.finalize()
    assert "declare it last, after a `*`" in refusal(caught)
