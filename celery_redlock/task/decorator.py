"""@singleton_task: a function made a singleton task."""

from __future__ import annotations

from collections.abc import Callable
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)

from celery import Celery, Task, shared_task

from celery_redlock.redlock.errors import ConfigurationError

from .apps_task import OnAppsTask
from .singleton import SingletonTask

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .typed_options import TypedOptions

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
_Self = TypeVar("_Self", bound="Task[Any, Any]")


# Bodies with the parameter that callers don't pass: no type can take a keyword off a signature, so
# their tasks keep the result only. pyright takes each of them for a `_Token`. mypy does not if the
# body requires arguments, hence the others.


class _Token(Protocol[R_co]):
    def __call__(self, *args: Any, fencing_token: Any, **kwargs: Any) -> R_co: ...


class _Token0(Protocol[R_co]):
    def __call__(self, *, fencing_token: Any) -> R_co: ...


class _Token1(Protocol[R_co]):
    def __call__(self, a: Any, /, *, fencing_token: Any) -> R_co: ...


class _Token2(Protocol[R_co]):
    def __call__(self, a: Any, b: Any, /, *, fencing_token: Any) -> R_co: ...


class _Token3(Protocol[R_co]):
    def __call__(self, a: Any, b: Any, c: Any, /, *, fencing_token: Any) -> R_co: ...


class _Token4(Protocol[R_co]):
    def __call__(self, a: Any, b: Any, c: Any, d: Any, /, *, fencing_token: Any) -> R_co: ...


class _Decorator(Protocol):
    """Decorator of a body without `bind`."""

    @overload
    def __call__(self, body: _Token[R], /) -> SingletonTask[..., R]: ...
    @overload
    def __call__(self, body: _Token0[R], /) -> SingletonTask[..., R]: ...
    @overload
    def __call__(self, body: _Token1[R], /) -> SingletonTask[..., R]: ...
    @overload
    def __call__(self, body: _Token2[R], /) -> SingletonTask[..., R]: ...
    @overload
    def __call__(self, body: _Token3[R], /) -> SingletonTask[..., R]: ...
    @overload
    def __call__(self, body: _Token4[R], /) -> SingletonTask[..., R]: ...
    @overload
    def __call__(self, body: Callable[P, R], /) -> SingletonTask[P, R]: ...


class _BindingDecorator(Protocol):
    """Decorator of a body with `bind`: its first parameter is the task."""

    @overload
    def __call__(self, body: _Token[R], /) -> SingletonTask[..., R]: ...
    @overload
    def __call__(self, body: _Token1[R], /) -> SingletonTask[..., R]: ...
    @overload
    def __call__(self, body: _Token2[R], /) -> SingletonTask[..., R]: ...
    @overload
    def __call__(self, body: _Token3[R], /) -> SingletonTask[..., R]: ...
    @overload
    def __call__(self, body: _Token4[R], /) -> SingletonTask[..., R]: ...
    @overload
    def __call__(self, body: Callable[Concatenate[_Self, P], R], /) -> SingletonTask[P, R]: ...


@overload
def singleton_task(body: _Token[R], /) -> SingletonTask[..., R]: ...
@overload
def singleton_task(body: _Token0[R], /) -> SingletonTask[..., R]: ...
@overload
def singleton_task(body: _Token1[R], /) -> SingletonTask[..., R]: ...
@overload
def singleton_task(body: _Token2[R], /) -> SingletonTask[..., R]: ...
@overload
def singleton_task(body: _Token3[R], /) -> SingletonTask[..., R]: ...
@overload
def singleton_task(body: _Token4[R], /) -> SingletonTask[..., R]: ...
@overload
def singleton_task(body: Callable[P, R], /) -> SingletonTask[P, R]: ...
@overload
def singleton_task(
    body: None = None,
    /,
    *,
    app: Celery | None = None,
    base: type[Any] | None = None,
    bind: Literal[True],
    **options: Unpack[TypedOptions],
) -> _BindingDecorator: ...
@overload
def singleton_task(
    body: None = None,
    /,
    *,
    app: Celery | None = None,
    base: type[Any] | None = None,
    bind: Literal[False] = False,
    **options: Unpack[TypedOptions],
) -> _Decorator: ...
def singleton_task(
    body: Callable[..., Any] | None = None,
    /,
    *,
    app: Celery | None = None,
    base: type[Any] | None = None,
    **options: Any,
) -> Any:
    """Make a function a task of which one execution runs at a time for each lock key.

    Like `celery.shared_task`, or like ``app.task`` when `app` is given. All their options pass
    through; options that start with ``lock_`` configure the lock.

    Args:
        body: The function, when the decorator is used without parentheses.
        app: The app to make it a task of; None for every app, as a shared task.
        base: A task class to build on, besides the app's own.
        **options: Options of Celery and of the lock.

    Raises:
        ConfigurationError: An option is unknown or wrong, when the task is bound to its app.
    """
    _refuse_wrong_arguments(body, app, base)
    if base is None:
        base = SingletonTask
    elif not issubclass(base, SingletonTask):
        base = OnAppsTask(f"Singleton{base.__name__}", (SingletonTask, base), {})
    make: Any = app.task if app else shared_task
    decorate = make(base=base, **options)
    return decorate(body) if body else decorate


def _refuse_wrong_arguments(body: object, app: object, base: object) -> None:
    """Refuse arguments that Celery would fail on later, when the app is finalized.

    Raises:
        ConfigurationError: The message names the argument and the remedy.
    """
    if isinstance(body, Celery):
        problem = "got an app for the function; write @singleton_task(app=app)"
    elif body is not None and not callable(body):
        problem = f"got {body!r} for the function; give options by name, as lock_key=[]"
    elif app is not None and not isinstance(app, Celery):
        problem = (
            f"app={app!r} is not a Celery app; give the app itself, or omit it for a shared task"
        )
    elif base is not None and not isinstance(base, type):
        problem = f"base={base!r} is not a class; give a task class"
    else:
        return
    raise ConfigurationError(f"singleton_task {problem}")
