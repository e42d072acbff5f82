"""A task in every form in which a singleton task can be written; the app has a base of its own.

Each takes `(key, gate=None)` and returns what it knows of its lease.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from celery import Task, shared_task

from celery_redlock import SingletonTask, current_lease, singleton_task
from tests.support.processes.inside import Inside


class CompanyTask(Task):  # type: ignore[type-arg]
    """The app's own task class, which runs tasks in a context as Flask's documentation has it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        inside.note("company")
        return self.run(*args, **kwargs)

    def delay_on_commit(self, *args: Any) -> Any:
        """As in `celery.contrib.django.task.DjangoTask`."""
        return self.delay(*args)


inside = Inside(__name__, task_cls=CompanyTask)
app = inside.app


class Forced(Exception):
    """Makes a task retry."""


def body(key: str, gate: str | None = None) -> dict[str, Any]:
    inside.run(gate, key=key)
    lease = current_lease()
    assert lease is not None
    return {"token": lease.token, "ttl": lease.ttl_ms / 1000, "lock": lease.key}


# --- the decorator --------------------------------------------------------------------------------


@singleton_task
def bare(key: str, gate: str | None = None) -> dict[str, Any]:
    return body(key, gate)


@singleton_task(lock_ttl=7)
def shared(key: str, gate: str | None = None) -> dict[str, Any]:
    return body(key, gate)


@singleton_task(app=app)
def of_the_app(key: str, gate: str | None = None) -> dict[str, Any]:
    return body(key, gate)


@singleton_task(app=app, bind=True)
def bound(self: SingletonTask, key: str, gate: str | None = None) -> dict[str, Any]:
    about = body(key, gate)
    assert about["token"] == self.fencing_token
    return about


@singleton_task(app=app, bind=True)
def token_taking(
    self: SingletonTask, key: str, gate: str | None = None, *, fencing_token: int
) -> dict[str, Any]:
    about = body(key, gate)
    assert about["token"] == self.fencing_token == fencing_token
    return about


@singleton_task(
    app=app, bind=True, autoretry_for=(Forced,), retry_kwargs={"countdown": 0}, max_retries=2
)
def autoretrying(
    self: SingletonTask, key: str, gate: str | None = None, *, fencing_token: int
) -> dict[str, Any]:
    about = body(key, gate)
    assert about["token"] == fencing_token
    if self.request.retries < 2:
        raise Forced
    inside.wait_for_earlier_tries()
    return about


@singleton_task(app=app, bind=True, name="custom.name", time_limit=100)
def with_celery_options(self: SingletonTask, key: str, gate: str | None = None) -> dict[str, Any]:
    return body(key, gate)


# --- base= ----------------------------------------------------------------------------------------


@app.task(base=SingletonTask)
def by_base(key: str, gate: str | None = None) -> dict[str, Any]:
    return body(key, gate)


@shared_task(base=SingletonTask)
def shared_by_base(key: str, gate: str | None = None) -> dict[str, Any]:
    return body(key, gate)


class OurSingleton(SingletonTask):
    """A base of one's own below which tasks are singletons."""

    lock_ttl = 9


@app.task(base=OurSingleton)
def by_own_base(key: str, gate: str | None = None) -> dict[str, Any]:
    return body(key, gate)


class Audited(SingletonTask):
    """A base of one's own that does something around each run."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        inside.note("before")
        try:
            return super().__call__(*args, **kwargs)
        finally:
            inside.note("after")


@app.task(base=Audited)
def by_base_with_a_call(key: str, gate: str | None = None) -> dict[str, Any]:
    return body(key, gate)


class Plain(Task):  # type: ignore[type-arg]
    """A base that knows nothing of locks."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        inside.note("before")
        return super().__call__(*args, **kwargs)


@singleton_task(app=app, base=Plain)
def on_a_plain_base(key: str, gate: str | None = None) -> dict[str, Any]:
    return body(key, gate)


@singleton_task(base=Plain)
def shared_on_a_plain_base(key: str, gate: str | None = None) -> dict[str, Any]:
    return body(key, gate)


# --- classes --------------------------------------------------------------------------------------


class Named(SingletonTask):
    name = "forms.named"
    lock_ttl = 11

    def run(self, key: str, gate: str | None = None, *, fencing_token: int) -> dict[str, Any]:
        about = body(key, gate)
        assert about["token"] == self.fencing_token == fencing_token
        return about


class Unnamed(SingletonTask):
    def run(self, key: str, gate: str | None = None) -> dict[str, Any]:
        return body(key, gate)


class OnTheAppsTask(SingletonTask, app.Task):  # type: ignore[misc,name-defined]
    def run(self, key: str, gate: str | None = None) -> dict[str, Any]:
        return body(key, gate)


named: Any = app.register_task(Named())
unnamed: Any = app.register_task(Unnamed())
on_the_apps_task: Any = app.register_task(OnTheAppsTask())


# --- options from elsewhere -----------------------------------------------------------------------


def with_a_session(function: Callable[..., Any]) -> Callable[..., Any]:
    """Pass an argument that callers don't pass."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, session="a session", **kwargs)

    return wrapper


@singleton_task(app=app, bind=True)
@with_a_session
def decorated(
    self: SingletonTask, key: str, gate: str | None = None, *, session: str, fencing_token: int
) -> dict[str, Any]:
    about = body(key, gate)
    assert about["token"] == self.fencing_token == fencing_token
    assert session == "a session"
    return about


@singleton_task(app=app)
def annotated(key: str, gate: str | None = None) -> dict[str, Any]:
    return body(key, gate)
