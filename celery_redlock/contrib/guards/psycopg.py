"""Guard for PostgreSQL, with psycopg 3."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from . import effects, fences
from .stale import StaleToken, valid_token

try:
    from psycopg import Cursor
    from psycopg.rows import tuple_row
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "celery_redlock.contrib.guards.psycopg needs psycopg 3: pip install psycopg"
    ) from error

_NAMED = re.compile(r":(\w+)")


def create_table(connection: Any) -> None:
    """Create the tables of fences and of effects; one that is there stays.

    Several processes may call it at the same time, as workers do that begin.

    Args:
        connection: Connection of psycopg.
    """
    with connection.transaction():
        connection.execute(fences.ONE_AT_A_TIME)
        connection.execute(fences.CREATE)
        connection.execute(effects.CREATE)


def claim(connection: Any, resource: str, token: int | None) -> None:
    """Claim `resource` for this run, and commit: read only after that.

    Args:
        connection: Connection of psycopg, without an open transaction.
        resource: Name of what older runs may not write any more, at most 255 characters.
        token: Fencing token of the run.

    Raises:
        StaleToken: A newer run has claimed it, or `token` is None.
        RuntimeError: A transaction is open, so that the claim would not be committed.
    """
    if connection.info.transaction_status != 0:
        raise RuntimeError("a transaction is open; claim before it, so that the claim is committed")
    with connection.transaction():
        _run(connection, fences.CLAIM, resource, token)


def hold_claim(connection: Any, resource: str, token: int | None) -> None:
    """Hold the claim until the end of the open transaction: call it there before the first write.

    Args:
        connection: Connection of psycopg, in a transaction.
        resource: As in `claim`.
        token: As in `claim`.

    Raises:
        StaleToken: A newer run has claimed it since: the transaction must be rolled back.
        RuntimeError: No transaction is open, so that the claim would not be held.
    """
    _refuse_autocommit(connection, fences.NO_TRANSACTION)
    _run(connection, fences.HOLD, resource, token)


def once(connection: Any, name: str, token: int | None) -> effects.Effect:
    """Return the effect `name`: call it in the transaction of the effect's writes, before them.

    If another transaction is doing the same effect, this waits for its end.

    Args:
        connection: Connection of psycopg, in a transaction.
        name: Name of the effect, at most 255 characters.
        token: Fencing token of the run.

    Returns:
        An effect that is new for one run: the first whose transaction is committed. Later runs get
        its result.

    Raises:
        StaleToken: A newer run has done the effect, or `token` is None.
        RuntimeError: No transaction is open, or the row of the effect was deleted just now.
    """

    def first_row(statement: str, given: dict[str, Any]) -> Sequence[Any] | None:
        _refuse_autocommit(connection, effects.NO_TRANSACTION)
        return _first_row(connection, statement, given)

    return effects.once_with(first_row, name, token)


def _refuse_autocommit(connection: Any, reason: str) -> None:
    if connection.autocommit and connection.info.transaction_status == 0:
        raise RuntimeError(reason)


def _run(connection: Any, statement: str, resource: str, token: int | None) -> None:
    given = {"resource": resource, "token": valid_token(resource, token)}
    # In a pipeline the count of changed rows is not known.
    if _first_row(connection, f"{statement} RETURNING token", given) is None:
        raise StaleToken(resource, token)


def _first_row(connection: Any, statement: str, given: dict[str, Any]) -> Sequence[Any] | None:
    # Whatever cursors and rows the app has chosen for its own statements.
    cursor: Cursor[Any] = Cursor(connection, row_factory=tuple_row)
    row: Sequence[Any] | None = cursor.execute(_NAMED.sub(r"%(\1)s", statement), given).fetchone()
    return row
