"""Guard for PostgreSQL and SQLite, with SQLAlchemy 2."""

from __future__ import annotations

from typing import Any

from .fences import CLAIM, CREATE, HOLD
from .stale import StaleToken, valid_token

try:
    from sqlalchemy import text
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "celery_redlock.contrib.guards.sqlalchemy needs SQLAlchemy: pip install 'sqlalchemy>=2'"
    ) from error


def create_table(engine: Any) -> None:
    """Create the table of fences unless it is there.

    Args:
        engine: Engine of SQLAlchemy.
    """
    with engine.begin() as connection:
        connection.execute(text(CREATE))


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
        _run(connection, CLAIM, resource, token)


def hold_claim(connection: Any, resource: str, token: int | None) -> None:
    """Hold the claim until the end of the open transaction: call it there before the first write.

    Args:
        connection: Connection or session of SQLAlchemy, in a transaction.
        resource: As in `claim`.
        token: As in `claim`.

    Raises:
        StaleToken: A newer run has claimed it since: the transaction must be rolled back.
    """
    _run(connection, HOLD, resource, token)


def _run(connection: Any, statement: str, resource: str, token: int | None) -> None:
    given = {"resource": resource, "token": valid_token(resource, token)}
    if connection.execute(text(statement), given).rowcount != 1:
        raise StaleToken(resource, token)
