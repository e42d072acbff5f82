"""What one delivery of a message tells: its owners, its copies, its count and its done marks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery.app.task import Context
from celery.exceptions import InvalidTaskError

from celery_redlock.messages.delivery import Delivery
from celery_redlock.messages.headers import (
    COPY_HEADER,
    DELIVERIES_HEADER,
    ONCE_MORE_HEADER,
    PUBLICATION_HEADER,
    TICK_HEADER,
    message_headers,
    nonce_in,
)
from celery_redlock.redlock.lease import new_owner
from tests.support.fakes.forged import context_of, delivery_of

NONCE = "0123456789abcdef"
OTHER = "fedcba9876543210"
REJECTED = {"queue": "work", "reason": "rejected", "count": 1}
DELAYED = {"queue": "celery_delayed_3", "reason": "expired", "count": 1}


def delivery(
    nonce: str = NONCE, *, task_id: Any = "task-1", headers: Any = None, **more: Any
) -> Delivery:
    carried = {PUBLICATION_HEADER: nonce} if nonce else {}
    return delivery_of(context_of(id=task_id, headers=carried | (headers or {}), **more))


# --- the same message -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("holders", "own", "request_", "expected"),
    [
        (NONCE, NONCE, {}, True),
        (NONCE, NONCE, {"retries": 1}, True),
        (NONCE, OTHER, {}, False),
        # A copy, but of the other message.
        (NONCE, OTHER, {"delivery_info": {"redelivered": True}}, False),
        (NONCE, "", {"delivery_info": {"redelivered": True}}, False),
        ("", "", {}, False),
        ("", "", {"delivery_info": {"redelivered": True}}, True),
        ("", "", {"eta": "2026-01-01T00:00:00+00:00"}, True),
        ("", "", {"headers": {COPY_HEADER: True}}, True),
        ("", "", {"headers": {TICK_HEADER: "x"}}, True),
        ("", "", {"retries": 1}, True),
        ("", "", {"replaced_task_nesting": 1}, True),
    ],
)
@pytest.mark.parametrize("is_reservation", [False, True])
def test_the_holder_is_the_same_message_if_publications_match(
    holders: str, own: str, request_: dict[str, Any], expected: bool, is_reservation: bool
) -> None:
    owner = new_owner("task-1", "host", publication=holders, is_reservation=is_reservation)
    assert delivery(own, **request_).has_owner(owner) is expected
    assert not delivery(own, task_id="task-2", **request_).has_owner(owner)


@pytest.mark.parametrize("task_id", ["\ud800", "x" * 1_200_000, 5], ids=["surrogate", "long", "5"])
def test_a_message_of_any_id_knows_its_own_owner(task_id: Any) -> None:
    owner = new_owner(task_id, "host", publication=NONCE)
    assert delivery(task_id=task_id).has_owner(owner)
    assert not delivery(task_id=f"{task_id}2").has_owner(owner)


# --- how often it was delivered -------------------------------------------------------------------

FLAGGED = {"delivery_info": {"redelivered": True}}


@pytest.mark.parametrize(
    ("headers", "more", "expected"),
    [
        ({}, {}, 0),
        ({}, FLAGGED, 1),
        ({"x-delivery-count": 3}, FLAGGED, 3),
        ({DELIVERIES_HEADER: 4, "x-delivery-count": 3}, FLAGGED, 7),
        ({DELIVERIES_HEADER: 4}, FLAGGED, 5),
        ({DELIVERIES_HEADER: 4}, {}, 4),
        # A dead letter that came back.
        ({DELIVERIES_HEADER: 4, "x-death": [REJECTED]}, {}, 0),
        ({DELIVERIES_HEADER: 4, "x-death": [DELAYED]}, {}, 4),
        ({DELIVERIES_HEADER: -1, "x-delivery-count": "3"}, {}, 0),
        ({"x-delivery-count": 1}, FLAGGED, 1),
        ({"x-delivery-count": 0}, FLAGGED, 1),
        ({DELIVERIES_HEADER: 10**6}, {}, 10**6),
        ({DELIVERIES_HEADER: 10**6 + 1}, {}, 0),
        ({DELIVERIES_HEADER: 10**9, "x-delivery-count": True}, {}, 0),
    ],
)
def test_deliveries_are_counted_across_returns_to_the_queue(
    headers: dict[str, Any], more: dict[str, Any], expected: int
) -> None:
    assert delivery(headers=headers, **more).deliveries_before == expected


@pytest.mark.parametrize(("count", "counts"), [(None, False), (0, False), (1, True), (2, True)])
def test_a_broker_that_counts_has_counted_one_delivery(count: int | None, counts: bool) -> None:
    headers = {} if count is None else {"x-delivery-count": count}
    assert delivery(headers=headers).is_counted_by_broker is counts


@pytest.mark.parametrize(
    ("info", "count", "expected"),
    [
        ({"routing_key": "q"}, 1, {"routing_key": "q", "redelivered": True}),
        (None, 1, {"redelivered": True}),
        ({"redelivered": False}, 0, {"redelivered": False}),
        (None, 0, None),
    ],
)
def test_the_body_learns_of_deliveries_before_a_return_to_the_queue(
    info: dict[str, Any] | None, count: int, expected: dict[str, Any] | None
) -> None:
    before = info and {**info}
    own = delivery(headers={DELIVERIES_HEADER: count}, delivery_info=info)
    own.flag_redelivered()
    assert own.request.delivery_info == expected
    assert info == before, "the worker may share it"


# --- done marks -----------------------------------------------------------------------------------


def mark_of(*, late: bool, **request: Any) -> str | None:
    task = SimpleNamespace(name="t", acks_late=late)
    context = context_of(**{"id": "task-1", "retries": 0, **request})
    return delivery_of(context, task).mark_to_leave


def checked(*, late: bool = True, **request: Any) -> tuple[str, ...]:
    """Return the marks that end an execution: its own first, then those of its retries."""
    task = SimpleNamespace(name="t", acks_late=late)
    headers = {PUBLICATION_HEADER: NONCE, **request.pop("headers", {})}
    context = context_of(**{"id": "task-1", "retries": 0, **request}, headers=headers)
    return delivery_of(context, task).marks_to_check


def label_of_retry(**request: Any) -> str:
    return checked(**{**FLAGGED, **request})[1]


def test_each_try_replacement_and_publication_has_its_own_mark() -> None:
    labels = [
        delivery(nonce, retries=retries, replaced_task_nesting=nesting).done_label
        for nonce in ("", NONCE, NONCE[::-1])
        for retries in range(3)
        for nesting in range(3)
    ]
    assert len(set(labels)) == 27


def test_a_message_of_unknown_publication_is_told_by_id_and_try() -> None:
    assert delivery("", retries=2).done_label == "task-1/2"


def test_the_label_of_a_retry_is_that_of_its_message() -> None:
    retry = delivery(retries=2)
    assert label_of_retry(retries=1) == retry.done_label == f"task-1/2/{NONCE}"


def test_a_copy_is_ended_by_the_mark_of_any_of_the_next_retries() -> None:
    request: dict[str, Any] = {**FLAGGED, "retries": 1}
    labels = [delivery(retries=retries).done_label for retries in range(1, 7)]
    assert checked(**request) == tuple(labels)


def test_a_run_once_more_and_its_retry_have_marks_of_their_own() -> None:
    first, again = (delivery(headers={ONCE_MORE_HEADER: nonce}) for nonce in ("", NONCE[::-1]))
    assert first.done_label == f"task-1/0/{NONCE}"
    assert again.done_label == f"task-1/0/{NONCE}+{NONCE[::-1]}"
    retry = delivery(retries=1, headers=again.request.headers)
    assert label_of_retry(headers=again.request.headers) == retry.done_label
    assert label_of_retry(headers=first.request.headers) != retry.done_label


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


@pytest.mark.parametrize(
    ("late", "request_", "count"),
    [
        (True, FLAGGED, 2),
        (True, {"headers": {COPY_HEADER: True}}, 2),
        (True, {}, 1),
        (False, FLAGGED, 1),
        (True, {**FLAGGED, "is_eager": True}, 0),
    ],
    ids=str,
)
def test_only_a_copy_of_a_late_acked_message_looks_for_a_retry(
    late: bool, request_: dict[str, Any], count: int
) -> None:
    labels = (f"task-1/0/{NONCE}", f"task-1/1/{NONCE}")
    assert checked(late=late, **request_)[:2] == labels[:count]


@pytest.mark.parametrize("name", ["headers", "delivery_info"])
@pytest.mark.parametrize("value", ["x", [1], 1, True], ids=repr)
def test_a_message_whose_fields_are_no_mappings_is_refused(name: str, value: object) -> None:
    forged: dict[str, Any] = {"id": "task-1", name: value}
    kind = type(value).__name__
    with pytest.raises(InvalidTaskError, match=f"{name} must be a mapping, got {kind}"):
        delivery_of(Context(forged))


@pytest.mark.parametrize("name", ["retries", "replaced_task_nesting"])
def test_a_message_whose_label_no_node_can_store_is_refused(name: str) -> None:
    forged: dict[str, Any] = {"id": "task-1", "retries": 0, name: "\ud800"}
    with pytest.raises(InvalidTaskError, match="retries can't be encoded"):
        delivery_of(Context(forged))


@pytest.mark.parametrize("task_id", ["\ud800", "x" * 1_200_000], ids=["surrogate", "long"])
def test_a_message_of_any_id_has_a_label_that_is_stored(task_id: str) -> None:
    request = delivery(task_id=task_id, retries=0)
    assert len(request.done_label.encode()) <= 768
    assert request.done_label != label_of_retry(task_id=task_id)
    assert request.done_label != delivery(task_id=task_id + "2", retries=0).done_label


def test_a_forged_retry_is_stored_within_bounds() -> None:
    request = delivery(retries="x" * 1_200_000)
    assert len(request.done_label.encode()) <= 768


@pytest.mark.parametrize("value", [None, {}, {"x": "\ud800"}], ids=ascii)
def test_a_message_whose_label_can_be_stored_is_not_refused(value: Any) -> None:
    delivery_of(Context(id="task-1", retries=0, headers=value, delivery_info=value))


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
    request = delivery(nonce, retries=0, **request_)
    assert request.marks_to_check[:1] == ((request.done_label,) if heeds else ())


def test_a_run_once_more_is_known_by_a_nonce_of_its_own() -> None:
    own = delivery()
    request = own.request
    own.begin_once_more()
    first = nonce_in(message_headers(request), ONCE_MORE_HEADER)
    assert first not in ("", NONCE)
    assert own.publication == NONCE
    assert request.headers == {PUBLICATION_HEADER: NONCE}, "the worker may have it elsewhere"
    own.begin_once_more()
    assert nonce_in(message_headers(request), ONCE_MORE_HEADER) not in ("", first)
