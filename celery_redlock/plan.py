"""What is known of a task's locking before it is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any

from celery import Celery

from .keys import KeyRule, accepts_token, key_rule
from .options import LockOptions, declared_options, lock_options
from .settings import settings_from


@dataclass(frozen=True, slots=True)
class Plan:
    """How one task is locked.

    Attributes:
        options: Its options.
        rule: How a call's lock is named.
        takes_token: Whether its body has a parameter for the fencing token.
    """

    options: LockOptions
    rule: KeyRule
    takes_token: bool


def new_plan(task: Any, app: Celery) -> Plan:
    """Return the plan of a task, or of a task class.

    Raises:
        ConfigurationError: It names the task, the option or setting, its value and the remedy.
    """
    # A shared task is bound to every app in the process, Celery's own default one included.
    settings = settings_from(app.conf, needs_nodes=False)
    # Celery gives the name to the instance when the class has none; this is how it makes it.
    cls: type[Any] = task if isinstance(task, type) else type(task)
    name = task.name or app.gen_task_name(cls.__name__, cls.__module__)
    options = lock_options(
        name, declared_options(task), settings.option_defaults, max_ttl=settings.max_ttl
    )
    body = body_of(cls)
    return Plan(options, key_rule(name, body, options.key), accepts_token(body))


def body_of(task: type[Any]) -> Callable[..., Any]:
    """Return a task class's body as a caller sees it: without `self`."""
    if isinstance(inspect.getattr_static(task, "run"), staticmethod):
        body: Callable[..., Any] = task.run
        return body
    return MethodType(task.run, task)
