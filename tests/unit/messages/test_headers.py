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
    PLACEMENT_HEADER,
    PUBLICATION_HEADER,
    REDELIVERED,
    RESERVATION_HEADER,
    TICK_HEADER,
    CarriedNonce,
    headers_to_publish,
    headers_to_requeue,
    message_headers,
    nonce_in,
    placement_header,
    placement_in,
    publication_of,
    seconds_until,
    serializer_of,
)
from celery_redlock.messages.reservation import Reservation, reservation_in
from tests.support.fakes.forged import WAITING, context_of, delivery_of
from tests.support.fakes.one_node import OneNode

NONCE = "0123456789abcdef"
OTHER = "fedcba9876543210"
REJECTED = {"queue": "work", "reason": "rejected", "count": 1}
DELAYED = {"queue": "celery_delayed_3", "reason": "expired", "count": 1}


def request_of(nonce: str = NONCE, *, task_id: str = "task-1", **more: Any) -> Context:
    headers = {PUBLICATION_HEADER: nonce} if nonce else {}
    return context_of(id=task_id, headers=headers | more.pop("headers", {}), **more)


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


# --- headers called "headers", as tracing libraries send them ------------------------------------

OURS = {
    RESERVATION_HEADER: ["t", WAITING], PUBLICATION_HEADER: NONCE, COPY_HEADER: REDELIVERED,
    ONCE_MORE_HEADER: OTHER, TICK_HEADER: "2026-01-01T00:00:00Z", DELIVERIES_HEADER: 2,
    PLACEMENT_HEADER: "1767225600 redlock a:6379/0=",
}  # fmt: skip
NESTED = {"traceparent": "00-1", PUBLICATION_HEADER: OTHER}


def test_a_header_called_headers_hides_none_of_ours() -> None:
    request = context_of({**OURS, "headers": NESTED}, id="task-1", called_directly=False)
    assert request.headers == NESTED
    assert publication_of(request) == NONCE
    assert reservation_in(message_headers(request)) == Reservation("t", WAITING)
    delivery = delivery_of(request)
    assert delivery.is_redelivered
    assert delivery.may_have_copy
    assert delivery.deliveries_before == 2


def test_headers_that_a_body_changes_or_drops_stay_known() -> None:
    request = context_of(OURS, id="task-1")
    request.headers = None
    assert publication_of(request) == NONCE
    request.headers = {PUBLICATION_HEADER: OTHER}
    assert publication_of(request) == NONCE


def test_a_requeued_message_keeps_headers_in_their_places() -> None:
    request = context_of({**OURS, "x-user": 1, "headers": NESTED}, id="task-1", lang="py")
    assert headers_to_requeue(request) == {**OURS, "x-user": 1, "headers": NESTED}
    plain = context_of({**OURS, "x-user": 1}, id="task-1", lang="py", argsrepr="()")
    assert headers_to_requeue(plain) == {**OURS, "x-user": 1}
    assert headers_to_requeue(context_of(id="task-1")) == {}


def test_a_retry_has_the_headers_of_its_run_despite_nesting() -> None:
    running = context_of({**OURS, "headers": NESTED}, id="task-1")
    # As Celery publishes a retry: with `request.headers` alone.
    headers = headers_to_publish("task-1", {"retries": 1, "headers": dict(NESTED)}, running)
    left = {name: value for name, value in OURS.items() if name != DELIVERIES_HEADER}
    assert headers == {"traceparent": "00-1", **left}


def test_headers_that_a_body_passes_on_make_no_other_call_a_tick() -> None:
    running = context_of(id="parent")
    given = {**OURS, "celery_beat_task": True, "x-user": 1}
    headers = headers_to_publish("task-2", {"headers": given}, running)
    assert headers == {"x-user": 1, PUBLICATION_HEADER: headers[PUBLICATION_HEADER]}
    assert headers[PUBLICATION_HEADER] not in (NONCE, OTHER)


def test_beats_own_ticks_keep_their_headers() -> None:
    given = {
        TICK_HEADER: "2026-01-01T00:00:00Z", "celery_beat_task": True,
        PLACEMENT_HEADER: "1767225600 redlock a:6379/0=",
    }  # fmt: skip
    assert headers_to_publish("tick", {"headers": given}, None).items() >= given.items()


# --- where a publisher locks ---------------------------------------------------------------------


def test_the_placement_of_a_publisher_is_read_with_its_time() -> None:
    node = OneNode()
    node.clock.move(0.9)
    header = placement_header(node)
    assert header == {PLACEMENT_HEADER: "1000 redlock 127.0.0.1:1/0="}
    assert placement_in(header) == (1000, "redlock 127.0.0.1:1/0=")


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (None, (0, "")), (1000, (0, "")), ([1000, "x"], (0, "")), ("", (0, "")), ("x y", (0, "")),
        ("1000", (1000, "")), ("1000 x y", (1000, "x y")), ("-1 x", (0, "")), ("² x", (0, "")),
        ("9" * 12 + " x", (int("9" * 12), "x")), ("9" * 13 + " x", (0, "")),
    ],
)  # fmt: skip
def test_a_header_of_another_form_has_no_placement(header: object, found: object) -> None:
    assert placement_in({PLACEMENT_HEADER: header}) == found
    assert placement_in({}) == (0, "")
