"""A singleton task as its callers see it: what they may pass, and what a plain call does."""

from __future__ import annotations

import abc
import asyncio
import os
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest
from celery import Celery, Task
from celery.contrib.abortable import AbortableTask
from celery.local import maybe_evaluate
from celery.signals import task_prerun

from celery_redlock import (
    ConfigurationError,
    DuplicateTask,
    SingletonTask,
    current_lease,
    singleton_task,
)
from celery_redlock.config import app_lock
from celery_redlock.messages.headers import DELIVERIES_HEADER, PUBLICATION_HEADER
from celery_redlock.redlock.lease import new_owner
from tests.support.fakes.forged import HOLDER, NewTask, deliver
from tests.support.fakes.one_node import OneNode

NONCE = "0123456789abcdef"


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
        untold()  # type: ignore[call-arg]


class InContext:
    """A call that is no function, and so is not told whose it is."""

    def __call__(self, a: int) -> list[Any]:
        return ["in context", a]


@pytest.mark.parametrize("call", [lambda self, *args: ["in context", self.run(*args)], InContext()])
def test_any_call_runs_the_apps_own_call(app: Celery, call: Any) -> None:
    app.task_cls = type("Flasky", (Task,), {"__call__": call})  # type: ignore[assignment]

    @singleton_task(app=app)
    def task(a: int) -> int:
        return a

    assert task(1) == ["in context", 1]  # type: ignore[comparison-overlap]
    assert task.apply((1,)).get() == ["in context", 1]  # type: ignore[comparison-overlap]


def test_the_apps_task_class_may_publish_and_apply_itself(app: Celery) -> None:
    published: list[Any] = []

    class Company(Task, abc.ABC):  # type: ignore[type-arg]
        def apply_async(  # type: ignore[override]
            self, args: Any = None, kwargs: Any = None, **options: Any
        ) -> Any:
            given = {name: value for name, value in options.items() if name != "headers"}
            published.append((args, given))
            return super().apply_async(args, kwargs, **options)

        def apply(self, *_: Any, **__: Any) -> Any:
            return "applied"

    app.task_cls = Company  # type: ignore[assignment]

    @singleton_task(app=app)
    def task(a: int) -> None: ...

    @app.task(base=type("Own", (SingletonTask, abc.ABC), {"abstract": True}))
    def other(a: int) -> None: ...

    task.delay(1)
    other.apply_async((2,), task_id="mine", countdown=3)
    assert published == [((1,), {}), ((2,), {"task_id": "mine", "countdown": 3})]
    assert task.apply((1,)) == "applied"  # type: ignore[comparison-overlap]


def test_everything_that_a_call_says_reaches_celery(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []

    def note(_task: Any, args: Any, kwargs: Any, **options: Any) -> None:
        options.pop("headers", None)
        sent.append((args, kwargs, options))

    monkeypatch.setattr(Task, "apply_async", note)
    app.task_cls = SingletonTask  # type: ignore[assignment]

    @app.task(lazy=False)
    def task(a: int) -> None: ...

    everything: dict[str, Any] = {
        "task_id": "mine", "producer": object(), "link": task.s(), "link_error": task.s(),
        "shadow": "other", "countdown": 3,
    }  # fmt: skip
    for each in (task, app.tasks["celery.accumulate"]):
        each.apply_async((1,), {}, **everything)
        each.apply_async(kwargs={"a": 1})
    assert sent == [((1,), {}, everything), (None, {"a": 1}, {})] * 2


def test_a_failing_lock_key_function_raises_at_publish(app: Celery) -> None:
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


def test_a_call_is_checked_by_what_its_decorator_takes(app: Celery) -> None:
    def body(a: int, b: int, *, fencing_token: int) -> None: ...

    @wraps(body)
    def adding(b: int, **more: Any) -> None:
        body(1, b, **more)

    task = app.task(base=SingletonTask)(adding)
    task.delay(2)
    with pytest.raises(TypeError):
        task.delay(1, 2, 3)


def test_a_subclass_of_a_registered_class_has_its_own_arguments(
    app: Celery, published: Any
) -> None:
    class Base(SingletonTask):
        name = "base"

        def run(self, a: int, *, fencing_token: int) -> None: ...

    class Sub(Base):
        name = "sub"

        def run(self, a: int, b: int) -> None: ...  # type: ignore[override]

    base: Any = app.register_task(Base())
    sub: Any = app.register_task(Sub())
    sub.delay(1, 2)
    base.delay(1)
    assert [one["task"] for one in published] == ["sub", "base"]
    with pytest.raises(TypeError, match="missing a required argument: 'b'"):
        sub.delay(1)


@pytest.mark.parametrize("lock_key", [None, lambda a, **_: str(a)])
def test_a_token_is_refused_when_the_task_is_sent(app: Celery, lock_key: Any) -> None:
    @singleton_task(app=app, lock_key=lock_key)
    def task(a: int, *, fencing_token: int, **more: object) -> None: ...

    with pytest.raises(TypeError, match="'fencing_token'; leave it out"):
        task.apply_async((1,), {"fencing_token": 3})
    task.apply_async((1,), {"other": 3})


def test_without_typing_the_body_is_the_one_to_refuse(app: Celery) -> None:
    @singleton_task(app=app, typing=False)
    def task(a: int, *, fencing_token: int) -> None: ...

    task.delay()
    task.apply_async(kwargs={"fencing_token": 3})


class Opaque:
    """Nothing that JSON knows."""


@pytest.mark.parametrize(
    ("argument", "where"),
    [
        (Opaque(), "order is"),
        ([1, {"a": Opaque()}], r"order\[1\]\[…\] is"),
        ({(1, 2): 3}, "order has"),
    ],
)
def test_an_argument_without_a_stable_form_is_refused_at_publish(
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


def test_a_publisher_without_nodes_is_told_whatever_the_lifetime(
    app: Celery, new_task: NewTask
) -> None:
    task = new_task(lock_lifetime="while_executing")
    del app_lock._redlocks[app]
    app.conf.redlock_nodes = None  # and neither broker nor backend is one
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="redlock_nodes is not set"):
            task.delay()
    app.conf.task_always_eager = True
    assert isinstance(task.delay().result, ConfigurationError)


def test_a_lock_key_function_sees_what_a_prerun_receiver_has_set(app: Celery) -> None:
    """As tenant-schemas-celery switches the schema."""
    schema = "public"

    @task_prerun.connect
    def switch(**_: Any) -> None:
        nonlocal schema
        schema = "bank"

    app.conf.redlock_key = lambda *args, **kwargs: [schema, args, kwargs]
    keys: list[str] = []

    @app.task(base=SingletonTask, bind=True, name="bank.keys", shared=False)
    def sync(self: Any, account_id: int) -> None:
        keys.append(self.lease.key)

    try:
        sync.apply((1,)).get()
    finally:
        task_prerun.disconnect(switch)
    assert keys == [sync._lock_config().rule.key_for((1,), {})]
    assert schema == "bank"
    schema = "other"
    assert keys != [sync._lock_config().rule.key_for((1,), {})]


def test_options_are_read_at_the_first_call_and_when_set(
    app: Celery, new_task: NewTask, node: OneNode
) -> None:
    node.held["t"] = HOLDER, 1e9

    class Base(SingletonTask):
        abstract = True

    task = new_task(Base)

    def state() -> str:
        return str(task.apply().state)

    app.conf.redlock_on_conflict = "complete"
    assert state() == "SUCCESS"
    app.conf.redlock_on_conflict = "nonsense"
    Base.lock_on_conflict = "raise"
    assert state() == "SUCCESS", "what changes later has no effect, as settings.md says"
    app.conf.redlock_on_conflict = "complete"
    task.lock_on_conflict = "skip"
    assert state() == "REVOKED"


def test_an_option_of_the_lock_is_refused_for_a_single_call(app: Celery) -> None:
    @singleton_task(app=app, name="shop.ship")
    def ship(number: int) -> None: ...

    signature: Any = ship.s(1)
    uses: list[Callable[[], Any]] = [
        lambda: ship.apply_async((1,), lock_ttl=5),
        lambda: signature.set(lock_ttl=5).delay(),
    ]
    for use in uses:
        with pytest.raises(ConfigurationError) as caught:
            use()
        message = str(caught.value)
        assert message.startswith("task 'shop.ship': lock_ttl is not a per-call option")


# --- in an execution ------------------------------------------------------------------------------


def test_an_option_set_on_a_task_counts_from_the_next_call(app: Celery) -> None:
    @singleton_task(app=app, bind=True, lock_key=[])
    def ttl(self: SingletonTask) -> float:
        assert self.lease
        return self.lease.ttl_ms / 1000

    task: Any = ttl
    assert task.apply().get() == 30
    task.lock_ttl = 8
    assert task.apply().get() == 8
    del task.lock_ttl
    assert task.apply().get() == 30
    task.lock_tll = 8
    with pytest.raises(ConfigurationError, match="did you mean lock_ttl"):
        task.delay()


def test_a_task_has_the_lease_of_its_own_run_only(app: Celery, node: OneNode) -> None:
    seen: list[Any] = []

    @app.task(base=SingletonTask, name="other")
    def other() -> None: ...

    @app.task(base=SingletonTask, bind=True, name="t", lock_key=[])
    def body(self: SingletonTask) -> None:
        seen.append((self.lease is current_lease(), self.fencing_token, other.lease))

    deliver(body)
    assert seen == [(True, 1, None)]
    assert body.lease is None


def test_a_copy_of_a_request_belongs_to_its_execution(app: Celery, node: OneNode) -> None:
    tokens: list[int | None] = []

    @app.task(base=SingletonTask, bind=True, name="t", lock_key=[])
    def body(self: Any, is_first: bool = True, *, fencing_token: int | None) -> None:
        tokens.append(fencing_token)
        if is_first:
            self.push_request({"mine": 1})
            assert self.request.mine == 1
            self(is_first=False)
            self.pop_request()

    deliver(body)
    assert tokens == [1, 1]


class Through(SingletonTask):
    """Company's class with a call of its own, which adds an argument."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs, session="s")


class Around(SingletonTask):
    """Company's class whose call runs the body itself."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)


@pytest.mark.parametrize("base", [SingletonTask, Through, Around])
@pytest.mark.parametrize("lock_key", ["{k}", lambda k, **_: str(9 // (9 - k))])
def test_a_plain_call_in_a_run_has_the_token_of_its_own_key(
    app: Celery, base: Any, lock_key: Any
) -> None:
    seen: list[Any] = []

    @app.task(base=base, bind=True, name="t", lock_key=lock_key)
    def body(self: Any, k: int, *, fencing_token: int | None, session: str = "") -> None:
        seen.append((k, fencing_token))
        if len(seen) == 1:
            self(1)
            self(8)
            self(9)  # of which a function can't make a key
            self(8, fencing_token=7)

    deliver(body, args=(1,))
    assert seen == [(1, 1), (1, 1), (8, None), (9, None), (8, 7)]


def test_the_usual_call_of_a_body_makes_one_key(app: Celery) -> None:
    made: list[int] = []

    def key(k: int, **_: object) -> str:
        made.append(k)
        return "k"

    @app.task(base=Through, name="t", lock_key=key)
    def body(k: int, *, fencing_token: int | None, session: str = "") -> None: ...

    deliver(body, args=(1,))
    assert made == [1]


def test_a_body_is_told_that_its_message_was_delivered_before(app: Celery) -> None:
    seen: list[bool] = []

    @app.task(base=SingletonTask, bind=True, name="t", lock_key=[], acks_late=True)
    def body(self: Any) -> None:
        seen.append(self.request.delivery_info["redelivered"])

    app.conf.redlock_max_deliveries = 1
    for count in range(3):
        deliver(body, **{DELIVERIES_HEADER: count})
    assert seen == [False, True]


def test_a_result_that_is_to_be_awaited_fails_the_task(app: Celery) -> None:
    @singleton_task(app=app, name="t", lock_key=[])
    def body() -> Any:
        return asyncio.sleep(0)

    with pytest.raises(ConfigurationError, match="task 't': its body returned a coroutine"):
        body.apply().get()


def test_locking_that_is_disabled_leaves_a_plain_task(
    app: Celery, new_task: NewTask, node: OneNode
) -> None:
    app.conf.redlock_enabled = False
    node.held["t"] = HOLDER, 1e9
    task = new_task(lock_lifetime="until_executed", track_started=True)
    assert task.delay().id != "holder"
    deliver(task)
    assert task.runs == [None]
    assert node.held == {"t": (HOLDER, 1e9)}


def test_locking_that_is_disabled_is_logged_once(
    app: Celery, new_task: NewTask, caplog: pytest.LogCaptureFixture
) -> None:
    app.conf.redlock_enabled = False
    task = new_task(lock_lifetime="until_executed")
    for use in (task.delay, partial(deliver, task)):
        app_lock._warn_disabled.cache_clear()
        caplog.clear()
        use()
        use()
        [record] = caplog.records
        assert record.getMessage().startswith("locking switched off: redlock_enabled is False")
        assert record.levelname == "WARNING"


@pytest.mark.parametrize("of_base", [None, True, False])
@pytest.mark.parametrize("own", [None, True, False])
def test_a_subclass_of_a_registered_class_stores_its_own_start(
    app: Celery, of_base: bool | None, own: bool | None
) -> None:
    app.conf.task_track_started = True
    base: Any = type("Base", (SingletonTask,), {"track_started": of_base, "run": lambda _: None})
    given = {} if own is None else {"track_started": own}
    sub: Any = type("Sub", (base,), {"name": "sub", **given})
    app.register_task(base())
    app.register_task(sub())
    assert base._stores_start is (of_base is not False)
    assert sub._stores_start is (base._stores_start if own is None else own)
    assert sub.track_started is False


def test_started_is_stored_once_the_lock_is_held(app: Celery, node: OneNode) -> None:
    seen: list[Any] = []
    app.conf.result_extended = True

    @app.task(base=SingletonTask, bind=True, name="t", lock_key=[], track_started=True)
    def body(self: SingletonTask) -> None:
        started = self.AsyncResult("task-1")
        seen.append((started.state, started.name, started.info, node.owner_of("t") is not None))

    body.bind(app)  # as Celery does once more when it finalizes the app
    deliver(body, embed={"task": "t"}, hostname="worker@host")
    assert seen == [("STARTED", "t", {"pid": os.getpid(), "hostname": "worker@host"}, True)]


def test_an_eager_call_does_not_store_started(app: Celery, node: OneNode) -> None:
    stored: list[object] = []
    app.backend.store_result = lambda *given, **_: stored.append(given)  # type: ignore[method-assign]

    @app.task(base=SingletonTask, name="t", lock_key=[], track_started=True)
    def body() -> None: ...

    body.apply().get()
    assert stored == []


def test_an_eager_duplicate_is_revoked_and_has_the_tasks_name(
    new_task: NewTask, node: OneNode
) -> None:
    node.held["t"] = HOLDER, 1e9
    task = new_task()
    result = task.apply(task_id="mine")
    assert (result.id, result.state, result.name) == ("mine", "REVOKED", "t")
    assert isinstance(result.result, DuplicateTask)
    node.held.clear()
    result = task.apply(task_id="mine")
    assert (result.state, result.result) == ("SUCCESS", "done")


@pytest.mark.parametrize("option", ["not tracked", "ignored"])
def test_started_is_not_stored_unless_it_is_wanted(app: Celery, option: str) -> None:
    seen: list[str] = []
    options: Any = {"track_started": option == "ignored", "ignore_result": option == "ignored"}
    options["store_errors_even_if_ignored"] = True

    @app.task(base=SingletonTask, bind=True, name="t", lock_key=[], **options)
    def body(self: SingletonTask) -> None:
        seen.append(self.AsyncResult("task-1").state)

    deliver(body)
    assert seen == ["PENDING"]


def test_started_does_not_replace_aborted(app: Celery) -> None:
    """Of a task that was aborted while it waited for its lock."""
    seen: list[Any] = []

    class Abortable(SingletonTask, AbortableTask):  # type: ignore[type-arg]
        abstract = True

    @app.task(base=Abortable, bind=True, name="t", lock_key=[], track_started=True)
    def body(self: Any) -> None:
        seen.append((self.AsyncResult(self.request.id).state, self.is_aborted()))

    deliver(body)
    maybe_evaluate(body).AsyncResult("task-2").abort()
    deliver(body, id="task-2")
    assert seen == [("STARTED", False), ("ABORTED", True)]


def test_a_copy_of_a_running_message_does_not_store_started(
    new_task: NewTask, node: OneNode
) -> None:
    """Over the failure in which the first copy may have ended."""
    task = new_task(track_started=True)
    node.held["t"] = new_owner("task-1", publication=NONCE), 1e9
    deliver(task, **{PUBLICATION_HEADER: NONCE})
    assert task.AsyncResult("task-1").state == "PENDING"


def test_a_class_on_djangos_is_locked_and_publishes_on_commit(
    app: Celery, node: OneNode, monkeypatch: pytest.MonkeyPatch, published: list[dict[str, Any]]
) -> None:
    transaction = pytest.importorskip("django.db.transaction")
    monkeypatch.setattr(transaction, "on_commit", lambda publish: publish())
    from celery.contrib.django.task import DjangoTask  # noqa: PLC0415  # needs Django

    class Report(SingletonTask, DjangoTask):  # type: ignore[type-arg]
        name = "t"
        lock_key = ()

        def run(self) -> str | None:
            return node.owner_of("t")

    task: Any = app.register_task(Report())
    task.delay_on_commit()
    assert [headers["task"] for headers in published] == ["t"]
    assert task.apply().get() is not None


def test_an_own_call_of_a_class_runs_under_the_lock(app: Celery, node: OneNode) -> None:
    seen: list[str | None] = []

    class InContext(SingletonTask):
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            seen.append(node.owner_of("t"))
            return self.run(*args, **kwargs)

    @app.task(base=InContext, name="t", lock_key=[])
    def body(*, fencing_token: int) -> int:
        return fencing_token

    deliver(body)
    assert seen[0] is not None
    assert body.AsyncResult("task-1").result == 1
    assert node.held == {}


def test_an_own_call_with_the_attributes_of_another_is_locked(app: Celery, node: OneNode) -> None:
    """As `functools.wraps` leaves it."""
    seen: list[str | None] = []

    class InContext(SingletonTask):
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

    class Traced(InContext):
        abstract = True

        @wraps(InContext.__call__)
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            seen.append(node.owner_of("t"))
            return self.run(*args, **kwargs)

    @app.task(base=Traced, name="t", lock_key=[])
    def body() -> None: ...

    deliver(body)
    assert len(seen) == 1
    assert seen[0] is not None
