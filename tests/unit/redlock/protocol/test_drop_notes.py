"""Notes of who released a lock: written whole, read only if they are."""

from __future__ import annotations

import pytest

from celery_redlock.redlock.lease import owner_id
from celery_redlock.redlock.protocol.drop_notes import DropNote, as_note, as_noted, dropped_key
from celery_redlock.redlock.protocol.replies import Acknowledged, Failed

OWNER = f"{'0' * 32}:task-1@host"


def test_a_note_tells_who_and_when() -> None:
    note = DropNote.of(OWNER, 1_795_615_995.9, "Alice B@ops")
    assert as_note(note.value.encode()) == note
    assert note.owner_id == owner_id(OWNER)
    assert note.reason == "it was released by Alice B@ops at 2026-11-25 14:13:15 UTC"
    assert "0" * 32 not in note.value, "it would be enough to release the lock"


def test_a_long_author_is_shortened() -> None:
    assert len(DropNote.of(OWNER, 0, "é" * 9999).author.encode()) <= 255


@pytest.mark.parametrize(
    "raw",
    [None, 7, OSError("no"), b"", b"1", b"id", b"id 1", b"id 1 ", b"id x me", "id ² me".encode(),
     b"id 999999999999 me"],
)  # fmt: skip
def test_anything_else_is_no_note(raw: object) -> None:
    assert isinstance(as_note(raw), Failed)


def test_a_node_confirms_a_note() -> None:
    assert as_noted(b"OK") == Acknowledged()
    assert isinstance(as_noted(OSError("full")), Failed)


def test_a_note_is_kept_beside_its_lock() -> None:
    assert dropped_key("p", "k") == "p:{k}:dropped"
