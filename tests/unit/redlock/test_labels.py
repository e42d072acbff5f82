"""Whatever a holder is called: an owner is text of at most 1 KiB, and names nobody else."""

from __future__ import annotations

import importlib.util
import socket
import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_redlock.redlock import ConfigurationError, lease
from celery_redlock.redlock.labels import LABEL_BYTES, bounded, label_of
from celery_redlock.redlock.lease import host_of, new_owner, publication_of, task_of
from celery_redlock.redlock.task_lock import TaskLock
from tests.support.calls import Colour, Misnamed
from tests.support.fakes.simulated_network import Network

URLS = ["redis://127.0.0.1:1"]
TEXTS = st.text(st.characters(), max_size=40)
NONCE_LENGTH = 32


@pytest.mark.parametrize("text", ["task-1", "", "x" * 512, "ü" * 256, "…", "…" + "a" * 31])
def test_a_text_within_the_bound_is_stored_as_it_is(text: str) -> None:
    assert bounded(text, 512) == text


@given(text=st.one_of(TEXTS, TEXTS.map(lambda text: text * 20)))
@example(text="\ud800")
@example(text="🔒" * 20)
def test_any_text_is_stored_as_text_within_the_bound(text: str) -> None:
    assert len(bounded(text, 60).encode()) <= 60


@given(one=TEXTS, other=TEXTS)
@example(one="\ud800", other="\\ud800")
@example(one="\ud800", other="\udc00")
@example(one="x" * 40 + "\ud800", other="x" * 40 + "\udc00")
def test_two_texts_are_never_stored_as_one(one: str, other: str) -> None:
    assert (bounded(one, 40) == bounded(other, 40)) == (one == other)


def test_no_text_passes_for_another_one_s_short_form() -> None:
    short = bounded("x" * 1000, 100)
    assert bounded(short, 100) != short


def test_a_shortened_text_begins_as_the_whole_one() -> None:
    assert bounded("invoice-" + "x" * 1000, 60).startswith("invoice-xxx")
    assert bounded("a\udc80b", 60).startswith("a\\udc80b…")


@pytest.mark.parametrize("label", [Colour.RED, Misnamed("data")])
def test_a_label_of_a_subclass_is_stored_as_its_data(label: str) -> None:
    assert (type(label_of(label)), label_of(label)) == (str, str.__str__(label))
    assert task_of(new_owner(label)) == label_of(label)


@pytest.mark.parametrize("label", ["x" * 1_200_000, "🔒" * 300_000, "\ud800" * 500, "a@b:c" * 500])
def test_an_owner_is_at_most_1_kib_of_text(label: str) -> None:
    owner = new_owner(label, "host." * 500, publication="0123456789abcdef", is_reservation=True)
    assert len(owner.encode()) <= 1024
    assert publication_of(owner) == "0123456789abcdef"
    assert task_of(owner) == label_of(label)
    assert owner[:NONCE_LENGTH].isalnum()


def test_a_task_id_of_any_type_is_its_text() -> None:
    assert task_of(new_owner(5)) == label_of(5) == "5"  # type: ignore[arg-type]


def test_a_host_name_that_is_no_text_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "caf\udce9")
    # The module takes the name when it is imported.
    spec = importlib.util.spec_from_file_location(f"{lease.__name__}_again", lease.__file__)
    assert spec
    assert spec.loader
    fresh = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, fresh)
    spec.loader.exec_module(fresh)
    owner = fresh.new_owner("task-1")
    owner.encode()
    assert str(host_of(owner)).startswith("caf\\udce9")


REFUSED = pytest.mark.parametrize(
    ("label", "message"),
    [
        ("a\ud800", r"^label 'a\\ud800' can't be encoded as UTF-8; replace its lone surrogates$"),
        (
            "x" * (LABEL_BYTES + 1),
            r"^label must be at most 512 bytes long, got 513: 'x{200}… \(513 char",
        ),
        ("ü" * 257, r"got 514: .*; it only names the holder, so choose a shorter one$"),
    ],
    ids=["surrogate", "long", "bytes"],
)


@REFUSED
def test_a_label_that_can_not_be_stored_is_refused(label: str, message: str) -> None:
    redlock = TaskLock(URLS)
    for ask in (redlock.acquire, redlock.lock):
        with pytest.raises(ConfigurationError, match=message):
            ask("k", label=label)


@pytest.mark.parametrize("label", ["x" * LABEL_BYTES, "", None, 5], ids=["long", "", "-", "5"])
def test_a_label_within_the_bounds_is_accepted(label: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(1, monkeypatch)
    redlock = network.redlock()
    with redlock.lock("k", label=label) as held:
        nobody = task_of(new_owner())
        assert task_of(held.owner) == (str(label) if label else nobody)
    redlock.close()


@pytest.mark.parametrize("label", ["\ud800", "x" * 1_200_000], ids=["surrogate", "long"])
def test_a_task_with_any_id_is_locked_and_reserved(
    label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network(3, monkeypatch)
    redlock = network.redlock()
    for lock in (redlock.acquire_for_task, redlock.reserve):
        granted = lock("k", 10.0, label=label)
        granted.owner.encode()
        assert task_of(granted.owner) == label_of(label)
        redlock.release(granted)
        assert network.holders() == [None] * 3
    redlock.close()


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ("a\ud800", r"^key_prefix 'a\\ud800' can't be encoded as UTF-8; replace its lone"),
        (5, "^key_prefix must be a string, got int$"),
        (None, "^key_prefix must be a string, got NoneType$"),
    ],
)
def test_a_prefix_that_can_not_be_stored_is_refused(prefix: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TaskLock(URLS, key_prefix=prefix)
