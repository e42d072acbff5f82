"""Each guard, on the real thing, against a run that was frozen between its read and its write."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psycopg
import pytest
import sqlalchemy

from celery_redlock.contrib.guards import (
    StaleToken,
    objects,
)
from celery_redlock.contrib.guards import (
    psycopg as psycopg_guard,
)
from celery_redlock.contrib.guards import (
    redis as redis_guard,
)
from celery_redlock.contrib.guards import (
    sqlalchemy as sqlalchemy_guard,
)
from celery_redlock.testing import Server
from tests.support.eventually import eventually
from tests.support.processes.object_store import ObjectStore
from tests.support.processes.postgres import Postgres
from tests.support.root import ROOT

OLD, NEW = 2**50, 2**50 + 1


class Run(NamedTuple):
    """A run that has claimed the balance and read it.

    Attributes:
        balance: What it has read.
        write: Writes another one.
    """

    balance: int
    write: Callable[[int], object]


Begin = Callable[["int | None"], Run]


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with Postgres() as server:
        url = f"postgresql://redlock@127.0.0.1:{server.port}/postgres"
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE balances (id INT PRIMARY KEY, balance INT)")
            psycopg_guard.create_table(connection)
            psycopg_guard.create_table(connection)
        yield url


def with_psycopg(url: str, opened: ExitStack) -> Begin:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DELETE FROM celery_redlock_fences")
        connection.execute("DELETE FROM balances")
        connection.execute("INSERT INTO balances VALUES (1, 1000)")

    def begin(token: int | None) -> Run:
        connection = opened.enter_context(psycopg.connect(url, autocommit=True))
        psycopg_guard.claim(connection, "balance:1", token)
        row = connection.execute("SELECT balance FROM balances WHERE id = 1").fetchone()
        assert row

        def write(balance: int) -> None:
            with connection.transaction():
                psycopg_guard.hold_claim(connection, "balance:1", token)
                connection.execute("UPDATE balances SET balance = %s WHERE id = 1", [balance])

        return Run(row[0], write)

    return begin


def with_sqlalchemy(url: str, opened: ExitStack) -> Begin:
    engine = sqlalchemy.create_engine(url)
    opened.callback(engine.dispose)
    sqlalchemy_guard.create_table(engine)
    with engine.begin() as connection:
        for statement in (
            "DELETE FROM celery_redlock_fences",
            "CREATE TABLE IF NOT EXISTS balances (id INT PRIMARY KEY, balance INT)",
            "DELETE FROM balances",
            "INSERT INTO balances VALUES (1, 1000)",
        ):
            connection.execute(sqlalchemy.text(statement))

    def begin(token: int | None) -> Run:
        sqlalchemy_guard.claim(engine, "balance:1", token)
        with engine.connect() as connection:
            read = connection.execute(sqlalchemy.text("SELECT balance FROM balances")).scalar_one()

        def write(balance: int) -> None:
            with engine.begin() as connection:
                sqlalchemy_guard.hold_claim(connection, "balance:1", token)
                changed = sqlalchemy.text("UPDATE balances SET balance = :balance")
                connection.execute(changed, {"balance": balance})

        return Run(read, write)

    return begin


def with_redis(client: Any) -> Begin:
    client.set("{balance:1}", 1000)

    def begin(token: int | None) -> Run:
        redis_guard.claim(client, "{balance:1}:fence", token)
        read = int(client.get("{balance:1}"))
        to = ("{balance:1}:fence", token, "SET", "{balance:1}")
        return Run(read, lambda balance: redis_guard.write(client, *to, balance))

    return begin


def with_objects(url: str, opened: ExitStack) -> Begin:
    # Here, since each process of pytest-xdist would import them.
    import boto3  # noqa: PLC0415
    from botocore.config import Config  # noqa: PLC0415

    client = boto3.client(
        "s3", endpoint_url=url, aws_access_key_id="a", aws_secret_access_key="b",  # noqa: S106
        region_name="eu-west-1",
        config=Config(
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path"},
        ),
    )  # fmt: skip

    opened.callback(client.close)

    def begin(token: int | None) -> Run:
        claimed = objects.claim(client, "bank", "balance-1", token)
        return Run(int(claimed.body or 1000), lambda balance: claimed.write(b"%d" % balance))

    return begin


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    """What is closed at the end of the test."""
    with ExitStack() as opened:
        yield opened


@pytest.fixture(params=["psycopg", "sqlalchemy", "sqlalchemy on SQLite", "redis", "objects"])
def begin(request: pytest.FixtureRequest, tmp_path: Any, opened: ExitStack) -> Begin:
    match request.param:
        case "psycopg":
            return with_psycopg(request.getfixturevalue("postgres"), opened)
        case "sqlalchemy":
            url = request.getfixturevalue("postgres")
            return with_sqlalchemy(url.replace("postgresql:", "postgresql+psycopg:"), opened)
        case "sqlalchemy on SQLite":
            return with_sqlalchemy(f"sqlite:///{tmp_path}/bank.db", opened)
        case "redis":
            server = Server()
            server.start()
            opened.callback(server.stop)
            return with_redis(opened.enter_context(server.client()))
    return with_objects(opened.enter_context(ObjectStore()).url, opened)


def test_a_stale_writer_is_refused(begin: Begin) -> None:
    old = begin(OLD)
    new = begin(NEW)
    assert (old.balance, new.balance) == (1000, 1000)
    with pytest.raises(StaleToken) as caught:
        old.write(old.balance + 1)
    assert caught.value.token == OLD
    new.write(new.balance + 10)
    with pytest.raises(StaleToken):
        old.write(old.balance + 1)
    assert begin(NEW).balance == 1010


def test_an_old_token_claims_nothing(begin: Begin) -> None:
    begin(NEW).write(1001)
    with pytest.raises(StaleToken):
        begin(OLD)
    assert begin(NEW).balance == 1001


def test_a_claim_may_be_repeated_and_written_under_again(begin: Begin) -> None:
    run = begin(OLD)
    run.write(1001)
    run.write(1002)
    again = begin(OLD)
    again.write(again.balance + 1)
    assert begin(OLD).balance == 1003


def test_a_run_without_a_lock_is_refused(begin: Begin) -> None:
    with pytest.raises(StaleToken, match="has none"):
        begin(None)


def test_a_claim_waits_for_the_transaction_that_holds_the_claim_before(
    postgres: str, opened: ExitStack
) -> None:
    old = with_psycopg(postgres, opened)(OLD)
    seen: list[int] = []
    with psycopg.connect(postgres) as connection:
        psycopg_guard.hold_claim(connection, "balance:1", OLD)
        later = threading.Thread(target=lambda: seen.append(begin_anew(postgres)))
        later.start()
        with psycopg.connect(postgres, autocommit=True) as watch:
            waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            eventually(lambda: watch.execute(waits).fetchone() == (1,))
        assert not seen
        connection.execute("UPDATE balances SET balance = %s", [old.balance + 5])
    later.join()
    assert seen == [1005], "the newer run has read what was written under its feet"


def begin_anew(url: str) -> int:
    """Return what a newer run reads, once it has claimed."""
    with psycopg.connect(url, autocommit=True) as connection:
        psycopg_guard.claim(connection, "balance:1", NEW)
        row = connection.execute("SELECT balance FROM balances").fetchone()
        assert row
        return int(row[0])


@pytest.mark.parametrize("guard", ["psycopg", "sqlalchemy"])
def test_processes_may_create_the_tables_at_the_same_time(
    guard: str, postgres: str, opened: ExitStack
) -> None:
    def create(connection: Any) -> None:
        if guard == "psycopg":
            psycopg_guard.create_table(connection)
        else:
            engine = sqlalchemy.create_engine(
                "postgresql+psycopg://", creator=lambda: connection, poolclass=sqlalchemy.StaticPool
            )
            sqlalchemy_guard.create_table(engine)

    def create_late() -> None:
        try:
            create(late)
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    with psycopg.connect(postgres, autocommit=True) as watch:
        watch.execute(f"CREATE SCHEMA new_with_{guard}".encode())
        url = f"{postgres}?options=-csearch_path%3Dnew_with_{guard}"
        first, late = (opened.enter_context(psycopg.connect(url)) for _ in range(2))
        errors: list[Exception] = []
        first.execute("SELECT 1")  # a transaction, for psycopg's are nested
        psycopg_guard.create_table(first)
        creation = threading.Thread(target=create_late)
        creation.start()
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        eventually(lambda: watch.execute(waits).fetchone() == (1,))
        first.commit()
        creation.join()
    assert errors == []
    psycopg_guard.claim(late, "balance:1", OLD)


def test_a_claim_does_not_depend_on_how_the_app_writes_its_statements(
    postgres: str, opened: ExitStack
) -> None:
    with_psycopg(postgres, opened)
    with psycopg.connect(postgres, cursor_factory=psycopg.RawCursor) as connection:
        psycopg_guard.claim(connection, "balance:1", OLD)
        psycopg_guard.hold_claim(connection, "balance:1", OLD)
        assert psycopg_guard.once(connection, "letter:raw", OLD).is_new


def test_a_claim_inside_a_transaction_is_refused(postgres: str) -> None:
    with psycopg.connect(postgres) as connection:
        connection.execute("SELECT 1")
        with pytest.raises(RuntimeError, match="committed"):
            psycopg_guard.claim(connection, "balance:1", OLD)


def test_a_claim_is_held_in_a_pipeline(postgres: str, opened: ExitStack) -> None:
    with_psycopg(postgres, opened)(OLD)
    with psycopg.connect(postgres, autocommit=True) as connection, connection.pipeline():
        psycopg_guard.claim(connection, "balance:1", NEW)
        with connection.transaction():
            psycopg_guard.hold_claim(connection, "balance:1", NEW)
        with pytest.raises(StaleToken):
            psycopg_guard.claim(connection, "balance:1", OLD)
        with pytest.raises(StaleToken), connection.transaction():
            psycopg_guard.hold_claim(connection, "balance:1", OLD)


@pytest.mark.parametrize("guard", ["psycopg", "sqlalchemy", "sqlalchemy on SQLite"])
def test_a_claim_is_not_held_without_a_transaction(
    guard: str, postgres: str, tmp_path: Any, opened: ExitStack
) -> None:
    hold_claim: Callable[[Any, str, int], None]
    if guard == "psycopg":
        begin = with_psycopg(postgres, opened)
        connection: Any = opened.enter_context(psycopg.connect(postgres, autocommit=True))
        hold_claim = psycopg_guard.hold_claim
    else:
        on_postgres = postgres.replace("postgresql:", "postgresql+psycopg:")
        url = f"sqlite:///{tmp_path}/bank.db" if "SQLite" in guard else on_postgres
        begin = with_sqlalchemy(url, opened)
        engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
        opened.callback(engine.dispose)
        connection = opened.enter_context(engine.begin())
        hold_claim = sqlalchemy_guard.hold_claim
    begin(OLD)
    with pytest.raises(RuntimeError, match="no transaction is open"):
        hold_claim(connection, "balance:1", OLD)


def test_a_stale_writer_is_refused_by_the_django_orm(postgres: str) -> None:
    program = ROOT / "tests/integration/apps/django_guarded.py"
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "POSTGRES_PORT": str(urlsplit(postgres).port)},
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["StaleToken", "StaleToken", "StaleToken", "1010"]
