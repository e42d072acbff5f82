"""The ledger: records that must never be wrong, so it checks the fencing token itself.

A lock alone can't protect it. A worker can be frozen in the middle of a task, by the kernel or by
the migration of a virtual machine. Its lease ends, and another worker acquires the lock and does
the work. Then the first one wakes up and continues with its next line, a write. So

- a run **claims** its token before any read: from that moment every older run is shut out, and the
  data that the new run reads can't change under it;
- every write names its token, and is refused unless it is still the last one claimed.

A check on write alone would let an old run write between a newer run's read and its first write.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Action = Literal["claimed", "issued", "refused"]

_BUSY_TIMEOUT_S = 30.0

# documents.invoice is not unique on purpose: only the token prevents a second document, so a
# duplicate would exist and be counted.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS invoices (
    invoice TEXT PRIMARY KEY,
    fence INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS documents (
    number INTEGER PRIMARY KEY,
    invoice TEXT NOT NULL REFERENCES invoices,
    total_cents INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS journal (
    position INTEGER PRIMARY KEY,
    action TEXT NOT NULL,
    invoice TEXT NOT NULL,
    token INTEGER NOT NULL,
    task_id TEXT NOT NULL,
    worker TEXT NOT NULL
);
"""


class StaleToken(Exception):
    """A newer run has claimed the invoice: this one must not write to it any more.

    Attributes:
        invoice: Invoice of the refused claim or write.
        token: Token of the refused run.
        fence: Token of the newer run, the last one claimed.
    """

    def __init__(self, invoice: str, token: int, fence: int) -> None:
        super().__init__(invoice, token, fence)
        self.invoice = invoice
        self.token = token
        self.fence = fence

    def __str__(self) -> str:
        return f"{self.invoice}: token {self.token} is stale, {self.fence} has claimed it since"


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of one task on one worker."""

    task_id: str
    worker: str


@dataclass(frozen=True, slots=True)
class Document:
    """An issued invoice: its legal number can't be withdrawn."""

    number: int
    invoice: str
    total_cents: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the journal: an action of a run, or its refusal."""

    action: Action
    invoice: str
    token: int
    run: Run


class Ledger:
    """An SQLite file that any number of workers on a machine write to."""

    def __init__(self, path: Path | str) -> None:
        """Open the ledger at `path`, and create it if it does not exist."""
        self._path = path
        with self._connect() as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.executescript(_SCHEMA)

    def claim(self, invoice: str, token: int, run: Run) -> Document | None:
        """Shut out every run with a lower token, then read the document of `invoice`.

        Returns:
            The document if the invoice was issued before; None if not.

        Raises:
            StaleToken: This token, or a higher one, has been claimed before.
        """
        with self._transaction() as db:
            db.execute("INSERT OR IGNORE INTO invoices (invoice) VALUES (?)", (invoice,))
            claimed = db.execute(
                "UPDATE invoices SET fence = :token WHERE invoice = :invoice AND fence < :token",
                {"invoice": invoice, "token": token},
            ).rowcount
            _record(db, Entry("claimed" if claimed else "refused", invoice, token, run))
            fence = _fence(db, invoice)
            document = _document(db, invoice)
        if not claimed:
            raise StaleToken(invoice, token, fence)
        return document

    def issue(self, invoice: str, token: int, total_cents: int, run: Run) -> Document:
        """Issue `invoice` under the next number, if `token` is still the last one claimed.

        Raises:
            StaleToken: Another token is; only the refusal was written.
        """
        with self._transaction() as db:
            fence = _fence(db, invoice)
            if fence == token:
                db.execute(
                    "INSERT INTO documents (invoice, total_cents) VALUES (?, ?)",
                    (invoice, total_cents),
                )
            _record(db, Entry("issued" if fence == token else "refused", invoice, token, run))
            document = _document(db, invoice)
        if fence != token or document is None:
            raise StaleToken(invoice, token, fence)
        return document

    def documents(self) -> list[Document]:
        """Return every document issued so far, in the order of their numbers."""
        with self._connect() as db:
            rows = db.execute("SELECT number, invoice, total_cents FROM documents ORDER BY number")
            return [Document(*row) for row in rows]

    def journal(self) -> list[Entry]:
        """Return all actions and refusals of runs, oldest first."""
        with self._connect() as db:
            rows = db.execute(
                "SELECT action, invoice, token, task_id, worker FROM journal ORDER BY position"
            )
            return [
                Entry(action, invoice, token, Run(task_id, worker))
                for action, invoice, token, task_id, worker in rows
            ]

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        # One connection per call: none is shared between threads or inherited by a fork.
        db = sqlite3.connect(self._path, timeout=_BUSY_TIMEOUT_S, isolation_level=None)
        try:
            yield db
        finally:
            db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._connect() as db:
            # The writer's lock from the start: what is read here stays true until the commit.
            db.execute("BEGIN IMMEDIATE")
            with db:
                yield db


def _fence(db: sqlite3.Connection, invoice: str) -> int:
    row = db.execute("SELECT fence FROM invoices WHERE invoice = ?", (invoice,)).fetchone()
    return row[0] if row else 0


def _document(db: sqlite3.Connection, invoice: str) -> Document | None:
    row = db.execute(
        "SELECT number, invoice, total_cents FROM documents WHERE invoice = ? ORDER BY number",
        (invoice,),
    ).fetchone()
    return Document(*row) if row else None


def _record(db: sqlite3.Connection, entry: Entry) -> None:
    db.execute(
        "INSERT INTO journal (action, invoice, token, task_id, worker) VALUES (?, ?, ?, ?, ?)",
        (entry.action, entry.invoice, entry.token, entry.run.task_id, entry.run.worker),
    )
