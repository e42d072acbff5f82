"""A message's reservation and pending slot, as its execution sees and releases them."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.messages.reservation import HEADER, Reservation
from tests.support.fakes.forged import WAITING, NewTask, message_of
from tests.support.fakes.one_node import OneNode

SLOT = Reservation("t%next", WAITING)


@pytest.mark.parametrize("key", ["t", "t:7", "t%next"])
def test_a_reservation_of_its_task_is_the_messages(new_task: NewTask, key: str) -> None:
    reserved = Reservation(key, WAITING)
    assert message_of(new_task(), headers=reserved.header).reservation == reserved


def test_a_reservation_of_another_task_is_not_the_messages(new_task: NewTask) -> None:
    headers = Reservation("other", WAITING).header
    assert message_of(new_task(), headers=headers).reservation is None


@pytest.mark.parametrize(
    ("lifetime", "is_released"), [("until_executed", True), ("until_expired", False)]
)
def test_a_reservation_is_released_unless_it_is_a_throttle(
    new_task: NewTask, node: OneNode, lifetime: str, is_released: bool
) -> None:
    node.held["t"] = WAITING, 1e9
    message = message_of(new_task(lock_lifetime=lifetime), headers={HEADER: ["t", WAITING]})
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
    new_task: NewTask, lifetime: str, late: bool, ttl: float
) -> None:
    task = new_task(lock_lifetime=lifetime, acks_late=late, lock_queue_ttl=900)
    assert message_of(task).pending_slot(5.0).ttl == ttl
    assert message_of(task).pending_slot().ttl == (ttl if ttl == 900 else 60)


def test_a_renewed_slot_supersedes_the_one_in_the_headers(new_task: NewTask, node: OneNode) -> None:
    node.held["t%next"] = WAITING, 1e9
    renewed = message_of(new_task(), headers=SLOT.header).renew_pending_slot(5.0)
    assert renewed
    assert node.owner_of("t%next") == renewed.owner != WAITING
    assert node.held["t%next"][1] == node.clock.now() + 65


def test_a_message_without_a_slot_does_not_reserve_one(new_task: NewTask, node: OneNode) -> None:
    assert message_of(new_task()).renew_pending_slot(5.0) is None
    assert node.held == {}


def test_a_slot_that_another_message_holds_is_not_renewed(
    new_task: NewTask, node: OneNode, log: Any
) -> None:
    other = f"{'2' * 32}~:other@host"
    node.held["t%next"] = other, 1e9
    assert message_of(new_task(), headers=SLOT.header).renew_pending_slot(5.0) is None
    assert node.owner_of("t%next") == other
    assert log() == []


def test_a_slot_that_has_no_quorum_is_not_renewed_and_logged(
    new_task: NewTask, node: OneNode, log: Any
) -> None:
    node.is_up = False
    assert message_of(new_task(), headers=SLOT.header).renew_pending_slot(5.0) is None
    [(level, line)] = log()
    assert level == "WARNING"
    assert line.startswith(
        "pending slot not renewed, message requeued without it key=t error=cannot"
    )
