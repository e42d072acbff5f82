"""Reservations: which headers carry one, and who releases which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_redlock import LockHeld, QuorumUnavailable
from celery_redlock.messages import reservation
from celery_redlock.messages.headers import RESERVATION_HEADER as HEADER
from celery_redlock.messages.reservation import (
    Reservation,
    is_pending_slot_key,
    pending_slot_key,
    release_all,
    release_reservation,
    reservation_in,
    reservation_of,
    reserve,
)
from celery_redlock.redlock.lease import is_reservation, publication_of, task_of
from tests.support.fakes.forged import HOLDER, PERIOD, RESERVED_PERIOD, WAITING
from tests.support.fakes.one_node import OneNode

OTHER = f"{'2' * 32}~:other@host"
NONCE = "0123456789abcdef"


def test_a_reservation_is_read_from_the_header_it_writes() -> None:
    reserved = Reservation("t", WAITING)
    assert reservation_in(reserved.header) == reserved


@pytest.mark.parametrize(
    "value",
    [
        None, "x", [], ["t"], ["t", WAITING, 1], ["t", 1], [1, WAITING], {"t": WAITING},
        # A lease, which no message may end, and texts that no node can store.
        ["t", HOLDER], ["t", "waiting@host"], ["\ud800", WAITING], ["t", WAITING + "\ud800"],
        ["t" * 1025, WAITING],
    ],
    ids=ascii,
)  # fmt: skip
def test_a_header_that_is_not_a_reservation_is_ignored(value: object) -> None:
    assert reservation_in({HEADER: value}) is None


@pytest.mark.parametrize("headers", [None, "x", [HEADER], {}], ids=repr)
def test_headers_without_a_reservation_carry_none(headers: Any) -> None:
    assert reservation_in(headers) is None


@pytest.mark.parametrize(
    ("key", "is_its_own"),
    [("t", True), ("t:7", True), ("t%next", True), ("t:7%next", True), ("t2", False),
     ("t2:7", False), ("other", False), ("", False), ("t%next%next", False)],
)  # fmt: skip
def test_only_a_reservation_of_the_tasks_keys_is_its_own(key: str, is_its_own: bool) -> None:
    headers = Reservation(key, WAITING).header
    assert (reservation_of("t", headers) is not None) is is_its_own


def test_a_new_reservation_names_its_message(node: OneNode) -> None:
    reserved = reserve(node, "t", 60.0, "task-1", NONCE)
    assert node.owner_of("t") == reserved.owner
    assert is_reservation(reserved.owner)
    assert (task_of(reserved.owner), publication_of(reserved.owner)) == ("task-1", NONCE)
    assert node.held["t"][1] == node.clock.now() + 60


@pytest.mark.parametrize(
    "replaces", [None, Reservation("t", OTHER), Reservation("t:7", WAITING)], ids=str
)
def test_a_key_that_another_holds_is_not_reserved(
    node: OneNode, replaces: Reservation | None
) -> None:
    node.held["t"] = WAITING, 1e9
    with pytest.raises(LockHeld):
        reserve(node, "t", 60.0, "task-1", NONCE, replaces)
    assert node.owner_of("t") == WAITING


def test_a_reservation_is_announced_before_it_is_made(
    node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced: list[object] = []

    def announcer(*of: object) -> Callable[[str], None]:
        def announce(owner: str) -> None:
            announced.append((of, owner, dict(node.held)))

        return announce

    monkeypatch.setattr(reservation, "announcer", announcer)
    reserved = reserve(node, "t", 60.0, "task-1", NONCE)
    assert announced == [((node, "t", 60.0), reserved.owner, {})]


def test_a_reservation_supersedes_the_one_it_replaces(node: OneNode) -> None:
    node.held["t"] = WAITING, 1e9
    reserved = reserve(node, "t", 60.0, "task-1", NONCE, Reservation("t", WAITING))
    assert node.owner_of("t") == reserved.owner != WAITING


# --- released -------------------------------------------------------------------------------------


def test_a_release_leaves_the_reservation_of_another(node: OneNode) -> None:
    node.held["t"] = OTHER, 1e9
    release_reservation(node, Reservation("t", WAITING))
    assert node.owner_of("t") == OTHER
    release_reservation(node, Reservation("t", OTHER))
    assert node.held == {}


def test_releases_that_fail_are_logged_once_and_so_is_their_end(node: OneNode, log: Any) -> None:
    reserved = Reservation("t", WAITING)
    node.is_up = False
    for _ in range(3):
        release_reservation(node, reserved)
    node.is_up = True
    for _ in range(2):
        release_reservation(node, reserved)
    logged = log()
    assert "error=cannot release 't'" in logged[0][1]
    lines = [(level, line.partition(" error=")[0]) for level, line in logged]
    failed = "reservation not released, it expires by its ttl key=t count={}"
    assert lines == [
        ("WARNING", failed.format(1)),
        ("DEBUG", failed.format(2)),
        ("DEBUG", failed.format(3)),
        ("WARNING", "reservations are released again count=3"),
    ]


@pytest.mark.parametrize(
    ("held", "left"),
    [
        ({}, {}),
        ({"t": WAITING}, {}),
        ({"t%next": WAITING}, {}),
        ({"t": HOLDER}, {"t": HOLDER}),
        ({"t": HOLDER, "t%next": WAITING}, {"t": HOLDER}),
        # Nothing runs in a throttle's period.
        ({"t": PERIOD}, {}),
        ({"t": RESERVED_PERIOD}, {}),
        ({"t:7": WAITING}, {"t:7": WAITING}),
    ],
    ids=str,
)
def test_all_reservations_of_a_key_are_released_but_no_lease(
    node: OneNode, held: dict[str, str], left: dict[str, str]
) -> None:
    node.held = {key: (owner, 1e9) for key, owner in held.items()}
    assert release_all(node, "t") is (left != held)
    assert {key: owner for key, (owner, _) in node.held.items()} == left


def test_one_of_two_reservations_may_be_gone_when_it_is_released(
    node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.held = {"t": (WAITING, 1e9), "t%next": (WAITING, 1e9)}
    monkeypatch.setattr(node, "release_owner", lambda key, _owner: key == "t")
    assert release_all(node, "t")


def test_a_release_of_all_without_a_quorum_raises(node: OneNode) -> None:
    node.unanswered.add(pending_slot_key("t"))
    with pytest.raises(QuorumUnavailable):
        release_all(node, "t")


def test_a_pending_slot_is_told_by_its_key() -> None:
    assert is_pending_slot_key(pending_slot_key("t"))
    assert not is_pending_slot_key("t")


def test_no_key_of_a_task_is_that_of_a_pending_slot() -> None:
    assert reservation.pending_slot_key("t") == "t%next"
    assert reservation_of("t%next", Reservation("t%next", WAITING).header) is None
