"""Tasks that bring a row's copy up to date, and whoever changes the row."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery_redlock import LockHeld, lock_conflict, singleton_task
from celery_redlock.config.options import Lifetime, OnConflict
from celery_redlock.redlock.lease import task_of
from tests.support.processes.inside import Inside

inside = Inside(__name__)
app = inside.app
LIFETIMES = (Lifetime.WHILE_EXECUTING, Lifetime.UNTIL_AND_WHILE_EXECUTING)
TAKES_S = 0.3
"""How long a run takes."""


# --- rows and their copies ------------------------------------------------------------------------


@contextmanager
def database() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(inside.folder / "rows", timeout=60, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        yield connection
    finally:
        connection.close()


def new_rows(storm: str, count: int) -> None:
    """Make rows for one storm, which begin at version 0, and their copies."""
    new = [(f"{storm}-{number}",) for number in range(count)]
    with database() as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE IF NOT EXISTS source (name PRIMARY KEY, version)")
        db.execute("CREATE TABLE IF NOT EXISTS copy (name PRIMARY KEY, version, token)")
        db.executemany("INSERT INTO source VALUES (?, 0)", new)
        db.executemany("INSERT INTO copy VALUES (?, 0, 0)", new)


def sources(storm: str) -> dict[str, int]:
    """Return the version of each of the storm's rows."""
    with database() as db:
        rows = db.execute("SELECT name, version FROM source WHERE name GLOB ?", [f"{storm}-*"])
        return dict(rows.fetchall())


def copies(storm: str) -> dict[str, int]:
    """Return of which version the copy of each is."""
    with database() as db:
        rows = db.execute("SELECT name, version FROM copy WHERE name GLOB ?", [f"{storm}-*"])
        return dict(rows.fetchall())


def version(db: sqlite3.Connection, name: str) -> int:
    [[found]] = db.execute("SELECT version FROM source WHERE name = ?", [name])
    return int(found)


# --- tasks ----------------------------------------------------------------------------------------


def make(lifetime: Lifetime, *, late: bool) -> Any:
    @singleton_task(
        app=app,
        name=f"{__name__}.{lifetime.value}.{'late' if late else 'early'}",
        lock_key="{name}",
        lock_lifetime=lifetime.value,
        lock_on_conflict=OnConflict.COALESCE.value,
        acks_late=late,
        reject_on_worker_lost=late,
        ignore_result=True,
    )
    def refresh(name: str, *, fencing_token: int | None) -> None:
        inside.note("begin", key=name)
        with database() as db:
            saw = version(db, name)
            time.sleep(TAKES_S)
            written = db.execute(
                "UPDATE copy SET version = ?1, token = ?2 WHERE name = ?3 AND token < ?2",
                [saw, fencing_token, name],
            )
        if not written.rowcount:
            raise AssertionError(f"the token {fencing_token} came too late for {name}")
        inside.note("end", key=name, saw=saw)

    return refresh


early: dict[Lifetime, Any] = {lifetime: make(lifetime, late=False) for lifetime in LIFETIMES}
late: dict[Lifetime, Any] = {lifetime: make(lifetime, late=True) for lifetime in LIFETIMES}


@lock_conflict.connect
def on_conflict(error: LockHeld, outcome: str, **_: Any) -> None:
    if outcome == OnConflict.SKIP.value:
        name = error.key.removesuffix("%next").rpartition(":")[2]
        inside.note("skipped", key=name, holder=task_of(error.owner))


# --- whoever changes the rows ---------------------------------------------------------------------


def update(number: int, task: str, storm: str, rows: str, updates: str) -> None:
    """Change a row, publish its task, and so on."""
    chance = random.Random(number)
    refresh = app.tasks[task]
    with database() as db:
        for _ in range(int(updates)):
            name = f"{storm}-{chance.randrange(int(rows))}"
            db.execute("UPDATE source SET version = version + 1 WHERE name = ?", [name])
            changed = version(db, name)
            result = refresh.delay(name)
            inside.note("updated", key=name, version=changed, returned=result.id)
