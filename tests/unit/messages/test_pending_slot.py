"""The pending slot, on one node in memory: whose it is, and when it is released."""

from __future__ import annotations

from typing import Any

import pytest
from celery.app.task import Context

from celery_redlock.messages.headers import COPY_HEADER, PUBLICATION_HEADER
from celery_redlock.messages.pending_slot import PendingSlot
from celery_redlock.messages.reservation import Reservation, pending_slot_key
from celery_redlock.redlock.errors import LockHeld, QuorumUnavailable
from celery_redlock.redlock.lease import publication_of, task_of
from tests.support.fakes.one_node import OneNode

TTL = 60.0
KEY = "shop.sync:7"
SLOT = pending_slot_key(KEY)


def slot_of(
    node: OneNode,
    task_id: str,
    carries: Reservation | None = None,
    *,
    redelivered: bool = False,
    headers: dict[str, Any] | None = None,
) -> PendingSlot:
    """Return the slot as the message of a task sees it, with what the message carries."""
    said = {PUBLICATION_HEADER: f"{task_id:0>16}"} | (carries.header if carries else {})
    info = {"redelivered": redelivered}
    request = Context(id=task_id, headers=said | (headers or {}), delivery_info=info)
    return PendingSlot(node, KEY, request, TTL)


def test_one_message_at_a_time_has_the_slot(node: OneNode) -> None:
    reserved = slot_of(node, "1").reserve()
    assert (task_of(reserved.owner), publication_of(reserved.owner)) == ("1", f"{1:016}")
    for late in (slot_of(node, "2"), slot_of(node, "2", redelivered=True)):
        with pytest.raises(LockHeld) as caught:
            late.reserve()
        assert caught.value.key == SLOT


def test_a_message_that_carries_the_slot_renews_it(node: OneNode) -> None:
    carried = slot_of(node, "1").reserve()
    node.clock.move(TTL - 1)
    renewed = slot_of(node, "1", carried).reserve()
    assert renewed != carried
    node.clock.move(TTL - 1)
    assert node.owner_of(SLOT) == renewed.owner


def test_a_slot_whose_message_vanished_is_free_after_its_ttl(node: OneNode) -> None:
    slot_of(node, "1").reserve()
    node.clock.move(TTL + 1)
    slot_of(node, "2").reserve()


@pytest.mark.parametrize("said", [{"redelivered": True}, {"headers": {COPY_HEADER: True}}], ids=str)
def test_a_copy_replaces_the_slot_of_its_earlier_delivery(node: OneNode, said: Any) -> None:
    earlier = slot_of(node, "1").reserve()
    replaced = slot_of(node, "1", **said).reserve()
    assert node.owner_of(SLOT) == replaced.owner
    with pytest.raises(LockHeld) as caught:
        slot_of(node, "1", earlier).reserve()
    assert caught.value.owner == replaced.owner


def test_a_first_delivery_does_not_replace_the_slot(node: OneNode) -> None:
    slot_of(node, "1").reserve()
    with pytest.raises(LockHeld):
        slot_of(node, "1").reserve()


def test_a_release_tells_whether_the_slot_was_held_until_then(node: OneNode) -> None:
    carried = slot_of(node, "1").reserve()
    assert slot_of(node, "1", carried).release()
    assert node.owner_of(SLOT) is None
    assert not slot_of(node, "1", carried).release()


def test_a_message_without_the_slot_releases_nothing(node: OneNode) -> None:
    held = slot_of(node, "1").reserve()
    forged = Reservation(SLOT, "somebody:else@host")
    elsewhere = Reservation(KEY, held.owner)
    for carries in (None, forged, elsewhere):
        assert not slot_of(node, "2", carries).release()
    assert node.owner_of(SLOT) == held.owner


def test_a_slot_that_an_earlier_delivery_left_reserved_is_released(node: OneNode) -> None:
    slot_of(node, "1").reserve()
    slot_of(node, "1", redelivered=True).release_left()
    assert node.held == {}
    slot_of(node, "1", redelivered=True).release_left()


def test_a_slot_that_another_message_has_reserved_stays(node: OneNode) -> None:
    held = slot_of(node, "1").reserve()
    slot_of(node, "2", redelivered=True).release_left()
    assert node.owner_of(SLOT) == held.owner


def test_without_a_quorum_the_slot_stays_as_it_is(node: OneNode) -> None:
    carried = slot_of(node, "1").reserve()
    node.is_up = False
    for ask in (slot_of(node, "1", carried).reserve, slot_of(node, "1", carried).release):
        with pytest.raises(QuorumUnavailable):
            ask()
