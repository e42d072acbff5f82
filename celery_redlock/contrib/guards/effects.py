"""The table of effects in an SQL database: which are done, and the result of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .stale import StaleToken, valid_token

TABLE = "celery_redlock_effects"
CREATE = (
    f"CREATE TABLE IF NOT EXISTS {TABLE} "
    "(name VARCHAR(255) PRIMARY KEY, token BIGINT NOT NULL, result TEXT, "
    "done_at TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT CURRENT_TIMESTAMP)"
)  # fmt: skip
ADD = (
    f"INSERT INTO {TABLE} (name, token) VALUES (:name, :token) "  # noqa: S608  # a constant
    "ON CONFLICT (name) DO NOTHING RETURNING token"
)
"""Returns a row unless the effect is there. If another transaction is adding it, this waits for the
end of that one. (A driver's count of changed rows would not do: in a pipeline it is not known.)"""
READ = f"SELECT token, result FROM {TABLE} WHERE name = :name"  # noqa: S608
STORE = (
    f"UPDATE {TABLE} SET result = :result "  # noqa: S608
    "WHERE name = :name AND token = :token RETURNING token"
)
"""Returns a row if this run has added the effect."""

NO_TRANSACTION = "no transaction is open; an effect, its writes and its result are committed in one"

_LONGEST_RESULT = 65_536

FirstRow = Callable[[str, dict[str, Any]], "Sequence[Any] | None"]
"""Executes a statement with parameters, and returns its first row; None: it has none."""


@dataclass(slots=True)
class Effect:
    """An effect, as a run finds it in its transaction.

    Attributes:
        name: Name of the effect.
        is_new: No run has done the effect: this one does it now, in the same transaction.
        result: Result that the run stored which did the effect; None: it stored none.
    """

    name: str
    is_new: bool
    result: Any
    _write: Callable[[str], bool] = field(repr=False)

    def store(self, result: Any) -> None:
        """Store the result that later runs get, in the same transaction.

        Args:
            result: Value that JSON can represent, in at most 65,536 characters. The attribute
                `result` is what JSON makes of it: a list in place of a tuple.

        Raises:
            ValueError: JSON can't represent the value, or it is longer. Nothing was stored.
            RuntimeError: The effect is not new, no transaction is open, or that of the effect was
                rolled back. Nothing was stored.
        """
        if not self.is_new:
            raise RuntimeError(f"{self.name!r} is done: its result does not change any more")
        encoded = _encoded(self.name, result)
        if not self._write(encoded):
            raise RuntimeError(f"{self.name!r} is not done: its transaction was rolled back")
        self.result = decoded(encoded)


def once_with(first_row: FirstRow, name: str, token: int | None) -> Effect:
    """Return the effect; it is new for the first run whose transaction commits.

    Args:
        first_row: Executes a statement in the run's transaction.
        name: Name of the effect, at most 255 characters.
        token: Fencing token of the run.

    Raises:
        StaleToken: A newer run has done the effect, or `token` is None.
        RuntimeError: The row of the effect was deleted just now, between two statements.
    """
    given = {"name": name, "token": valid_token(name, token)}

    def write(result: str) -> bool:
        return first_row(STORE, {**given, "result": result}) is not None

    if first_row(ADD, given):
        return Effect(name, is_new=True, result=None, _write=write)
    row = first_row(READ, given)
    if row is None:
        raise RuntimeError(f"{name!r} was deleted just now: run the transaction again")
    if row[0] > given["token"]:
        raise StaleToken(name, token)
    return Effect(name, is_new=False, result=decoded(row[1]), _write=write)


def decoded(stored: str | None) -> Any:
    """Return the result that is stored as JSON; None: none is."""
    return None if stored is None else json.loads(stored)


def _encoded(name: str, result: Any) -> str:
    try:
        encoded = json.dumps(result, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the result of {name!r} must be JSON: {error}") from error
    if len(encoded) > _LONGEST_RESULT:
        raise ValueError(
            f"the result of {name!r} must be at most {_LONGEST_RESULT:,} characters of JSON, "
            f"got {len(encoded):,}: store it in a table of yours, and its key here"
        )
    return encoded
