"""Claims in an SQL database: which are refused, and when they are not held."""

from __future__ import annotations

import pickle
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import sqlalchemy
from psycopg.rows import tuple_row

from celery_redlock.contrib.guards import StaleToken
from celery_redlock.contrib.guards import psycopg as psycopg_guard
from celery_redlock.contrib.guards import sqlalchemy as sqlalchemy_guard

OLD, NEW = 2**50, 2**50 + 1
NAME = "account:1"


class Psycopg:
    """A connection as psycopg's, to SQLite."""

    def __init__(self, path: Path, *, autocommit: bool) -> None:
        self._sqlite = sqlite3.connect(path, isolation_level=None)
        self._sqlite.create_function("pg_advisory_xact_lock", 1, lambda _: None)
        self.autocommit = autocommit

    @property
    def info(self) -> Any:
        return SimpleNamespace(transaction_status=2 if self._sqlite.in_transaction else 0)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._sqlite:
            self._sqlite.execute("BEGIN")
            yield

    def execute(self, statement: str, given: Any = ()) -> sqlite3.Cursor:
        if not (self.autocommit or self._sqlite.in_transaction):
            self._sqlite.execute("BEGIN")
        return self._sqlite.execute(statement, given)

    def close(self) -> None:
        self._sqlite.close()


class Cursor:
    """A cursor as psycopg's, with its own way of naming parameters."""

    def __init__(self, connection: Psycopg, row_factory: object) -> None:
        assert row_factory is tuple_row
        self._connection = connection

    def execute(self, statement: str, given: Any) -> sqlite3.Cursor:
        assert ":" not in statement
        return self._connection.execute(re.sub(r"%\((\w+)\)s", r":\1", statement), given)


class Database(NamedTuple):
    """A database with the tables of a guard.

    Attributes:
        guard: Module of the guard.
        place: What a claim is made with.
        begin: Begins a transaction, or what the driver calls one though it commits at once.
    """

    guard: Any
    place: Any
    begin: Callable[[bool], Any]


@pytest.fixture(params=["psycopg", "sqlalchemy"])
def database(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Database]:
    path = tmp_path / "bank.db"
    if request.param == "sqlalchemy":
        engine = sqlalchemy.create_engine(f"sqlite:///{path}")
        sqlalchemy_guard.create_table(engine)

        def begin(is_transaction: bool) -> Any:
            level = {} if is_transaction else {"isolation_level": "AUTOCOMMIT"}
            return engine.execution_options(**level).begin()

        yield Database(sqlalchemy_guard, engine, begin)
        engine.dispose()
        return
    monkeypatch.setattr(psycopg_guard, "Cursor", Cursor)
    opened: list[Psycopg] = []

    @contextmanager
    def connect(is_transaction: bool) -> Iterator[Psycopg]:
        opened.append(Psycopg(path, autocommit=not is_transaction))
        yield opened[-1]
        if is_transaction:
            opened[-1].execute("COMMIT")

    with connect(False) as connection:
        psycopg_guard.create_table(connection)
    yield Database(psycopg_guard, connection, connect)
    for one in opened:
        one.close()


def test_a_claim_is_refused_once_a_newer_run_has_claimed(database: Database) -> None:
    for token in (OLD, OLD, NEW):
        database.guard.claim(database.place, NAME, token)
    with pytest.raises(StaleToken) as caught:
        database.guard.claim(database.place, NAME, OLD)
    assert (caught.value.resource, caught.value.token) == (NAME, OLD)
    database.guard.claim(database.place, "account:2", OLD)


def test_only_the_latest_claim_is_held(database: Database) -> None:
    database.guard.claim(database.place, NAME, OLD)
    with database.begin(True) as connection:
        database.guard.hold_claim(connection, NAME, OLD)
    database.guard.claim(database.place, NAME, NEW)
    with database.begin(True) as connection:
        for token in (OLD, NEW + 1):
            with pytest.raises(StaleToken):
                database.guard.hold_claim(connection, NAME, token)
        database.guard.hold_claim(connection, NAME, NEW)


def test_a_claim_is_neither_made_nor_held_without_a_token(database: Database) -> None:
    with pytest.raises(StaleToken, match="'account:1' needs a fencing token, and this run has no"):
        database.guard.claim(database.place, NAME, None)
    with database.begin(True) as connection, pytest.raises(StaleToken, match="has none"):
        database.guard.hold_claim(connection, NAME, None)


def test_a_claim_is_not_held_where_each_statement_commits(database: Database) -> None:
    database.guard.claim(database.place, NAME, OLD)
    with (
        database.begin(False) as connection,
        pytest.raises(RuntimeError, match="no transaction is open; a claim is held until"),
    ):
        database.guard.hold_claim(connection, NAME, OLD)


def test_an_effect_is_done_by_the_first_run_that_commits(database: Database) -> None:
    with database.begin(True) as connection:
        effect = database.guard.once(connection, NAME, OLD)
        assert effect.is_new
        effect.store("printed")
    with database.begin(True) as connection:
        effect = database.guard.once(connection, NAME, NEW)
        assert (effect.is_new, effect.result) == (False, "printed")
    with (
        database.begin(False) as connection,
        pytest.raises(RuntimeError, match="no transaction is open; an effect"),
    ):
        database.guard.once(connection, NAME, NEW)


def test_tables_that_are_there_stay(database: Database) -> None:
    database.guard.claim(database.place, NAME, NEW)
    database.guard.create_table(database.place)
    with pytest.raises(StaleToken):
        database.guard.claim(database.place, NAME, OLD)


@pytest.mark.parametrize("database", ["psycopg"], indirect=True)
def test_a_claim_in_an_open_transaction_is_refused(database: Database) -> None:
    with database.begin(True) as connection:
        database.guard.claim(connection, NAME, OLD)
        connection.execute("SELECT 1")
        with pytest.raises(RuntimeError, match="so that the claim is committed"):
            database.guard.claim(connection, NAME, NEW)


@pytest.mark.parametrize("database", ["psycopg"], indirect=True)
def test_a_transaction_that_is_begun_despite_autocommit_is_one(database: Database) -> None:
    with database.place.transaction():
        assert database.guard.once(database.place, NAME, OLD).is_new


class Postgres:
    """What the guards ask an engine or a connection for PostgreSQL: it takes down statements."""

    dialect = SimpleNamespace(name="postgresql")

    def __init__(self) -> None:
        self.statements: list[str] = []

    @contextmanager
    def begin(self) -> Iterator[Postgres]:
        yield self

    transaction = begin

    def execute(self, statement: object) -> None:
        self.statements.append(str(statement).partition("(")[0].strip())


@pytest.mark.parametrize("guard", [psycopg_guard, sqlalchemy_guard])
def test_on_postgresql_tables_are_created_one_process_at_a_time(guard: Any) -> None:
    engine = Postgres()
    guard.create_table(engine)
    assert engine.statements == [
        "SELECT pg_advisory_xact_lock",
        "CREATE TABLE IF NOT EXISTS celery_redlock_fences",
        "CREATE TABLE IF NOT EXISTS celery_redlock_effects",
    ]


class Session:
    """A session of SQLAlchemy on PostgreSQL, as far as the guard asks it."""

    def __init__(self, *, autocommit: bool) -> None:
        # As psycopg's, whose isolation level is that of the server unless it is set.
        driver = SimpleNamespace(autocommit=autocommit, isolation_level=None)
        self._connection = SimpleNamespace(
            dialect=SimpleNamespace(name="postgresql"),
            connection=SimpleNamespace(dbapi_connection=driver),
            execute=lambda *_: SimpleNamespace(rowcount=1),
        )

    def connection(self) -> Any:
        return self._connection


def test_on_postgresql_the_driver_tells_whether_a_claim_is_held() -> None:
    sqlalchemy_guard.hold_claim(Session(autocommit=False), NAME, OLD)
    with pytest.raises(RuntimeError, match="no transaction is open"):
        sqlalchemy_guard.hold_claim(Session(autocommit=True), NAME, OLD)


@pytest.mark.parametrize("token", [OLD, None])
def test_the_error_of_a_stale_writer_survives_pickling(token: int | None) -> None:
    error = pickle.loads(pickle.dumps(StaleToken(resource=NAME, token=token)))  # noqa: S301
    assert (error.resource, error.token) == (NAME, token)
    assert error.args == (NAME, token)
