"""Arguments of a call: as Celery sends them, and without the token, which the lock passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any

from celery_redlock.keys import TOKEN_PARAMETER, KeyRule, bind

_DUMP = "_dump_pydantic_arguments"
"""Where Celery, from 5.7 on, keeps what makes a call's pydantic models JSON."""


def hide_token(cls: type[Any], rule: KeyRule) -> None:
    """Have Celery check and send the calls of a task class without the token parameter."""
    check: Callable[..., None] = _without_token(rule)
    header = getattr(cls, "__header__", None)
    # By it Celery tells errbacks that it calls itself, with three arguments, from those that it
    # publishes: all those of bound tasks, whose header is a partial, and of task classes, which
    # have none.
    if header is None or isinstance(header, partial):
        check = partial(check)
    cls.__header__ = staticmethod(check)
    dump = getattr(cls, _DUMP, None)
    if dump is not None and not hasattr(dump, "__wrapped__"):  # a task is bound repeatedly
        setattr(cls, _DUMP, staticmethod(_with_token(dump)))


def inherits_check(cls: type[Any]) -> bool:
    """Return whether calls of a task class would be checked as those of a registered base are."""
    return hasattr(cls, "__header__") and "__header__" not in vars(cls)


def as_published(
    task: Any, args: Any, kwargs: Any, serializer: object
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a call's arguments as Celery sends them."""
    dump = getattr(task, _DUMP, None)
    if dump is not None and serializer != "pickle":
        args, kwargs = dump(args, kwargs)
    return tuple(args), dict(kwargs)


def as_sent(task: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return a call's arguments, pydantic models replaced by what Celery sends for them."""
    dump = getattr(task, _DUMP, None)
    if dump is not None:
        args, kwargs = dump(args, kwargs)
    # Celery before 5.7 leaves that to the caller, as every version does for unknown models.
    return (
        tuple(map(_dumped, args)),
        {name: _dumped(value) for name, value in kwargs.items()},
    )


def without_token(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments without the token."""
    return {name: value for name, value in kwargs.items() if name != TOKEN_PARAMETER}


def _dumped(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if callable(dump) else value


def _without_token(rule: KeyRule) -> Callable[..., None]:
    """Return a check of a call's arguments, without the token parameter."""

    def check_arguments(*args: Any, **kwargs: Any) -> None:
        bind(rule.signature, rule.decorators, args, kwargs)

    check_arguments.__signature__ = rule.signature  # type: ignore[attr-defined]
    return check_arguments


def _with_token(dump: Callable[..., Any]) -> Callable[..., Any]:
    """Return `dump` wrapped: the token parameter it wants is added, and dropped afterwards."""

    @wraps(dump)
    def dump_arguments(args: Any, kwargs: Any) -> Any:
        args, kwargs = dump(args, {**(kwargs or {}), TOKEN_PARAMETER: None})
        return args, without_token(kwargs)

    return dump_arguments
