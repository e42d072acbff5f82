"""The pending slot, on one node in memory: whose it is, and when it is released."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from celery_redlock.execution.message import Message
from celery_redlock.messages.headers import COPY_HEADER, PUBLICATION_HEADER
from celery_redlock.messages.reservation import Reservation, pending_slot_key
from celery_redlock.redlock.errors import LockHeld, QuorumUnavailable
from celery_redlock.redlock.lease import publication_of, task_of
from tests.support.fakes.forged import NewTask, message_of
from tests.support.fakes.one_node import OneNode

TTL = 60.0
KEY = "t"
SLOT = pending_slot_key(KEY)
NewMessage = Callable[..., Message]


@pytest.fixture
def slot_of(new_task: NewTask) -> NewMessage:
    """Make the message of a task, with what it carries: `slot_of(task_id, reservation, ...)`."""
    task = new_task()

    def new(
        task_id: str, carries: Reservation | None = None, *, headers: Any = None, **more: Any
    ) -> Message:
        said = {PUBLICATION_HEADER: f"{task_id:0>16}"} | (carries.header if carries else {})
        return message_of(task, id=task_id, headers=said | (headers or {}), **more)

    return new


def test_one_message_at_a_time_has_the_slot(node: OneNode, slot_of: NewMessage) -> None:
    reserved = slot_of("1").reserve_slot(0.0)
    assert (task_of(reserved.owner), publication_of(reserved.owner)) == ("1", f"{1:016}")
    for late in (slot_of("2"), slot_of("2", redelivered=True)):
        with pytest.raises(LockHeld) as caught:
            late.reserve_slot(0.0)
        assert caught.value.key == SLOT


def test_a_message_that_carries_the_slot_renews_it(node: OneNode, slot_of: NewMessage) -> None:
    carried = slot_of("1").reserve_slot(0.0)
    node.clock.move(TTL - 1)
    renewed = slot_of("1", carried).reserve_slot(0.0)
    assert renewed != carried
    node.clock.move(TTL - 1)
    assert node.owner_of(SLOT) == renewed.owner


def test_a_slot_whose_message_vanished_is_free_after_its_ttl(
    node: OneNode, slot_of: NewMessage
) -> None:
    slot_of("1").reserve_slot(0.0)
    node.clock.move(TTL + 1)
    slot_of("2").reserve_slot(0.0)


@pytest.mark.parametrize("said", [{"redelivered": True}, {"headers": {COPY_HEADER: True}}], ids=str)
def test_a_copy_replaces_the_slot_of_its_earlier_delivery(
    node: OneNode, slot_of: NewMessage, said: Any
) -> None:
    earlier = slot_of("1").reserve_slot(0.0)
    replaced = slot_of("1", **said).reserve_slot(0.0)
    assert node.owner_of(SLOT) == replaced.owner
    with pytest.raises(LockHeld) as caught:
        slot_of("1", earlier).reserve_slot(0.0)
    assert caught.value.owner == replaced.owner


def test_a_release_tells_whether_the_slot_was_held_until_then(
    node: OneNode, slot_of: NewMessage
) -> None:
    carried = slot_of("1").reserve_slot(0.0)
    assert slot_of("1", carried).release_slot()
    assert node.owner_of(SLOT) is None
    assert not slot_of("1", carried).release_slot()


def test_a_message_without_the_slot_releases_nothing(node: OneNode, slot_of: NewMessage) -> None:
    held = slot_of("1").reserve_slot(0.0)
    forged = Reservation(SLOT, "somebody:else@host")
    elsewhere = Reservation(KEY, held.owner)
    for carries in (None, forged, elsewhere):
        assert not slot_of("2", carries).release_slot()
    assert node.owner_of(SLOT) == held.owner


def test_without_a_quorum_the_slot_stays_as_it_is(node: OneNode, slot_of: NewMessage) -> None:
    carried = slot_of("1").reserve_slot(0.0)
    node.is_up = False
    for ask in (
        partial(slot_of("1", carried).reserve_slot, 0.0),
        slot_of("1", carried).release_slot,
    ):
        with pytest.raises(QuorumUnavailable):
            ask()
