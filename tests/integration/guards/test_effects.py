"""Effects that are done once, on real databases, by runs that freeze, fail or come at once."""

from __future__ import annotations

import os
import random
import select
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Barrier
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg.rows import dict_row

from celery_redlock.contrib.guards import StaleToken, effects, fences
from celery_redlock.contrib.guards import psycopg as guard
from tests.support.eventually import eventually
from tests.support.processes.postgres import Postgres
from tests.support.root import ROOT
from tools.docs.markdown import blocks

PROGRAM = ROOT / "tests/integration/apps/effects_once.py"
OLD, NEW = 2**50, 2**50 + 1
NAME = "letter:1"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with Postgres() as server:
        yield f"postgresql://redlock@127.0.0.1:{server.port}/postgres"


@pytest.fixture
def postgres(server: str) -> Iterator[str]:
    """The server, without tables."""
    yield server
    with psycopg.connect(server) as connection:
        for table in ("letters", "post_sent", fences.TABLE, effects.TABLE):
            connection.execute(f"DROP TABLE IF EXISTS {table}")


@pytest.fixture
def letters(postgres: str) -> str:
    """The same, with the tables of the tests in this process."""
    with psycopg.connect(postgres) as connection:
        guard.create_table(connection)
        connection.execute("CREATE TABLE letters (name TEXT, token BIGINT)")
    return postgres


# --- frozen processes -----------------------------------------------------------------------------


class Database(NamedTuple):
    """A guard on a database.

    Attributes:
        guard: Name of the guard.
        url: Address of the database, as the program takes it.
        sent: Returns the tokens of the letters that were sent.
        waiting: Returns how many transactions wait for another; None: the database does not say.
    """

    guard: str
    url: str
    sent: Callable[[], list[int]]
    waiting: Callable[[], int] | None


def on_postgres(guard: str, url: str, opened: ExitStack) -> Database:
    watch = opened.enter_context(psycopg.connect(url, autocommit=True))

    def column(query: str) -> list[int]:
        return [int(row[0]) for row in watch.execute(query.encode())]

    return Database(
        guard,
        url.replace("postgresql:", "postgresql+psycopg:") if guard == "sqlalchemy" else url,
        lambda: column("SELECT token FROM letters"),
        lambda: column("SELECT count(*) FROM pg_locks WHERE NOT granted")[0],
    )


def on_sqlite(guard: str, path: str) -> Database:
    def sent() -> list[int]:
        connection = sqlite3.connect(path)
        try:
            return [token for (token,) in connection.execute("SELECT token FROM letters")]
        finally:
            connection.close()

    return Database(guard, f"sqlite:///{path}?timeout=300", sent, None)


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    """What is closed at the end of the test."""
    with ExitStack() as opened:
        yield opened


@pytest.fixture(
    params=[
        "psycopg",
        *(
            pytest.param(other, marks=pytest.mark.long)
            for other in ("sqlalchemy", "django", "sqlalchemy on SQLite", "django on SQLite")
        ),
    ]
)
def database(request: pytest.FixtureRequest, tmp_path: Any, opened: ExitStack) -> Database:
    name, _, is_elsewhere = request.param.partition(" on ")
    if is_elsewhere:
        return on_sqlite(name, f"{tmp_path}/post.db")
    return on_postgres(name, request.getfixturevalue("postgres"), opened)


class Runs:
    """A process that runs once for each token, and can be frozen.

    Args:
        database: Where it writes.
        opened: Ends the process, however the test ends.
        *steps: What it does: "create" the tables, ask "alone" without a transaction, ask after a
            "repeatable" read, or run with a token.
    """

    def __init__(self, database: Database, opened: ExitStack, *steps: int | str | None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), database.guard, database.url, *map(str, steps)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
        )  # fmt: skip
        assert self._process.stdout
        self._said = self._process.stdout
        opened.enter_context(self._process)
        opened.callback(self._process.kill)

    def says(self) -> str:
        """Return the next line; '' after the last one."""
        line = bytearray()
        while not line.endswith(b"\n") and (more := self._said.read(1)):
            line += more
        return line.decode().strip()

    def is_silent(self) -> bool:
        """Return whether the process has not said more, and has not ended."""
        return not select.select([self._said], [], [], 0)[0]

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def wake(self) -> None:
        """Let the process go on, and commit."""
        assert self._process.stdin
        self._process.stdin.write(b"\n")
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def test_a_run_that_freezes_before_its_commit_has_the_only_effect(
    database: Database, opened: ExitStack
) -> None:
    frozen = Runs(database, opened, "create", "alone", OLD)
    assert frozen.says() == effects.NO_TRANSACTION
    assert [frozen.says(), frozen.says()] == ["asks", "wrote"]
    frozen.freeze()
    newer = Runs(database, opened, NEW, OLD - 1, None)
    assert newer.says() == "asks"
    if database.waiting:
        eventually(lambda: database.waiting() == 1, "the newer run waits")  # type: ignore[misc]
    assert newer.is_silent()
    assert database.sent() == []
    frozen.wake()
    assert frozen.says() == f'new {{"token": {OLD}}}'
    assert newer.says() == f'later {{"token": {OLD}}}'
    assert [newer.says(), newer.says()] == ["asks", "stale"]
    assert [newer.says(), newer.says()] == ["asks", "stale"]
    assert database.sent() == [OLD]


def test_a_run_that_dies_before_its_commit_leaves_it_to_the_next(
    database: Database, opened: ExitStack
) -> None:
    frozen = Runs(database, opened, "create", OLD)
    assert [frozen.says(), frozen.says()] == ["asks", "wrote"]
    frozen.freeze()
    newer = Runs(database, opened, NEW, OLD)
    assert newer.says() == "asks"
    frozen.kill()
    assert newer.says() == "wrote"
    newer.wake()
    assert newer.says() == f'new {{"token": {NEW}}}'
    assert [newer.says(), newer.says()] == ["asks", "stale"]
    assert database.sent() == [NEW]


@pytest.mark.parametrize(
    ("guard", "error"),
    [
        ("psycopg", "SerializationFailure"),
        pytest.param("sqlalchemy", "OperationalError", marks=pytest.mark.long),
        pytest.param("django", "IntegrityError", marks=pytest.mark.long),
    ],
)
def test_an_older_snapshot_is_the_databases_error(
    guard: str, error: str, postgres: str, opened: ExitStack
) -> None:
    database = on_postgres(guard, postgres, opened)
    late = Runs(database, opened, "create", "repeatable", NEW)
    assert late.says() == "reads"
    first = Runs(database, opened, OLD)
    assert [first.says(), first.says()] == ["asks", "wrote"]
    first.wake()
    assert first.says() == f'new {{"token": {OLD}}}'
    late.wake()
    assert late.says() == error
    assert [late.says(), late.says()] == ["asks", f'later {{"token": {OLD}}}']


# --- on PostgreSQL --------------------------------------------------------------------------------


def send(url: str, name: str, token: int, *, commits: bool = True) -> Any:
    """Send a letter once; return the effect's result. None: it was rolled back."""
    with psycopg.connect(url) as connection:
        effect = guard.once(connection, name, token)
        if effect.is_new:
            connection.execute("INSERT INTO letters VALUES (%s, %s)", [name, token])
            effect.store(token)
            if not commits:
                connection.rollback()
                return None
        return effect.result


def sent(url: str) -> list[tuple[str, int]]:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT name, token FROM letters ORDER BY name").fetchall()


def test_of_many_runs_at_once_one_has_the_effect(letters: str) -> None:
    names = [f"letter:{number}" for number in range(20)]
    runs, chance = 6, random.Random(1)
    fails = {(name, token): chance.random() < 0.5 for name in names for token in range(runs)}
    start = Barrier(runs)

    def sends(token: int) -> list[Any]:
        results: list[Any] = []
        for name in names:
            start.wait()
            try:
                results.append(send(letters, name, token, commits=not fails[name, token]))
            except StaleToken:
                results.append(None)
        return results

    with ThreadPoolExecutor(runs) as pool:
        results = list(zip(*pool.map(sends, range(runs)), strict=True))
    done = dict(sent(letters))
    assert len(done) == len(sent(letters)), "no letter was sent twice"
    for name, seen in zip(names, results, strict=True):
        assert set(seen) - {None} == ({done[name]} if name in done else set())
    assert set(done) >= {name for name in names if not all(fails[name, t] for t in range(runs))}


def test_the_next_run_has_the_effect_once_the_server_ends_a_frozen_one(letters: str) -> None:
    with psycopg.connect(letters) as frozen:
        assert guard.once(frozen, NAME, OLD).is_new
        frozen.execute("INSERT INTO letters VALUES (%s, %s)", [NAME, OLD])
        frozen.execute("SET LOCAL idle_in_transaction_session_timeout = '1ms'")
        assert send(letters, NAME, NEW) == NEW
        with pytest.raises(psycopg.Error):
            frozen.commit()
        frozen.close()
    assert sent(letters) == [(NAME, NEW)]


@pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE"])
def test_an_older_snapshot_is_a_serialization_failure(letters: str, level: str) -> None:
    with psycopg.connect(letters) as connection:
        connection.isolation_level = psycopg.IsolationLevel[level]
        connection.execute("SELECT * FROM letters")
        send(letters, NAME, OLD)
        with pytest.raises(psycopg.errors.SerializationFailure):
            guard.once(connection, NAME, NEW)
        connection.rollback()
        assert guard.once(connection, NAME, NEW).result == OLD


def test_an_effect_without_a_transaction_is_refused(letters: str) -> None:
    with psycopg.connect(letters, autocommit=True) as connection:
        with pytest.raises(RuntimeError, match="no transaction is open"):
            guard.once(connection, NAME, OLD)
        with connection.transaction():
            effect = guard.once(connection, NAME, OLD)
            assert effect.is_new
        with pytest.raises(RuntimeError, match="no transaction is open"):
            effect.store("late")
        with connection.transaction():
            assert guard.once(connection, NAME, NEW).result is None


def test_an_effect_does_not_depend_on_how_rows_are_returned(letters: str) -> None:
    send(letters, NAME, OLD)
    with psycopg.connect(letters, row_factory=dict_row) as connection:
        assert guard.once(connection, NAME, NEW).result == OLD
        assert guard.once(connection, "letter:2", NEW).is_new


def test_an_effect_in_a_pipeline_is_new_once(letters: str) -> None:
    with psycopg.connect(letters) as connection, connection.pipeline():
        assert guard.once(connection, NAME, OLD).is_new
        assert not guard.once(connection, NAME, OLD).is_new


def test_a_run_can_hold_its_claim_and_have_an_effect_in_one_transaction(letters: str) -> None:
    with psycopg.connect(letters, autocommit=True) as connection:
        guard.claim(connection, NAME, OLD)
        guard.claim(connection, NAME, NEW)
        with pytest.raises(StaleToken), connection.transaction():
            guard.hold_claim(connection, NAME, OLD)
        with connection.transaction():
            guard.hold_claim(connection, NAME, NEW)
            assert guard.once(connection, NAME, NEW).is_new


def test_the_statement_of_the_page_deletes_old_effects(letters: str) -> None:
    [statement] = [
        block.code
        for block in blocks(ROOT / "docs/how-to/protect-a-resource.md")
        if block.language == "sql"
    ]
    send(letters, NAME, OLD)
    send(letters, "letter:2", OLD)
    with psycopg.connect(letters) as connection:
        old = "UPDATE celery_redlock_effects SET done_at = now() - interval '91 days'"
        connection.execute(f"{old} WHERE name = %s".encode(), [NAME])
        assert connection.execute(statement.encode()).rowcount == 1
    assert send(letters, NAME, NEW) == NEW
    assert send(letters, "letter:2", NEW) == OLD
