"""The table of fences in an SQL database: the highest token that has claimed each resource."""

from __future__ import annotations

TABLE = "celery_redlock_fences"
CREATE = (
    f"CREATE TABLE IF NOT EXISTS {TABLE} "
    "(resource VARCHAR(255) PRIMARY KEY, token BIGINT NOT NULL)"
)  # fmt: skip
CLAIM = (
    f"INSERT INTO {TABLE} (resource, token) VALUES (:resource, :token) "  # noqa: S608  # a constant
    "ON CONFLICT (resource) DO UPDATE SET token = excluded.token "
    f"WHERE {TABLE}.token <= excluded.token"
)
"""Changes one row, or none if a newer run has claimed the resource."""
HOLD = f"UPDATE {TABLE} SET token = token WHERE resource = :resource AND token = :token"  # noqa: S608
"""Changes one row if the claim is still the latest, and locks it: the next claim waits for the end
of this transaction, and reads what it has written."""

ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(7238142096253)"
"""In PostgreSQL, before CREATE: of two sessions that create a table at the same time, one fails,
despite IF NOT EXISTS."""
NO_TRANSACTION = "no transaction is open; a claim is held until the end of one"
