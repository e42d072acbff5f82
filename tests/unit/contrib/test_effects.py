"""Effects that are done once: what each run gets, and what is refused."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from celery_redlock.contrib.guards import StaleToken, effects
from celery_redlock.contrib.guards import sqlalchemy as guard

OLD, NEW = 2**50, 2**50 + 1
NAME = "invoice:17"


def engine_with_tables(**options: Any) -> Engine:
    engine = create_engine("sqlite://", poolclass=StaticPool, **options)
    guard.create_table(engine)
    return engine


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = engine_with_tables()
    yield engine
    engine.dispose()


def do(engine: Engine, token: int | None, result: object = None) -> bool:
    """Do the effect if it is new; return whether it was."""
    with engine.begin() as connection:
        effect = guard.once(connection, NAME, token)
        if effect.is_new:
            effect.store(result)
        return effect.is_new


def result_of(engine: Engine) -> object:
    with engine.begin() as connection:
        effect = guard.once(connection, NAME, NEW)
    assert effect.name == NAME
    return effect.result


def test_an_effect_is_new_for_the_first_run_only(engine: Engine) -> None:
    assert [do(engine, OLD), do(engine, OLD), do(engine, NEW)] == [True, False, False]


def test_effects_of_other_names_are_new(engine: Engine) -> None:
    do(engine, OLD)
    with engine.begin() as connection:
        assert guard.once(connection, "invoice:18", OLD).is_new


def test_a_later_run_gets_the_stored_result(engine: Engine) -> None:
    do(engine, OLD, {"sent": True})
    assert result_of(engine) == {"sent": True}


def test_an_effect_without_a_result_has_none(engine: Engine) -> None:
    with engine.begin() as connection:
        assert guard.once(connection, NAME, OLD).result is None
    assert result_of(engine) is None


def test_an_effect_that_was_rolled_back_is_new_again(engine: Engine) -> None:
    with engine.connect() as connection:
        guard.once(connection, NAME, NEW).store("printed")
        connection.rollback()
    assert do(engine, OLD)


def test_a_run_older_than_that_which_did_the_effect_is_stale(engine: Engine) -> None:
    do(engine, NEW)
    with pytest.raises(StaleToken) as caught:
        do(engine, OLD)
    assert (caught.value.resource, caught.value.token) == (NAME, OLD)


def test_a_run_that_found_the_result_makes_no_earlier_one_stale(engine: Engine) -> None:
    do(engine, OLD)
    assert not do(engine, NEW)
    assert not do(engine, OLD)


def test_a_run_without_a_token_is_refused(engine: Engine) -> None:
    with pytest.raises(StaleToken, match="'invoice:17' needs a fencing token, and this run has no"):
        do(engine, None)


@pytest.mark.parametrize("token", ["7", "seven", True, 1.5], ids=repr)
def test_a_token_of_another_type_claims_nothing(engine: Engine, token: Any) -> None:
    with pytest.raises(TypeError, match="must be an int, got"):
        guard.claim(engine, NAME, token)
    with pytest.raises(TypeError, match="must be an int, got"):
        do(engine, token)
    guard.claim(engine, NAME, OLD)
    assert do(engine, OLD)


def test_an_effect_that_a_run_does_is_not_new_to_its_own_next_call(engine: Engine) -> None:
    with engine.begin() as connection:
        assert guard.once(connection, NAME, OLD).is_new
        assert not guard.once(connection, NAME, OLD).is_new


def test_a_session_has_effects_too(engine: Engine) -> None:
    with Session(engine) as session:
        guard.once(session, NAME, OLD).store(1)
        session.rollback()
        guard.once(session, NAME, OLD).store(2)
        session.commit()
    assert result_of(engine) == 2


def test_the_tables_are_made_beside_those_that_are_there(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text(f"DROP TABLE {effects.TABLE}"))
    guard.claim(engine, "account:1", OLD)
    guard.create_table(engine)
    assert do(engine, OLD)
    with pytest.raises(StaleToken):
        guard.claim(engine, "account:1", OLD - 1)


# --- without a transaction ------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["engine", "connection"])
def test_without_a_transaction_an_effect_is_refused(place: str) -> None:
    level = {"isolation_level": "AUTOCOMMIT"}
    engine = engine_with_tables(**(level if place == "engine" else {}))
    with engine.connect().execution_options(**(level if place == "connection" else {})) as one:
        with pytest.raises(RuntimeError, match="no transaction is open"):
            guard.once(one, NAME, OLD)
        assert one.execute(text(effects.READ), {"name": NAME}).first() is None
    engine.dispose()


def test_a_driver_that_commits_by_itself_begins_no_transaction() -> None:
    class Autocommit(sqlite3.Connection):
        """As `sqlite3.connect(autocommit=True)`, which Python 3.11 does not have."""

        autocommit = True

    engine = create_engine(
        "sqlite://", creator=lambda: sqlite3.connect(":memory:", factory=Autocommit)
    )
    with engine.begin() as connection:
        for call in (guard.hold_claim, guard.once):
            with pytest.raises(RuntimeError, match="no transaction is open"):
                call(connection, NAME, OLD)
    engine.dispose()


def test_a_transaction_that_the_app_begins_is_one() -> None:
    engine = engine_with_tables()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        driver: Any = connection.connection.dbapi_connection
        driver.isolation_level = None
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    assert [do(engine, OLD), do(engine, NEW)] == [True, False]
    engine.dispose()


# --- the result -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "result", [object(), {1, 2}, math.nan, {"a": math.inf}], ids=["object", "set", "nan", "inf"]
)
def test_a_result_that_is_no_json_is_refused(engine: Engine, result: object) -> None:
    with pytest.raises(ValueError, match=r"'invoice:17' must be JSON"):
        do(engine, OLD, result)


def test_a_long_result_is_refused_before_it_is_written(engine: Engine) -> None:
    with engine.begin() as connection:
        effect = guard.once(connection, NAME, OLD)
        effect.store("x" * (65_536 - 2))
        with pytest.raises(ValueError, match=r"at most 65,536 characters of JSON, got 65,537"):
            effect.store("x" * (65_536 - 1))
    assert result_of(engine) == "x" * (65_536 - 2)


def test_the_run_that_stores_a_result_has_what_later_ones_get(engine: Engine) -> None:
    with engine.begin() as connection:
        effect = guard.once(connection, NAME, OLD)
        effect.store({1: ("a", "\ud800\0")})
    assert effect.result == {"1": ["a", "\ud800\0"]} == result_of(engine)


def test_the_result_of_an_earlier_run_is_not_replaced(engine: Engine) -> None:
    do(engine, OLD, "first")
    with engine.begin() as connection, pytest.raises(RuntimeError, match="does not change"):
        guard.once(connection, NAME, NEW).store("second")
    assert result_of(engine) == "first"


def test_no_result_is_stored_for_an_effect_that_was_rolled_back(engine: Engine) -> None:
    with engine.connect() as connection:
        effect = guard.once(connection, NAME, OLD)
        connection.rollback()
        with pytest.raises(RuntimeError, match="rolled back"):
            effect.store("late")
        assert guard.once(connection, NAME, NEW).is_new
        with pytest.raises(RuntimeError, match="rolled back"):
            effect.store("of another run's effect")


def test_a_row_that_is_deleted_between_two_statements_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="run the transaction again"):
        effects.once_with(lambda statement, given: None, NAME, OLD)
