"""Done marks: whose they are, who leaves one, and whom one ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery.app.task import Context
from celery.exceptions import InvalidTaskError

from celery_redlock.messages.done_marks import (
    done_label,
    done_label_of_retry,
    is_provisional,
    mark_to_heed,
    mark_to_leave,
    refuse_unwritable,
)
from celery_redlock.messages.headers import (
    COPY_HEADER,
    ONCE_MORE_HEADER,
    PUBLICATION_HEADER,
    TICK_HEADER,
)
from celery_redlock.pools.orphaned_leases import PROVISIONAL_S
from celery_redlock.redlock.errors import AlreadyDone

NONCE = "0123456789abcdef"


def mark_of(*, late: bool, **request: Any) -> str | None:
    task: Any = SimpleNamespace(acks_late=late)
    return mark_to_leave(task, Context({"id": "task-1", "retries": 0, **request}))


def request_of(nonce: str = NONCE, *, headers: Any = None, **more: Any) -> Context:
    carried = {PUBLICATION_HEADER: nonce} if nonce else {}
    return Context(id="task-1", headers=carried | (headers or {}), **more)


def test_each_try_replacement_and_publication_has_its_own_mark() -> None:
    labels = [
        done_label(request_of(nonce, retries=retries, replaced_task_nesting=nesting))
        for nonce in ("", NONCE, NONCE[::-1])
        for retries in range(3)
        for nesting in range(3)
    ]
    assert len(set(labels)) == 27


def test_a_message_of_unknown_publication_is_told_by_id_and_try() -> None:
    assert done_label(request_of("", retries=2)) == "task-1/2"


def test_the_label_of_a_retry_is_that_of_its_message() -> None:
    headers = {PUBLICATION_HEADER: NONCE}
    run = Context(id="task-1", retries=1, headers=headers)
    retry = Context(id="task-1", retries=2, headers=headers)
    assert done_label_of_retry(run) == done_label(retry) == f"task-1/2/{NONCE}"


def test_a_run_once_more_and_its_retry_have_marks_of_their_own() -> None:
    first, again = (request_of(headers={ONCE_MORE_HEADER: nonce}) for nonce in ("", NONCE[::-1]))
    assert done_label(first) == f"task-1/0/{NONCE}"
    assert done_label(again) == f"task-1/0/{NONCE}+{NONCE[::-1]}"
    retry = Context(id="task-1", retries=1, headers=again.headers)
    assert done_label_of_retry(again) == done_label(retry) != done_label_of_retry(first)


@pytest.mark.parametrize(
    ("late", "request_"),
    [
        (True, {}),
        (False, {"eta": "2026-11-22T14:00:00"}),
        (False, {"retries": 1}),
        (False, {"delivery_info": {"redelivered": True}}),
        (False, {"headers": {COPY_HEADER: True}}),
        (False, {"headers": {TICK_HEADER: "2026-11-22T14:00:00"}}),
    ],
    ids=str,
)
def test_a_message_that_may_have_a_copy_leaves_a_mark(late: bool, request_: dict[str, Any]) -> None:
    label = mark_of(late=late, **request_)
    assert label
    assert label.startswith("task-1/")


def test_a_message_that_comes_once_leaves_no_mark() -> None:
    assert mark_of(late=False, headers={PUBLICATION_HEADER: NONCE}) is None


def test_an_eager_execution_leaves_no_mark() -> None:
    assert mark_of(late=True, is_eager=True) is None


@pytest.mark.parametrize("name", ["headers", "delivery_info"])
@pytest.mark.parametrize("value", ["x", [1], 1, True], ids=repr)
def test_a_message_whose_fields_are_no_mappings_is_refused(name: str, value: object) -> None:
    forged: dict[str, Any] = {"id": "task-1", name: value}
    kind = type(value).__name__
    with pytest.raises(InvalidTaskError, match=f"{name} must be a mapping, got {kind}"):
        refuse_unwritable(Context(forged))


@pytest.mark.parametrize("name", ["id", "retries", "replaced_task_nesting"])
def test_a_message_whose_label_no_node_can_store_is_refused(name: str) -> None:
    forged: dict[str, Any] = {"id": "task-1", "retries": 0, name: "\ud800"}
    with pytest.raises(InvalidTaskError, match="id or retries can't be encoded"):
        refuse_unwritable(Context(forged))


@pytest.mark.parametrize("value", [None, {}, {"x": "\ud800"}], ids=ascii)
def test_a_message_whose_label_can_be_stored_is_not_refused(value: Any) -> None:
    refuse_unwritable(Context(id="task-1", retries=0, headers=value, delivery_info=value))


@pytest.mark.parametrize(
    ("remaining", "expected"), [(0.0, True), (PROVISIONAL_S, True), (PROVISIONAL_S + 1, False)]
)
def test_a_mark_is_provisional_until_it_is_extended(remaining: float, expected: bool) -> None:
    assert is_provisional(AlreadyDone("t", remaining)) is expected


@pytest.mark.parametrize(
    ("nonce", "request_", "heeds"),
    [
        (NONCE, {}, True),
        (NONCE, {"is_eager": True}, False),
        ("", {}, False),
        ("", {"delivery_info": {"redelivered": True}}, True),
        ("", {"headers": {COPY_HEADER: True}}, True),
        ("", {"headers": {TICK_HEADER: "x"}}, True),
        ("", {"eta": "2026-01-01T00:00:00+00:00"}, True),
        ("", {"eta": "2026-01-01T00:00:00+00:00", "is_eager": True}, False),
    ],
)
def test_a_mark_is_heeded_by_what_may_be_a_copy(
    nonce: str, request_: dict[str, Any], heeds: bool
) -> None:
    request = request_of(nonce, retries=0, **request_)
    assert mark_to_heed(request) == (done_label(request) if heeds else None)
