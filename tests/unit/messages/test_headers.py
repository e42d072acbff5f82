"""What a message tells of itself: which publication it is, and whether it may be a copy."""

from __future__ import annotations

import copy
import datetime as dt
from typing import Any

import pytest
from celery.app.task import Context

from celery_redlock.messages.headers import (
    COPY_HEADER,
    DEATH_HEADERS,
    DELIVERIES_HEADER,
    ONCE_MORE_HEADER,
    PUBLICATION_HEADER,
    TICK_HEADER,
    CarriedNonce,
    begin_once_more,
    deliveries_before,
    headers_to_publish,
    is_counted_by_broker,
    is_of,
    nonce_in,
    publication_of,
    seconds_until,
    serializer_of,
)
from celery_redlock.redlock.lease import new_owner

NONCE = "0123456789abcdef"
OTHER = "fedcba9876543210"
REJECTED = {"queue": "work", "reason": "rejected", "count": 1}
DELAYED = {"queue": "celery_delayed_3", "reason": "expired", "count": 1}


def request_of(nonce: str = NONCE, *, task_id: str = "task-1", **more: Any) -> Context:
    headers = {PUBLICATION_HEADER: nonce} if nonce else {}
    return Context(id=task_id, headers=headers | more.pop("headers", {}), **more)


def published(task_id: str = "task-1", *, running: Context | None = None, **options: Any) -> str:
    return nonce_in(headers_to_publish(task_id, options, running))


# --- a nonce for each publication -----------------------------------------------------------------


def test_each_publication_of_one_task_id_has_its_own_nonce() -> None:
    assert len({published() for _ in range(100)}) == 100


def test_headers_copied_by_a_producer_lose_the_nonce() -> None:
    assert published(headers={PUBLICATION_HEADER: NONCE}) not in ("", NONCE)


def test_a_message_that_goes_back_keeps_its_nonce() -> None:
    assert published(headers={PUBLICATION_HEADER: CarriedNonce(NONCE)}) == NONCE
    # Signatures copy their options.
    assert published(headers=copy.deepcopy({PUBLICATION_HEADER: CarriedNonce(NONCE)})) == NONCE


def test_a_message_without_a_nonce_goes_back_without_one() -> None:
    assert published(headers={PUBLICATION_HEADER: CarriedNonce("")}) == ""


def test_a_tick_published_by_two_replicas_has_one_nonce() -> None:
    headers = {TICK_HEADER: "2026-01-01T00:00:00Z"}
    assert published("tick", headers=headers) == published("tick", headers=headers)
    later = {TICK_HEADER: "2026-01-01T00:01:00Z"}
    assert published("tick", headers=headers) != published("tick", headers=later)


@pytest.mark.parametrize("what", ["retries", "replaced_task_nesting"])
def test_the_next_try_has_the_nonce_of_the_run_that_sends_it(what: str) -> None:
    options: dict[str, Any] = {what: 1}
    assert published(running=request_of(), **options) == NONCE
    assert published(running=request_of(""), **options) == ""
    # The main process publishes a try, too; nothing runs there.
    assert published(headers={PUBLICATION_HEADER: NONCE}, **options) == NONCE


@pytest.mark.parametrize("what", ["retries", "replaced_task_nesting"])
def test_the_next_try_that_somebody_else_sends_keeps_its_nonce(what: str) -> None:
    """As Celery does for a message that it requeues, and for a body that sends another's retry."""
    options: dict[str, Any] = {what: 1, "headers": {PUBLICATION_HEADER: NONCE}}
    assert published(running=None, **options) == NONCE
    assert published(running=request_of(OTHER, task_id="parent"), **options) == NONCE


@pytest.mark.parametrize("nonce", ["", "no nonce"])
def test_a_next_try_without_a_nonce_gets_no_header(nonce: str) -> None:
    options = {"retries": 1, "headers": {PUBLICATION_HEADER: nonce} if nonce else {}}
    assert PUBLICATION_HEADER not in headers_to_publish("task-1", options, None)


def test_a_run_once_more_is_known_by_a_nonce_of_its_own() -> None:
    shared = {PUBLICATION_HEADER: NONCE}
    request = Context(id="task-1", headers=shared)
    begin_once_more(request)
    first = nonce_in(request.headers, ONCE_MORE_HEADER)
    assert first not in ("", NONCE)
    assert nonce_in(request.headers) == NONCE
    assert shared == {PUBLICATION_HEADER: NONCE}, "the worker may have it elsewhere"
    begin_once_more(request)
    assert nonce_in(request.headers, ONCE_MORE_HEADER) not in ("", first)
    bare = Context(id="task-1", headers=None)
    begin_once_more(bare)
    assert list(bare.headers or ()) == [ONCE_MORE_HEADER]


def test_a_message_sent_by_another_tasks_run_has_its_own_nonce() -> None:
    assert published(running=request_of(task_id="parent")) not in ("", NONCE)


@pytest.mark.parametrize(
    "value", [None, 5, b"0" * 16, ["x"], "", "0" * 15, "0" * 17, "0" * 15 + "G", "\udcff" * 16]
)
def test_what_can_not_be_a_nonce_is_ignored(value: object) -> None:
    assert nonce_in({PUBLICATION_HEADER: value}) == ""


# --- dead letters ---------------------------------------------------------------------------------


def test_no_message_is_published_with_dead_letter_headers() -> None:
    headers = dict.fromkeys(DEATH_HEADERS, "work") | {"kept": 1}
    assert set(headers_to_publish("task-1", {"headers": headers}, None)) == {
        "kept",
        PUBLICATION_HEADER,
    }


def test_each_return_of_a_dead_letter_is_another_publication() -> None:
    deaths: list[Any] = [[], [REJECTED], [REJECTED | {"count": 2}], [{}, REJECTED, REJECTED]]
    requests = [request_of(headers={"x-death": entries}) for entries in deaths]
    assert len({publication_of(request) for request in requests}) == len(requests)
    again = request_of(headers={"x-death": [REJECTED]})
    assert publication_of(again) == publication_of(requests[1])


def test_a_death_that_is_not_counted_is_one() -> None:
    counts: list[Any] = [{}, {"count": 1}, {"count": None}, {"count": "3"}]
    entries = [[{"queue": "work", **count}] for count in counts]
    requests = [request_of(headers={"x-death": deaths}) for deaths in entries]
    [found] = {publication_of(request) for request in requests}
    assert found != NONCE
    twice = request_of(headers={"x-death": [{"queue": "work"}, {"queue": "work"}]})
    assert publication_of(twice) == publication_of(
        request_of(headers={"x-death": [{"queue": "work", "count": 2}]})
    )


def test_any_text_makes_a_tick_s_nonce() -> None:
    assert published("tick \udcff", headers={TICK_HEADER: "x"})


def test_a_delay_in_the_broker_does_not_make_a_dead_letter() -> None:
    assert publication_of(request_of(headers={"x-death": [DELAYED]})) == NONCE


@pytest.mark.parametrize("deaths", [None, 5, "x", {}, ["x"], [None]])
def test_what_can_not_be_deaths_is_ignored(deaths: object) -> None:
    assert publication_of(request_of(headers={"x-death": deaths})) == NONCE


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
    assert is_of(owner, request_of(own, **request_)) is expected
    assert not is_of(owner, request_of(own, task_id="task-2", **request_))


@pytest.mark.parametrize(
    ("value", "serializer"),
    [
        ("json", "json"),
        ("pickle", "pickle"),
        (None, None),
        ("x", None),
        ([1], None),
        ("\ud800", None),
    ],
    ids=ascii,
)
def test_a_serializer_that_nobody_knows_is_none(value: object, serializer: str | None) -> None:
    assert serializer_of(Context(redlock_serializer=value, get=0)) == serializer


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
    assert deliveries_before(request_of(headers=headers, **more)) == expected


@pytest.mark.parametrize(("count", "counts"), [(None, False), (0, False), (1, True), (2, True)])
def test_a_broker_that_counts_has_counted_one_delivery(count: int | None, counts: bool) -> None:
    headers = {} if count is None else {"x-delivery-count": count}
    assert is_counted_by_broker(request_of(headers=headers)) is counts


# --- how long until then --------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["2020-01-01T00:00:00+00:00", "2020-01-01T00:00:00"])
def test_a_moment_in_iso_8601_is_in_utc_unless_it_says_otherwise(moment: str) -> None:
    found = seconds_until(moment)
    began = dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc)
    assert found == pytest.approx(
        (began - dt.datetime.now(dt.timezone.utc)).total_seconds(), abs=60
    )
    assert seconds_until(began) == pytest.approx(found, abs=60)
    assert seconds_until(began.replace(tzinfo=None)) == pytest.approx(found, abs=60)


@pytest.mark.parametrize(("moment", "seconds"), [(None, None), (0, 0.0), (-3, -3.0), (2.5, 2.5)])
def test_a_countdown_is_its_seconds(moment: float | None, seconds: float | None) -> None:
    assert seconds_until(moment) == seconds


def test_only_a_message_that_goes_back_carries_the_count() -> None:
    headers = {DELIVERIES_HEADER: 4, "x-delivery-count": 3, PUBLICATION_HEADER: NONCE}
    assert set(headers_to_publish("task-1", {"headers": headers}, None)) == {PUBLICATION_HEADER}
    headers[PUBLICATION_HEADER] = CarriedNonce(NONCE)
    carried = headers_to_publish("task-1", {"headers": headers}, None)
    assert carried == {PUBLICATION_HEADER: NONCE, DELIVERIES_HEADER: 4}
