"""Every form in which a singleton task can be written, and every wrong one."""

from __future__ import annotations

import abc
import datetime as dt
import decimal
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import celery
import pytest
from celery import Celery, Task

from celery_redlock import (
    ConfigurationError,
    DuplicateTask,
    SingletonTask,
    current_lease,
    singleton_task,
)
from tests.support.project import Project, celery_to_itself

from .conftest import NewProject

GET_WITHIN = 60.0

FORMS = [
    "bare", "shared", "of_the_app", "bound", "token_taking", "autoretrying", "with_celery_options",
    "by_base", "shared_by_base", "by_own_base", "by_base_with_a_call", "on_a_plain_base",
    "shared_on_a_plain_base", "named", "unnamed", "on_the_apps_task", "annotated",
    "decorated",
]  # fmt: skip
TTLS = {"shared": 7, "by_own_base": 9, "named": 11, "annotated": 13}
WITHOUT_THE_APPS_TASK = {"named", "unnamed"}
"""Written as classes: those build on what they say, with Celery's own Task as well."""


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    project = new_project(
        "forms",
        task_annotations={"tests.integration.apps.forms.annotated": {"lock_ttl": 13}},
        redlock_ttl=21,
    )
    project.start_worker()
    return project


def task_of(project: Project, form: str) -> Any:
    return getattr(project.tasks, form)


# --- every form is locked -------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_task_is_locked(project: Project, key: str, form: str) -> None:
    task = task_of(project, form)
    holder = task.delay(key, key)
    run = project.run_of(holder.id)
    duplicate = task.delay(key, key)
    with pytest.raises(DuplicateTask) as caught:
        duplicate.get(timeout=GET_WITHIN)
    assert caught.value.holder == holder.id
    project.open(key)
    about = holder.get(timeout=GET_WITHIN)
    assert about["token"] >= run.token
    assert about["ttl"] == TTLS.get(form, 21)
    assert about["lock"].startswith(f"{task.name}:")
    assert len(project.notes("begin", key=key)) == (3 if form == "autoretrying" else 1)


@pytest.mark.parametrize("form", sorted(set(FORMS) - WITHOUT_THE_APPS_TASK))
def test_every_decorated_form_builds_on_the_apps_own_task_class(
    project: Project, key: str, form: str
) -> None:
    task = task_of(project, form)
    result = task.delay_on_commit(key)
    result.get(timeout=GET_WITHIN)
    company = project.notes("company", task_id=result.id)
    # Within the lock, and once a run.
    assert [note.token for note in company] == project.tokens(key=key)


@pytest.mark.parametrize("form", ["by_base_with_a_call", "on_a_plain_base"])
def test_a_call_of_ones_own_base_is_called_once_a_run(
    project: Project, key: str, form: str
) -> None:
    result = task_of(project, form).delay(key)
    result.get(timeout=GET_WITHIN)
    assert len(project.notes("before", task_id=result.id)) == 1


def test_every_form_has_a_lock_of_its_own(project: Project, key: str) -> None:
    abouts = [task_of(project, form).delay(key).get(timeout=GET_WITHIN) for form in FORMS]
    assert len({about["lock"] for about in abouts}) == len(FORMS)


def test_arguments_are_bound_before_they_are_compared(project: Project, key: str) -> None:
    locks = {
        project.tasks.bound.apply_async(args, kwargs).get(timeout=GET_WITHIN)["lock"]
        for args, kwargs in [
            ((key,), {}), ((), {"key": key}), ((key, None), {}), ((key,), {"gate": None}),
        ]
    }  # fmt: skip
    assert len(locks) == 1


# --- a plain call ---------------------------------------------------------------------------------


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app whose lock nodes are never reached."""
    with celery_to_itself(), Celery("shop", broker="memory://") as app:
        app.conf.redlock_nodes = ["redis://127.0.0.1:1"]
        yield app


def test_a_direct_call_is_a_plain_call(app: Celery) -> None:
    @singleton_task(app=app, bind=True)
    def told(self: SingletonTask, a: int, b: int = 2, *, fencing_token: int | None) -> Any:
        return [a, b, fencing_token, self.fencing_token, self.lease, current_lease()]

    @singleton_task(app=app)
    def untold(a: int) -> int:
        return a

    @app.task(base=SingletonTask)
    def by_base(fencing_token: int | None = 5) -> Any:
        return fencing_token

    assert told(1) == [1, 2, None, None, None, None]
    assert told(1, b=3)[:2] == [1, 3]
    # For one's own unit tests.
    assert told(1, fencing_token=7)[2] == 7
    assert untold(4) == 4
    assert by_base() is None
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        untold()


def test_a_direct_call_runs_the_apps_own_call(app: Celery) -> None:
    class Flasky(Task):  # type: ignore[type-arg]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return ["in context", self.run(*args, **kwargs)]

    app.task_cls = Flasky  # type: ignore[assignment]

    @singleton_task(app=app)
    def task(a: int) -> int:
        return a

    assert task(1) == ["in context", 1]


def test_the_apps_task_may_have_a_publish_of_its_own_and_be_abstract(app: Celery) -> None:
    published: list[Any] = []

    class Company(Task, abc.ABC):  # type: ignore[type-arg]
        def apply_async(  # type: ignore[override]
            self, args: Any = None, kwargs: Any = None, **options: Any
        ) -> Any:
            published.append((args, options))
            return super().apply_async(args, kwargs, **options)

    app.task_cls = Company  # type: ignore[assignment]

    @singleton_task(app=app)
    def task(a: int) -> None: ...

    @app.task(base=type("Own", (SingletonTask, abc.ABC), {"abstract": True}))
    def other(a: int) -> None: ...

    task.delay(1)
    other.apply_async((2,), task_id="mine", countdown=3)
    assert published == [((1,), {}), ((2,), {"task_id": "mine", "countdown": 3})]


def test_a_decorated_function_keeps_its_name_and_documentation(app: Celery) -> None:
    @singleton_task(app=app)
    def rebuild(tenant: int) -> None:
        """Rebuild it."""

    assert rebuild.__name__ == "rebuild"
    assert rebuild.__doc__ == "Rebuild it."
    assert rebuild.name.endswith(".rebuild")
    assert isinstance(rebuild, SingletonTask)


def test_a_shared_task_is_no_burden_to_an_app_that_locks_nothing(app: Celery) -> None:
    # Celery's own default app is such a one, and shared tasks are everybody's.
    with Celery("other", broker="memory://", set_as_current=False) as other:
        other.finalize()

        @singleton_task(name="shop.ship")
        def ship(number: int) -> None: ...

        with Celery("third", broker="memory://", set_as_current=False) as third:
            third.finalize()
        ship.delay(1)


# --- what callers may pass ------------------------------------------------------------------------


def test_a_lock_key_function_that_fails_is_heard_when_the_task_is_sent(app: Celery) -> None:
    @singleton_task(app=app, lock_lifetime="until_executed", lock_key=lambda order: order["number"])
    def ship(order: Any) -> None: ...

    # A TypeError is not taken for that of a call with wrong arguments.
    for order, error in ((None, TypeError), ({}, KeyError)):
        with pytest.raises(error):
            ship.delay(order)


def test_wrong_arguments_are_refused_when_the_task_is_sent(app: Celery) -> None:
    @singleton_task(app=app, bind=True)
    def told(self: SingletonTask, a: int, *, fencing_token: int) -> None: ...

    @singleton_task(app=app)
    def untold(a: int) -> None: ...

    for task in (told, untold):
        for args, kwargs in [((), {}), ((1, 2), {}), ((), {"b": 1}), ((1,), {"fencing_token": 3})]:
            with pytest.raises(TypeError):
                task.apply_async(args, kwargs)
    told.delay(1)
    told.delay(a=1)
    untold.delay(1)


def test_without_typing_the_body_is_the_one_to_refuse(app: Celery) -> None:
    @singleton_task(app=app, typing=False)
    def task(a: int, *, fencing_token: int) -> None: ...

    task.delay()


class Opaque:
    """Nothing that JSON knows."""


@pytest.mark.parametrize(
    ("argument", "where"),
    [
        (Opaque(), "order is"),
        ([1, {"a": Opaque()}], r"order\[1\]\['a'\] is"),
        ({(1, 2): 3}, "order has"),
    ],
)
def test_an_argument_without_a_stable_form_is_refused_when_the_task_is_sent(
    app: Celery, argument: Any, where: str
) -> None:
    @singleton_task(app=app, name="shop.ship")
    def ship(order: Any) -> None: ...

    for send in (
        ship.delay,
        lambda order: ship.apply_async(kwargs={"order": order}),
        lambda order: ship.si(order).delay(),
    ):
        with pytest.raises(ConfigurationError, match=where) as caught:
            send(argument)
        assert "task 'shop.ship'" in str(caught.value)
        assert "lock_key" in str(caught.value)


def test_what_kombu_can_send_can_be_locked_by(app: Celery) -> None:
    @singleton_task(app=app)
    def ship(order: Any) -> None: ...

    for argument in (
        dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc), dt.date(2026, 1, 1),
        decimal.Decimal("1.5"), uuid.uuid4(), b"bytes", (1, 2), None, {"a": [1.5, True]},
    ):  # fmt: skip
        ship.delay(argument)


def test_lock_key_decides_which_arguments_count(app: Celery) -> None:
    @singleton_task(app=app, lock_key=[])
    def alone(order: Any) -> None: ...

    @singleton_task(app=app, lock_key=lambda order: order.number)
    def by_function(order: Any) -> None: ...

    @singleton_task(app=app, lock_key="{order[number]}")
    def by_field(order: Any) -> None: ...

    alone.apply_async((Opaque(),), serializer="pickle")
    by_field.delay({"number": 1, "other": 2})
    with pytest.raises(ConfigurationError, match=r"order\[number\]"):
        by_field.delay({"other": 2})
    # That is called in the worker, which may know what the publisher does not.
    by_function.delay({"number": 1})


def test_an_option_may_be_set_on_the_task_itself_at_any_time(project: Project, key: str) -> None:
    task = task_of(project, "of_the_app")
    assert task.apply((key,)).get()["ttl"] == 21
    task.lock_ttl = 8
    assert task.apply((key,)).get()["ttl"] == 8
    task.lock_tll = 8
    with pytest.raises(ConfigurationError, match="did you mean lock_ttl"):
        task.delay(key)
    del task.lock_ttl, task.lock_tll
    assert task.apply((key,)).get()["ttl"] == 21


# --- what is refused ------------------------------------------------------------------------------

WRONG_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"lock_tll": 5}, "lock_tll = 5 is no lock option; did you mean lock_ttl?"),
    ({"lock_ttl": "30"}, "lock_ttl = '30' is of type str"),
    ({"lock_ttl": 0}, "lock_ttl = 0 is out of range"),
    ({"lock_ttl": 61}, "lock_ttl = 61 is longer than redlock_max_ttl"),
    ({"lock_key": "{order}"}, "lock_key='{order}' names 'order'"),
    ({"lock_key": ["order"]}, "lock_key=['order'] names 'order'"),
    ({"lock_key": "number"}, 'did you mean "{number}"?'),
    ({"lock_key": 5}, "lock_key=5 is of type int"),
    ({"lock_key": lambda: 1}, "can't be called as the task is"),
    ({"lock_lifetime": "forever"}, "lock_lifetime = 'forever' is none of"),
    ({"lock_on_conflict": "skipp"}, 'did you mean "skip"?'),
    ({"lock_on_unavailable": "skip"}, "lock_on_unavailable = 'skip' is none of"),
    ({"lock_on_lost": "ignore"}, "lock_on_lost = 'ignore' is none of"),
    ({"lock_min_hold": -1}, "lock_min_hold = -1 is out of range"),
    ({"lock_min_hold": 2, "lock_max_hold": 1}, "lock_min_hold = 2 is longer than lock_max_hold"),
    ({"lock_wait": 3}, 'lock_wait = 3 has no use with lock_on_conflict="skip"'),
    ({"lock_conflict_result": 3}, "lock_conflict_result = 3 has no use"),
    ({"lock_queue_ttl": True}, "lock_queue_ttl = True is of type bool"),
]  # fmt: skip


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
        ((), {"app": "proj"}, "app='proj' is no Celery app"),
        ((), {"base": "proj:Base"}, "base='proj:Base' is no class"),
    ],
)
def test_wrong_arguments_of_the_decorator_are_refused_where_they_stand(
    arguments: tuple[Any, ...], options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        singleton_task(*arguments, **options)
    assert problem in str(caught.value)


def test_an_option_of_the_lock_is_refused_for_a_single_call(app: Celery) -> None:
    ship = write_down(app, "decorator", {})
    uses: list[Callable[[], Any]] = [
        lambda: ship.apply_async((1,), lock_ttl=5),
        lambda: ship.s(1).set(lock_ttl=5).delay(),
    ]
    for use in uses:
        with pytest.raises(ConfigurationError) as caught:
            use()
        assert "lock_ttl is no option of a single call" in refusal(caught)


WRONG_SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"redlock_tll": 5}, "redlock_tll is no setting; did you mean redlock_ttl?"),
    ({"redlock_ttl": "30"}, "lock_ttl (from the setting redlock_ttl) = '30' is of type str"),
    ({"redlock_on_conflict": "skipp"}, "(from the setting redlock_on_conflict)"),
    ({"redlock_key": "{order}"}, "lock_key='{order}' names 'order'"),
    ({"redlock_max_ttl": -1}, "redlock_max_ttl = -1 is out of range"),
    ({"redlock_node_timeout": "1"}, "redlock_node_timeout = '1' is of type str"),
    ({"redlock_max_clock_skew": -1}, "redlock_max_clock_skew = -1 is out of range"),
    ({"redlock_restart_guard": "on"}, "redlock_restart_guard = 'on' is of type str"),
    ({"redlock_enabled": "yes"}, "redlock_enabled = 'yes' is of type str"),
    ({"redlock_key_prefix": "{x}"}, "redlock_key_prefix = '{x}' can't start a key"),
    ({"redlock_nodes": []}, "redlock_nodes names no server"),
    ({"redlock_nodes": [1]}, "redlock_nodes[0] is of type int"),
]  # fmt: skip


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


def test_a_worker_refuses_a_wrong_option(new_project: NewProject) -> None:
    worker = new_project("misconfigured").new_worker()
    worker.start()
    assert worker.wait_until_ended() != 0
    assert "lock_ttl = 3600 is longer than redlock_max_ttl (60 s)" in worker.log_text()
    assert "raise redlock_max_ttl or lower lock_ttl" in worker.log_text()


# --- pydantic -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(new_project: NewProject) -> Project:
    pytest.importorskip("pydantic")
    project = new_project("models")
    project.start_worker()
    return project


def test_a_task_with_pydantic_models_is_locked_by_what_is_sent(models: Project) -> None:
    key = uuid.uuid4().hex
    order = {"number": key, "lines": ["a"]}
    for task, result in (
        (models.tasks.ship, ["a", "shipped"]),
        (models.tasks.cancel, ["cancelled"]),
    ):
        gate = f"{task.name}-{key}"
        holder = task.delay(order, gate)
        models.run_of(holder.id)
        with pytest.raises(DuplicateTask):
            task.delay(order, gate).get(timeout=GET_WITHIN)
        models.open(gate)
        assert holder.get(timeout=GET_WITHIN) == {"number": key, "lines": result}


@pytest.mark.skipif(
    tuple(map(int, celery.__version__.split(".")[:2])) < (5, 7), reason="sends no models"
)
def test_a_pydantic_model_may_be_sent_as_it_is(models: Project) -> None:
    key = uuid.uuid4().hex
    order = models.tasks.Order(number=key)
    for task in (models.tasks.ship, models.tasks.cancel):
        gate = f"{task.name}-{key}"
        holder = task.delay(order, gate)
        models.run_of(holder.id)
        with pytest.raises(DuplicateTask):
            task.delay(order.model_dump(), gate).get(timeout=GET_WITHIN)
        models.open(gate)
        assert holder.get(timeout=GET_WITHIN)["number"] == key
