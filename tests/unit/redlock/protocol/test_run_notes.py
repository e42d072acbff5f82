"""What a node tells of its server's run."""

from __future__ import annotations

import hiredis
import pytest

from celery_redlock.redlock.protocol.run_notes import Admission

HERE = Admission("bank", ("a:1", "b:1", "c:1"), "a:1", 63.6)


def noted(by: Admission = HERE) -> bytes:
    """Return the note that admits the server with the run id "run"."""
    return str(by.admitting("run")[2]).encode()


def test_the_note_is_a_key_under_the_prefix_without_braces() -> None:
    assert HERE.reading == ("GET", "bank:admitted")
    assert HERE.admitting("run")[:2] == ("SET", "bank:admitted")


def test_the_note_names_run_guard_address_and_all_nodes() -> None:
    assert noted() == b"run 63600 a:1 of a:1 b:1 c:1"
    assert HERE.run_id_in(noted()) == "run"


def test_the_note_lasts_as_long_as_the_guard() -> None:
    assert HERE.admitting("run")[3:] == ("PX", 63_600)
    assert HERE._replace(guard_s=0.0).admitting("run")[3:] == ("PX", 1), "no shorter one exists"


def test_the_order_of_the_nodes_does_not_matter() -> None:
    assert HERE._replace(nodes=("c:1", "a:1", "b:1")).run_id_in(noted()) == "run"


@pytest.mark.parametrize(
    "of_another",
    [
        HERE._replace(guard_s=63.601),
        HERE._replace(address="b:1"),
        HERE._replace(nodes=("a:1", "b:1", "d:1")),
        HERE._replace(nodes=("a:1", "b:1", "c:1", "d:1", "e:1")),
        HERE._replace(nodes=("a:1",)),
    ],
    ids=["longer guard", "another address", "another node", "more nodes", "fewer nodes"],
)
def test_an_admission_is_not_inherited(of_another: Admission) -> None:
    assert of_another.run_id_in(noted()) == ""


def test_an_admission_covers_a_shorter_guard() -> None:
    assert HERE._replace(guard_s=5.0).run_id_in(noted()) == "run"
    longest = noted().replace(b"63600", b"9" * 15)
    assert HERE.run_id_in(longest) == "run"


@pytest.mark.parametrize(
    "reply",
    [
        None, hiredis.ReplyError("NOPERM"), b"", b"run", b"run 63600", b"run x a:1 of a:1 b:1 c:1",
        b"run -1 a:1 of a:1 b:1 c:1", b"run " + b"9" * 9999 + b" a:1 of a:1 b:1 c:1", b"\xff \xff",
    ],
)  # fmt: skip
def test_without_a_readable_note_none_is_admitted(reply: object) -> None:
    assert HERE.run_id_in(reply) == ""
