"""What a new call would get, by the nodes' views of its lock."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.config.declared_options import lock_options
from celery_redlock.config.options import LockOptions, OnConflict
from celery_redlock.operate.lock_view import LockView, next_call
from celery_redlock.operate.locks import View, lock_of
from celery_redlock.operate.removal import consequence
from celery_redlock.redlock.lease import new_owner
from celery_redlock.redlock.protocol.replies import Failed

HELD = View(new_owner("task-1"), 9, 5)
OTHER = View(new_owner("task-2"), 9, 6)
RESERVED = View(new_owner("task-3", is_reservation=True), 9, 0)
FREE = View("", 0, 0)
DOWN = Failed("down")


def view(*views: View | Failed, pending: tuple[View | Failed, ...] = ()) -> LockView:
    return LockView("k", ["a", "b", "c"], views, pending)


def options(**declared: Any) -> LockOptions:
    return lock_options(
        "t", {f"lock_{name}": value for name, value in declared.items()}, {}, max_ttl=60.0
    )


@pytest.mark.parametrize(
    "views", [(FREE, FREE, FREE), (HELD, FREE, FREE), (FREE, DOWN, FREE), (FREE, HELD, FREE)]
)
def test_a_quorum_of_free_nodes_grants_the_lock(views: tuple[View, ...]) -> None:
    assert next_call(view(*views), options()).startswith("it acquires the lock")


@pytest.mark.parametrize("views", [(HELD, HELD, HELD), (HELD, HELD, FREE), (HELD, DOWN, HELD)])
def test_a_holder_with_a_majority_refuses_it(views: tuple[View, ...]) -> None:
    for policy in OnConflict:
        said = next_call(view(*views), options(on_conflict=policy.value))
        assert said.startswith("task-1 holds the lock: it ")
        assert f'"{policy.value}"' in said
    assert next_call(view(*views), None).startswith("task-1 holds the lock: it does not run")


@pytest.mark.parametrize("views", [(HELD, OTHER, FREE), (HELD, DOWN, FREE)])
def test_split_nodes_grant_it_to_nobody_yet(views: tuple[View, ...]) -> None:
    assert next_call(view(*views), options()).startswith("the nodes are split")


def test_without_a_quorum_nothing_is_known() -> None:
    said = next_call(view(FREE, DOWN, DOWN), options(on_unavailable="raise"))
    assert said.startswith("no quorum: 1 of 3 nodes answered, 2 are needed")
    assert said.endswith(": raise")


@pytest.mark.parametrize("lifetime", ["until_executing", "until_executed", "until_expired"])
def test_a_reserved_key_stops_the_call_at_publish(lifetime: str) -> None:
    reserved = view(RESERVED, RESERVED, RESERVED)
    said = next_call(reserved, options(lifetime=lifetime))
    assert said.startswith("task-3 holds it: delay() returns the result of that task")
    said = next_call(reserved, options(lifetime=lifetime, on_conflict="raise"))
    assert "delay() raises LockHeld" in said


def test_a_second_lock_for_the_queue_is_what_counts_at_publish() -> None:
    two = options(lifetime="until_and_while_executing")
    held = (HELD, HELD, HELD)
    assert next_call(view(*held), two).startswith("task-1 holds the lock")
    waiting = view(*held, pending=(RESERVED, RESERVED, RESERVED))
    assert next_call(waiting, two).startswith("task-3 holds the pending slot: delay() returns")


def test_a_coalesced_call_is_skipped_while_another_one_waits() -> None:
    held, coalesce = (HELD, HELD, HELD), options(on_conflict="coalesce")
    assert "it takes the pending slot" in next_call(view(*held), coalesce)
    waiting = view(*held, pending=(RESERVED, RESERVED, RESERVED))
    assert "task-3 has the pending slot: it ends as REVOKED" in next_call(waiting, coalesce)


@pytest.mark.parametrize(
    ("key", "held", "declared", "says"),
    [
        ("k", HELD, {}, "LeaseLost is raised in it"),
        ("k", HELD, {"on_lost": "continue"}, "it goes on"),
        ("k", HELD, {"lifetime": "until_expired"}, "the period of a throttle"),
        ("k", RESERVED, {}, "the message stays in the queue"),
        ("k%next", RESERVED, {}, "the waiting message still comes back"),
        ("%beat:a@0:e:s", RESERVED, {}, "publishes the tick again"),
    ],
)
def test_the_consequence_of_a_release_depends_on_its_kind(
    key: str, held: View, declared: dict[str, Any], says: str
) -> None:
    lock = lock_of(key, [held])
    assert lock
    assert says in consequence(lock, options(**declared))


def test_the_view_of_a_pending_slot_has_none_itself() -> None:
    slot = LockView("k%next", ["a"], [RESERVED])
    assert slot.pending is None
    assert slot.lock
    assert slot.as_json(1.0, None)["pending"] is None
