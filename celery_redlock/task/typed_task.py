"""Celery's task, with the parameters and the result of its body for type checkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic

from celery import Task

if TYPE_CHECKING:
    import typing_extensions as typing
    from celery.canvas import Signature
    from celery.result import AsyncResult

    # With defaults, so that `SingletonTask` alone stands for a task of any signature.
    P = typing.ParamSpec("P", default=...)
    R = typing.TypeVar("R", covariant=True, default=Any)  # noqa: PLC0105  # short as P

    class TypedTask(Task, Generic[P, R]):  # type: ignore[type-arg]
        """Celery's task, with the parameters and the result of its body."""

        def delay(self, *args: P.args, **kwargs: P.kwargs) -> AsyncResult[R]:
            """Publish a call."""

        def run(self, *args: P.args, **kwargs: P.kwargs) -> R:
            """Run the body without the lock."""

        def s(self, *args: P.args, **kwargs: P.kwargs) -> Signature[R]:
            """Return the signature of a call."""

        def si(self, *args: P.args, **kwargs: P.kwargs) -> Signature[R]:
            """Return the immutable signature of a call."""
else:
    P = R = Any  # only a type checker looks

    class TypedTask:
        """Celery's task, which can be subscripted from Celery 5.7 on only."""

        def __class_getitem__(cls, _parameters: object) -> type[Task]:
            return Task
