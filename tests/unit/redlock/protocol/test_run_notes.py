"""What a node tells of its server's run."""

from __future__ import annotations

import hiredis
import pytest

from celery_redlock.redlock.protocol.run_notes import as_admitted, reading, stores_each_write

SAFE = [
    b"appendonly", b"yes", b"appendfsync", b"always", b"no-appendfsync-on-rewrite", b"no",
    b"appendfilename", b"appendonly.aof",
]  # fmt: skip


def test_the_note_is_a_key_under_the_prefix_without_braces() -> None:
    assert reading("bank") == ("GET", "bank:admitted")


def test_without_a_note_or_the_right_to_read_it_none_is_admitted() -> None:
    assert as_admitted(None) == as_admitted(hiredis.ReplyError("NOPERM")) == ""
    assert as_admitted(b"a") == "a"


@pytest.mark.parametrize("at", [1, 3, 5])
def test_each_setting_must_be_safe(at: int) -> None:
    assert stores_each_write(SAFE)
    assert not stores_each_write([*SAFE[:at], b"other", *SAFE[at + 1 :]])
    assert not stores_each_write([*SAFE[: at - 1], *SAFE[at + 1 :]]), "not told"


def test_a_reply_of_resp3_is_understood() -> None:
    assert stores_each_write(dict(zip(SAFE[::2], SAFE[1::2], strict=True)))
