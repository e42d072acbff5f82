"""Runs that send a letter once: `effects_once.py GUARD URL TOKEN…`, one run after the other.

A run that has sent it waits for a line before it commits. In place of a token, `create` makes the
tables, `alone` asks without a transaction, and `repeatable` waits for a line between its first read
and its question. No rule but the guard's keeps the letter from being sent twice.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from celery_redlock.contrib.guards import Effect, StaleToken

NAME = "letter:1"

Transaction = tuple[Callable[[str, "int | None"], Effect], Callable[[str], object]]
"""What a run does in its transaction: ask for the effect, and execute a statement."""


class Guard(NamedTuple):
    """A guard on a database: how its table is made, a transaction begun, or none."""

    create: Callable[[], object]
    begin: Callable[[bool], AbstractContextManager[Transaction]]


def with_psycopg(url: str) -> Guard:
    import psycopg  # noqa: PLC0415  # each process has one of the guards

    from celery_redlock.contrib.guards import psycopg as guard  # noqa: PLC0415

    @contextmanager
    def begin(is_transaction: bool) -> Iterator[Transaction]:
        with psycopg.connect(url, autocommit=not is_transaction) as connection:
            yield partial(guard.once, connection), connection.execute

    def create() -> None:
        with psycopg.connect(url) as connection:
            guard.create_table(connection)

    return Guard(create, begin)


def with_sqlalchemy(url: str) -> Guard:
    from sqlalchemy import create_engine  # noqa: PLC0415

    from celery_redlock.contrib.guards import sqlalchemy as guard  # noqa: PLC0415

    engine = create_engine(url)

    @contextmanager
    def begin(is_transaction: bool) -> Iterator[Transaction]:
        level = {} if is_transaction else {"isolation_level": "AUTOCOMMIT"}
        with engine.execution_options(**level).begin() as connection:
            yield partial(guard.once, connection), connection.exec_driver_sql

    return Guard(partial(guard.create_table, engine), begin)


def with_django(url: str) -> Guard:
    import django  # noqa: PLC0415
    from django.conf import settings  # noqa: PLC0415

    settings.configure(DATABASES={"default": database(url)}, USE_TZ=True)
    django.setup()
    from django.db import connection, transaction  # noqa: PLC0415

    from celery_redlock.contrib.guards.django import EffectModel  # noqa: PLC0415

    class Sent(EffectModel):
        class Meta:
            app_label = "post"

    @contextmanager
    def begin(is_transaction: bool) -> Iterator[Transaction]:
        within = transaction.atomic() if is_transaction else nullcontext()
        with within, connection.cursor() as cursor:
            yield Sent.once, cursor.execute

    def create() -> None:
        with connection.schema_editor() as editor:
            editor.create_model(Sent)

    return Guard(create, begin)


def database(url: str) -> dict[str, Any]:
    """Return a database's address in Django's form."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": parts.path[1:],
            "OPTIONS": {"timeout": 300, "transaction_mode": "IMMEDIATE"},
        }
    return {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": parts.hostname,
        "PORT": parts.port,
        "USER": parts.username,
        "NAME": parts.path[1:],
    }


def run(guard: Guard, token: int | None) -> str:
    """Send the letter if nobody has; return the outcome."""
    say("asks")
    try:
        with guard.begin(True) as (once, execute):
            effect = once(NAME, token)
            if effect.is_new:
                execute(f"INSERT INTO letters (token) VALUES ({token})")  # noqa: S608  # a number
                effect.store({"token": token})
                say("wrote")
                sys.stdin.readline()
    except StaleToken:
        return "stale"
    return f"{'new' if effect.is_new else 'later'} {json.dumps(effect.result)}"


def ask_late(guard: Guard) -> str:
    """Ask in a transaction that sees the database as it was before; return the error's name."""
    try:
        with guard.begin(True) as (once, execute):
            execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            execute("SELECT token FROM letters")
            say("reads")
            sys.stdin.readline()
            return f"is_new={once(NAME, 2**60).is_new}"
    except Exception as error:  # noqa: BLE001  # the name is the outcome
        return type(error).__name__


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


GUARDS = {"psycopg": with_psycopg, "sqlalchemy": with_sqlalchemy, "django": with_django}

if __name__ == "__main__":
    name, url, *steps = sys.argv[1:]
    chosen = GUARDS[name](url)
    for step in steps:
        if step == "create":
            chosen.create()
            with chosen.begin(True) as (_, execute):
                execute("CREATE TABLE letters (token BIGINT NOT NULL)")
        elif step == "repeatable":
            say(ask_late(chosen))
        elif step == "alone":
            with chosen.begin(False) as (once, _execute):
                try:
                    once(NAME, 1)
                except RuntimeError as error:
                    say(str(error))
        else:
            say(run(chosen, None if step == "None" else int(step)))
