"""A task's lock configuration: everything about its locking that is known before a call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import MethodType
from typing import Any, NamedTuple

from celery import Celery

from celery_redlock.keys import TOKEN_PARAMETER, KeyRule, key_rule
from celery_redlock.redlock.errors import ConfigurationError

from .borrowed import BORROWED, CHECKED, is_borrowed
from .callers import refuse_unlocked
from .declared_options import declared_options, lock_options
from .foreign_options import class_behind, classes_in_use
from .options import LockOptions
from .settings import settings_from

_refuses_later = ContextVar("refuses_later", default=False)


class TaskLockConfig(NamedTuple):
    """Lock configuration of one task.

    Attributes:
        options: The task's lock options.
        rule: The rule that derives a call's lock key.
        max_deliveries: How often a message may be delivered again; 0: any number of times.
    """

    options: LockOptions
    rule: KeyRule
    max_deliveries: int


def task_lock_config(task: Any, app: Celery) -> TaskLockConfig:
    """Return the lock configuration of a task, or of a task class.

    Raises:
        ConfigurationError: The message names the task, the option or setting, and the remedy.
    """
    # A shared task is bound to every app in the process, Celery's own default one included.
    settings = settings_from(app.conf, needs_nodes=False)
    # Celery gives the name to the instance when the class has none; this is how it makes it.
    cls: type[Any] = task if isinstance(task, type) else type(task)
    name = task.name or app.gen_task_name(cls.__name__, cls.__module__)
    if problem := class_behind(cls):
        raise ConfigurationError(f"task {name!r} {problem}")
    options = lock_options(
        name, declared_options(task), settings.option_defaults, max_ttl=settings.max_ttl
    )
    body = body_of(cls)
    refuse_unlocked(name, cls, body)
    rule = key_rule(name, body, options.key)
    if rule.takes_token and (others := classes_in_use(cls)):
        other = others[0].__name__
        raise ConfigurationError(
            f"task {name!r} takes {TOKEN_PARAMETER}, which {other} would expect of callers, or "
            f"make part of its key; read self.{TOKEN_PARAMETER}, with bind=True, as long as "
            f"{other} is a base"
        )
    return TaskLockConfig(options, rule, settings.max_deliveries)


@contextmanager
def refusing_later() -> Iterator[None]:
    """Let tasks be bound whose options are refused: they are refused when they are called.

    Otherwise the first of them keeps all tasks after it from being bound.
    """
    before = _refuses_later.set(True)
    try:
        yield
    finally:
        _refuses_later.reset(before)


def checked_at_binding(task: type[Any], app: Celery) -> TaskLockConfig | None:
    """Return the configuration of a task class that is bound; None: it is refused later.

    Another app's task is refused when it is called: most apps that have it never call it.

    Raises:
        ConfigurationError: As `task_lock_config`, except for a borrowed task, and in
            `refusing_later`.
    """
    if BORROWED not in vars(task):
        setattr(task, BORROWED, is_borrowed(task, app))
    try:
        config = task_lock_config(task, app)
    except ConfigurationError:
        if not (_refuses_later.get() or getattr(task, BORROWED)):
            raise
        return None
    setattr(task, CHECKED, True)
    return config


def is_singleton(task: object) -> bool:
    """Return whether a task is a singleton task, by its class: most callers can't import that."""
    cls = type(task)
    return hasattr(cls, TOKEN_PARAMETER) and not is_celerys_own(cls)


def is_celerys_own(task: type[Any]) -> bool:
    """Return whether a task class is that of a task of Celery's own, such as `celery.chord_unlock`.

    Those have the app's task class as their base. They are no singletons, if that is one.
    """
    return task.__module__.partition(".")[0] == "celery"


def body_of(task: type[Any]) -> Callable[..., Any]:
    """Return a task class's body as a caller sees it: without `self`."""
    if isinstance(inspect.getattr_static(task, "run"), staticmethod | classmethod):
        body: Callable[..., Any] = task.run
        return body
    return MethodType(task.run, task)
