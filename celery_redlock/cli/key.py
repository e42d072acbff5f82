"""The key that a command is about: as it was typed, or that of a call of a task."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from .command_line import same_command_with_app
from .parameters import TEXT, Json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery_redlock.operate.target import Target


@dataclass(frozen=True, slots=True)
class GivenKey:
    """A key as it was typed, or the call whose key it is.

    Attributes:
        key: Key of a lock, or a Redis key of it; None: a call is given.
        task: Name of the task of the call.
        args: Its arguments.
        kwargs: Its arguments by name.
    """

    key: str | None
    task: str | None
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def on(self, target: Target) -> str:
        """Return the key of the lock.

        Raises:
            UsageError: A call is given without an app.
            ConfigurationError: The task is unknown, or can't be called like this.
        """
        if self.key is not None:
            start = f"{target.key_prefix}:{{"
            inside, end, _ = self.key.removeprefix(start).rpartition("}")
            return inside if end and self.key.startswith(start) else self.key
        if target.app is None:
            raise click.UsageError(f"--task needs an app: {same_command_with_app()}")
        from celery_redlock.operate.tasks import key_of_call

        return key_of_call(target.app, str(self.task), self.args, self.kwargs)


def key_on(target: Target, given: GivenKey | None) -> str:
    """Return the key of the lock that must be given.

    Raises:
        UsageError: Neither a key nor a call is given, or a call without an app.
        ConfigurationError: As with `GivenKey.on`.
    """
    if given is None:
        raise click.UsageError("Give a KEY, or --task with its arguments.")
    return given.on(target)


def _given(
    key: str | None, task: str | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> GivenKey | None:
    if key is not None and task is not None:
        raise click.UsageError("Give a KEY, or --task with its arguments, not both.")
    return None if key is None and task is None else GivenKey(key, task, args, kwargs)


def takes_key(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command a KEY, or ``--task`` with its arguments, as `given`; None: neither was typed.

    Raises:
        UsageError: Both were typed.
    """

    @click.argument("key", type=TEXT, required=False)
    @click.option("--task", help="Name of a task, instead of a key; with an app only.")
    @click.option("--args", type=Json(list), default="[]", help="Its arguments, as a JSON list.")
    @click.option("--kwargs", type=Json(dict), default="{}", help="The same by name, as JSON.")
    @wraps(command)
    def with_key(
        *others: Any,
        key: str | None,
        task: str | None,
        args: list[Any],
        kwargs: dict[str, Any],
        **options: Any,
    ) -> Any:
        return command(*others, given=_given(key, task, args, kwargs), **options)

    return with_key
