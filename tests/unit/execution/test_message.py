"""A message's reservation and pending slot, as its execution sees and releases them."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.messages.headers import (
    COPY_HEADER,
    PLACEMENT_HEADER,
    PUBLICATION_HEADER,
    TICK_HEADER,
)
from celery_redlock.messages.headers import RESERVATION_HEADER as HEADER
from celery_redlock.messages.reservation import Reservation
from celery_redlock.redlock.lease import new_owner
from tests.support.fakes.forged import RESERVED_PERIOD, WAITING, NewTask, message_of
from tests.support.fakes.one_node import OneNode

SLOT = Reservation("t%next", WAITING)
NONCE = "0123456789abcdef"
OWN = new_owner("task-1", publication=NONCE, is_reservation=True)
RESERVED = {PUBLICATION_HEADER: NONCE, PLACEMENT_HEADER: "1 x"}
"""Headers of a message with a reservation, but for the reservation itself."""


@pytest.mark.parametrize("key", ["t", "t:7", "t%next"])
def test_a_reservation_of_its_task_is_the_messages(new_task: NewTask, key: str) -> None:
    reserved = Reservation(key, WAITING)
    assert message_of(new_task(), headers=reserved.header).delivery.reservation == reserved


def test_a_reservation_of_another_task_is_not_the_messages(new_task: NewTask) -> None:
    headers = Reservation("other", WAITING).header
    assert message_of(new_task(), headers=headers).delivery.reservation is None


@pytest.mark.parametrize(("owner", "is_released"), [(WAITING, True), (RESERVED_PERIOD, False)])
@pytest.mark.parametrize("lifetime", ["until_executed", "until_expired"])
def test_a_reservation_is_released_unless_it_is_a_period(
    new_task: NewTask, node: OneNode, lifetime: str, owner: str, is_released: bool
) -> None:
    """It says so itself: its task may have had another lifetime when it was published."""
    node.held["t"] = owner, 1e9
    message = message_of(new_task(lock_lifetime=lifetime), headers={HEADER: ["t", owner]})
    message.release_reservation()
    assert (node.owner_of("t") is None) is is_released


def test_a_message_without_a_reservation_releases_nothing(new_task: NewTask, node: OneNode) -> None:
    node.held["t"] = WAITING, 1e9
    message_of(new_task(lock_lifetime="until_executed")).release_reservation()
    assert node.owner_of("t") == WAITING


@pytest.mark.parametrize(
    ("lifetime", "late", "ttl"),
    [
        ("until_and_while_executing", True, 900),
        # Lost if its process dies before it is requeued.
        ("until_and_while_executing", False, 65),
        ("while_executing", True, 65),
    ],
)
def test_a_slot_lasts_as_long_as_its_message_can_come_back(
    new_task: NewTask, node: OneNode, lifetime: str, late: bool, ttl: float
) -> None:
    reserved = {"lock_queue_ttl": 900} if lifetime != "while_executing" else {}
    task = new_task(lock_lifetime=lifetime, acks_late=late, **reserved)
    message_of(task).reserve_slot(5.0)
    assert node.held["t%next"][1] == node.clock.now() + ttl


def test_a_renewed_slot_supersedes_the_one_in_the_headers(new_task: NewTask, node: OneNode) -> None:
    node.held["t%next"] = WAITING, 1e9
    renewed = message_of(new_task(), headers=SLOT.header).renew_slot(5.0)
    assert renewed
    assert node.owner_of("t%next") == renewed.owner != WAITING
    assert node.held["t%next"][1] == node.clock.now() + 65


def test_a_message_without_a_slot_does_not_reserve_one(new_task: NewTask, node: OneNode) -> None:
    assert message_of(new_task()).renew_slot(5.0) is None
    assert node.held == {}


def test_a_slot_that_another_message_holds_is_not_renewed(
    new_task: NewTask, node: OneNode, log: Any
) -> None:
    other = f"{'2' * 32}~:other@host"
    node.held["t%next"] = other, 1e9
    assert message_of(new_task(), headers=SLOT.header).renew_slot(5.0) is None
    assert node.owner_of("t%next") == other
    assert log() == []


def test_a_slot_that_has_no_quorum_is_not_renewed_and_logged(
    new_task: NewTask, node: OneNode, log: Any
) -> None:
    node.is_up = False
    assert message_of(new_task(), headers=SLOT.header).renew_slot(5.0) is None
    [(level, line)] = log()
    assert level == "WARNING"
    assert line.startswith(
        "pending slot not renewed, message requeued without it key=t error=cannot"
    )


# --- a slot that the headers don't name -----------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [{}, SLOT.header, {HEADER: ["t", WAITING]}, {HEADER: ["t:7", WAITING]}, {HEADER: None}],
    ids=str,
)
def test_a_slot_is_released_though_the_headers_name_another(
    new_task: NewTask, node: OneNode, given: dict[str, Any]
) -> None:
    node.held |= {"t%next": (OWN, 1e9), "t:7": (WAITING, 1e9)}
    task = new_task(lock_lifetime="until_and_while_executing")
    message_of(task, headers={**RESERVED, **given}).release_reservation()
    assert node.owner_of("t%next") is None


@pytest.mark.parametrize(
    ("lifetime", "owner", "headers"),
    [
        ("until_and_while_executing", WAITING, RESERVED),
        ("until_and_while_executing", OWN, {**RESERVED, PUBLICATION_HEADER: NONCE[::-1]}),
        # Its publisher held nothing: in a canvas, or without a quorum.
        ("until_and_while_executing", OWN, {PUBLICATION_HEADER: NONCE}),
        # Another copy may have renewed the slot.
        ("until_and_while_executing", OWN, {**RESERVED, COPY_HEADER: True}),
        ("until_and_while_executing", OWN, {**RESERVED, TICK_HEADER: "now"}),
        ("while_executing", OWN, RESERVED),
    ],
    ids=["waiting", "publication", "canvas", "copy", "tick", "lifetime"],
)
def test_a_slot_that_may_be_anothers_stays(
    new_task: NewTask, node: OneNode, lifetime: str, owner: str, headers: dict[str, Any]
) -> None:
    node.held["t%next"] = owner, 1e9
    message_of(new_task(lock_lifetime=lifetime), headers=headers).release_reservation()
    assert node.owner_of("t%next") == owner


def test_a_slot_that_was_released_is_not_looked_for(new_task: NewTask, node: OneNode) -> None:
    node.held["t%next"] = WAITING, 1e9
    task = new_task(lock_lifetime="until_and_while_executing")
    message = message_of(task, headers={**RESERVED, **SLOT.header})
    looked: list[str] = []
    node.read_holder = looked.append  # type: ignore[method-assign,assignment]
    message.release_reservation()
    assert looked == []
    assert node.held == {}


def test_a_slot_that_can_t_be_looked_for_is_logged(
    new_task: NewTask, node: OneNode, log: Any
) -> None:
    node.unanswered.add("t%next")
    task = new_task(lock_lifetime="until_and_while_executing")
    message_of(task, headers=RESERVED).release_reservation()
    [(level, line)] = log()
    assert level == "WARNING"
    assert line.startswith("reservation not released, it expires by its ttl key=t%next count=1")
