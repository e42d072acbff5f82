"""Guard for PostgreSQL and SQLite, with SQLAlchemy 2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import effects, fences
from .stale import StaleToken, valid_token

try:
    from sqlalchemy import Connection, text
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "celery_redlock.contrib.guards.sqlalchemy needs SQLAlchemy: pip install 'sqlalchemy>=2'"
    ) from error


def create_table(engine: Any) -> None:
    """Create the tables of fences and of effects; one that is there stays.

    Several processes may call it at the same time, as workers do that begin.

    Args:
        engine: Engine of SQLAlchemy.
    """
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text(fences.ONE_AT_A_TIME))
        connection.execute(text(fences.CREATE))
        connection.execute(text(effects.CREATE))


def claim(engine: Any, resource: str, token: int | None) -> None:
    """Claim `resource` for this run, in a transaction of its own: read only after that.

    Args:
        engine: Engine of SQLAlchemy.
        resource: Name of what older runs may not write any more, at most 255 characters.
        token: Fencing token of the run.

    Raises:
        StaleToken: A newer run has claimed it, or `token` is None.
    """
    with engine.begin() as connection:
        _run(connection, fences.CLAIM, resource, token)


def hold_claim(connection: Any, resource: str, token: int | None) -> None:
    """Hold the claim until the end of the open transaction: call it there before the first write.

    Args:
        connection: Connection or session of SQLAlchemy, in a transaction.
        resource: As in `claim`.
        token: As in `claim`.

    Raises:
        StaleToken: A newer run has claimed it since: the transaction must be rolled back.
        RuntimeError: No transaction is open, since the isolation level is AUTOCOMMIT.
    """
    _run(_in_transaction(connection, fences.NO_TRANSACTION), fences.HOLD, resource, token)


def once(connection: Any, name: str, token: int | None) -> effects.Effect:
    """Return the effect `name`: call it in the transaction of the effect's writes, before them.

    If another transaction is doing the same effect, this waits for its end.

    Args:
        connection: Connection or session of SQLAlchemy, in a transaction.
        name: Name of the effect, at most 255 characters.
        token: Fencing token of the run.

    Returns:
        An effect that is new for one run: the first whose transaction is committed. Later runs get
        its result.

    Raises:
        StaleToken: A newer run has done the effect, or `token` is None.
        RuntimeError: No transaction is open, since the isolation level is AUTOCOMMIT; or the row of
            the effect was deleted just now.
    """

    def first_row(statement: str, given: dict[str, Any]) -> Sequence[Any] | None:
        one = _in_transaction(connection, effects.NO_TRANSACTION)
        return one.execute(text(statement), given).first()

    return effects.once_with(first_row, name, token)


def _in_transaction(connection: Any, reason: str) -> Connection:
    """Return the connection, which may be that of a session; raise if no transaction is open."""
    one: Connection = connection if isinstance(connection, Connection) else connection.connection()
    if _commits_each_statement(one):
        raise RuntimeError(reason)
    return one


def _commits_each_statement(connection: Connection) -> bool:
    driver: Any = connection.connection.dbapi_connection
    if connection.dialect.name == "sqlite":
        # The driver begins no transaction then; the app may have begun one.
        commits = driver.isolation_level is None or getattr(driver, "autocommit", False) is True
        return commits and not driver.in_transaction
    return bool(driver.autocommit)


def _run(connection: Any, statement: str, resource: str, token: int | None) -> None:
    given = {"resource": resource, "token": valid_token(resource, token)}
    if connection.execute(text(statement), given).rowcount != 1:
        raise StaleToken(resource, token)
