"""Guard for PostgreSQL, with psycopg 3."""

from __future__ import annotations

import re
from typing import Any

from .fences import CLAIM, CREATE, HOLD
from .stale import StaleToken, valid_token

_NAMED = re.compile(r":(\w+)")


def create_table(connection: Any) -> None:
    """Create the table of fences unless it is there.

    Args:
        connection: Connection of psycopg.
    """
    with connection.transaction():
        connection.execute(CREATE)


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
        _run(connection, CLAIM, resource, token)


def hold_claim(connection: Any, resource: str, token: int | None) -> None:
    """Hold the claim until the end of the open transaction: call it there before the first write.

    Args:
        connection: Connection of psycopg, in a transaction.
        resource: As in `claim`.
        token: As in `claim`.

    Raises:
        StaleToken: A newer run has claimed it since: the transaction must be rolled back.
    """
    _run(connection, HOLD, resource, token)


def _run(connection: Any, statement: str, resource: str, token: int | None) -> None:
    given = {"resource": resource, "token": valid_token(resource, token)}
    if connection.execute(_NAMED.sub(r"%(\1)s", statement), given).rowcount != 1:
        raise StaleToken(resource, token)
