"""What a new call would get, by the nodes' views of its lock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from celery import Celery

from celery_redlock import singleton_task
from celery_redlock.config.declared_options import lock_options
from celery_redlock.config.options import LockOptions, OnConflict
from celery_redlock.operate import lock_view
from celery_redlock.operate.lock_view import LockView, look_closely
from celery_redlock.operate.locks import Kind, Lock
from celery_redlock.redlock.inspection import Judgement, State
from celery_redlock.redlock.lease import new_owner
from celery_redlock.redlock.protocol.replies import Busy, Failed
from tests.support.fakes.operated import Operated
from tests.support.fakes.told import Told, active

HELD = Busy(new_owner("task-1"), 9000, 5)
OTHER = Busy(new_owner("task-2"), 9000, 6)
RESERVED = Busy(new_owner("task-3", is_reservation=True), 9000, 0)
FREE = Busy("", 0, 0)
DOWN = Failed("down")


def view(*views: Busy | Failed, pending: tuple[Busy | Failed, ...] = ()) -> LockView:
    return LockView("k", ["a", "b", "c"], views, pending)


def next_call(view: LockView, options: LockOptions | None, *silent: State) -> str:
    """Return what a call gets of nodes of which the first are `silent`."""
    states = [*silent, State.VOTES, State.VOTES, State.VOTES]
    judged = [
        Judgement(node, state, None if state is State.VOTES else state.value)
        for node, state in zip(view.names, states, strict=False)
    ]
    return lock_view.next_call(view, options, judged)


def options(**declared: Any) -> LockOptions:
    return lock_options(
        "t", {f"lock_{name}": value for name, value in declared.items()}, {}, max_ttl=60.0
    )


@pytest.mark.parametrize(
    "views", [(FREE, FREE, FREE), (HELD, FREE, FREE), (FREE, DOWN, FREE), (FREE, HELD, FREE)]
)
def test_a_quorum_of_free_nodes_grants_the_lock(views: tuple[Busy, ...]) -> None:
    assert next_call(view(*views), options()).startswith("it acquires the lock")


@pytest.mark.parametrize("views", [(HELD, HELD, HELD), (HELD, HELD, FREE), (HELD, DOWN, HELD)])
def test_a_holder_with_a_majority_refuses_it(views: tuple[Busy, ...]) -> None:
    for policy in OnConflict:
        said = next_call(view(*views), options(on_conflict=policy.value))
        assert said.startswith("task-1 holds the lock, for another 9.0 s unless renewed: it ")
        assert f'"{policy.value}"' in said
    assert next_call(view(*views), None).endswith(
        "unless renewed: it does not run; lock_on_conflict decides what becomes of it"
    )


@pytest.mark.parametrize("views", [(HELD, OTHER, FREE), (HELD, DOWN, FREE)])
def test_split_nodes_grant_it_to_nobody_yet(views: tuple[Busy, ...]) -> None:
    assert next_call(view(*views), options()).startswith("the nodes are split")


def test_without_a_quorum_nothing_is_known() -> None:
    down = [State.DOWN, State.DOWN]
    said = next_call(view(DOWN, DOWN, FREE), options(on_unavailable="raise"), *down)
    assert said.startswith("no quorum: 1 of 3 nodes vote, 2 are needed (a: down; b: down)")
    assert said.endswith(": raise")


@pytest.mark.parametrize("state", [State.GUARDED, State.SLOW, State.UNFIT, State.DOWN])
def test_a_holder_counts_only_on_nodes_that_can_refuse_a_call(state: State) -> None:
    said = next_call(view(HELD, HELD, HELD), None, state, state)
    assert said.startswith("no quorum: 1 of 3 nodes vote")


def test_nodes_that_can_not_be_read_leave_the_call_unknown() -> None:
    denied = Failed("NOPERM")
    said = next_call(view(denied, FREE, denied), options())
    assert said == (
        "unknown: 1 of 3 nodes that vote could be read, 2 are needed (a: NOPERM; c: NOPERM)"
    )


def test_what_only_a_minority_has_stops_no_call() -> None:
    at_publish = options(lifetime="until_executed")
    assert next_call(view(RESERVED, FREE, FREE), at_publish).startswith("it acquires the lock")
    waiting = view(HELD, HELD, HELD, pending=(RESERVED, FREE, FREE))
    assert "it takes the pending slot" in next_call(waiting, options(on_conflict="coalesce"))


@pytest.mark.parametrize("state", [State.REFUSES, State.GUARDED, State.SLOW, State.UNFIT])
def test_free_nodes_that_do_not_vote_grant_nothing(state: State) -> None:
    said = next_call(view(FREE, FREE, FREE), None, state, state)
    assert said.startswith("no quorum: 1 of 3 nodes vote")
    assert said.endswith("; lock_on_unavailable decides")
    assert next_call(view(FREE, FREE, FREE), None, state).startswith("it acquires the lock")


def test_nodes_that_refuse_to_write_name_the_holder() -> None:
    full = [State.REFUSES, State.REFUSES]
    assert next_call(view(HELD, HELD, HELD), None, *full).startswith("task-1 holds the lock")
    at_publish = options(lifetime="until_executed")
    said = next_call(view(RESERVED, RESERVED, FREE), at_publish, *full)
    assert said.startswith("task-3 holds it, for another 9.0 s: delay() returns")
    assert next_call(view(FREE, FREE, FREE), at_publish, *full).startswith("no quorum")


@pytest.mark.parametrize("lifetime", ["until_executing", "until_executed", "until_expired"])
def test_a_reserved_key_stops_the_call_at_publish(lifetime: str) -> None:
    reserved = view(RESERVED, RESERVED, RESERVED)
    said = next_call(reserved, options(lifetime=lifetime))
    assert said.startswith(
        "task-3 holds it, for another 9.0 s: delay() returns the result of that task"
    )
    said = next_call(reserved, options(lifetime=lifetime, on_conflict="raise"))
    assert "delay() raises LockHeld" in said


def test_a_period_is_not_renewed() -> None:
    period = Busy(new_owner("task-1", is_period=True), 9000, 5)
    said = next_call(view(period, period, period), options(on_conflict="skip"))
    assert said.startswith("task-1 holds the lock, for another 9.0 s: it ends as REVOKED")


def test_a_second_lock_for_the_queue_is_what_counts_at_publish() -> None:
    two = options(lifetime="until_and_while_executing")
    held = (HELD, HELD, HELD)
    assert next_call(view(*held), two).startswith("task-1 holds the lock")
    waiting = view(*held, pending=(RESERVED, RESERVED, RESERVED))
    assert next_call(waiting, two).startswith(
        "task-3 holds the pending slot, for another 9.0 s: delay() returns"
    )


def test_a_coalesced_call_is_skipped_while_another_one_waits() -> None:
    held, coalesce = (HELD, HELD, HELD), options(on_conflict="coalesce")
    assert "it takes the pending slot" in next_call(view(*held), coalesce)
    waiting = view(*held, pending=(RESERVED, RESERVED, RESERVED))
    assert "task-3 has the pending slot: it ends as REVOKED" in next_call(waiting, coalesce)


def test_a_value_of_another_program_is_another_holder() -> None:
    foreign = (Busy("x", 9000, 0),) * 3
    held, free = view(*foreign), view(FREE, FREE, FREE, pending=foreign)
    time_left = "for another 9.0 s unless renewed"
    assert next_call(held, None).startswith(f"another holder holds the lock, {time_left}: ")
    at_publish = options(lifetime="until_executed")
    assert next_call(held, at_publish).startswith(f"another holder holds it, {time_left}: ")
    two = options(lifetime="until_and_while_executing")
    said = next_call(free, two)
    assert said.startswith("another holder holds the pending slot, for another 9.0 s: ")
    waiting = view(HELD, HELD, HELD, pending=foreign)
    said = next_call(waiting, options(on_conflict="coalesce"))
    assert "and another holder has the pending slot: it ends as REVOKED" in said


def test_a_key_without_an_expiry_is_said_to_never_expire(three: Operated) -> None:
    for number in range(3):
        three[number].execute(("SET", "redlock:{k}", "x"))
    seen, then = look_closely(three.target(), "k")
    assert then.startswith("another holder holds the lock, and its key never expires: ")
    assert [row.expires_in for row in seen.rows] == ["never"] * 3
    values: Any = seen.as_json(1.0, then)
    assert [one["remaining"] for one in values["nodes"]] == [None] * 3


def test_each_node_s_view_is_told_as_text_and_as_values() -> None:
    held = Busy(new_owner("task-1", "host-1"), 119_900, 5)
    since = 1_763_800_000_000_000
    waits = Busy(new_owner("task-3", is_reservation=True, since_us=since), 9000, 0)
    mark = Lock("k", Kind.DONE, "task-0", 2, 3, 5.0)
    seen = replace(view(held, FREE, DOWN, pending=(waits, waits, DOWN)), marks=[mark])
    assert list(seen.rows) == [
        ("a", "", "task-1@host-1", "119.9 s", "5"),
        ("b", "", "-", "-", "-"),
        ("c", "down", "-", "-", "-"),
    ]
    assert seen.lock
    assert seen.pending
    assert seen.as_json(7.0, "it waits") == {
        "key": "k",
        "answers": 2,
        "nodes": [
            {"node": "a", "holder": "task-1@host-1", "remaining": 119.9, "floor": 5},
            {"node": "b", "holder": None, "remaining": 0.0, "floor": None},
            {"node": "c", "error": "down"},
        ],
        "lock": seen.lock.as_json(7.0),
        "pending": seen.pending.as_json(7.0),
        "done": [mark.as_json(7.0) | {"label": "task-0"}],
        "next_call": "it waits",
    }
    nothing = view(FREE, FREE, FREE).as_json(7.0, "it acquires")
    assert (nothing["lock"], nothing["pending"], nothing["done"]) == (None, None, [])


@pytest.mark.parametrize(
    ("views", "worker"),
    [((FREE,), None), ((RESERVED,), None), ((HELD,), "unknown: no worker that answered runs it")],
)
def test_a_worker_is_told_only_where_something_runs(
    views: tuple[Busy, ...], worker: str | None
) -> None:
    assert (view(*views).worker, view(*views).arguments) == (worker, worker)


def test_a_closer_look_shows_slot_marks_worker_and_next_call(
    three: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Celery("bank", broker="memory://", set_as_current=False)

    @singleton_task(
        app=app, shared=False, name="bank.sync", lock_key="{n}", lock_on_conflict="raise"
    )
    def sync(n: int) -> None: ...

    told = Told(app, monkeypatch, {"celery@vm": [active("task-1")]})
    redlock, target = three.redlock(key_prefix="bank"), three.target(key_prefix="bank", app=app)
    redlock.acquire("bank.sync:1", 30, label="task-1")
    redlock.reserve("bank.sync:1%next", 60, label="task-2")
    for key, label in (("1", "task-9"), ("1", "task-0"), ("12", "task-3")):
        redlock.mark_done(f"bank.sync:{key}", label)
    three[2].is_up = False
    seen, then = look_closely(target, "bank.sync:1")
    assert seen.names == ["127.0.0.1:7000", "127.0.0.1:7001", "127.0.0.1:7002"]
    assert [type(one) for one in seen.views] == [Busy, Busy, Failed]
    assert (seen.worker, seen.arguments) == ("celery@vm (pid 7)", None)
    assert seen.pending
    assert (seen.pending.task_id, seen.pending.votes) == ("task-2", 2)
    assert [(mark.owner, mark.votes) for mark in seen.marks] == [("task-0", 2), ("task-9", 2)]
    assert then.endswith('it ends as FAILURE, with LockHeld (lock_on_conflict="raise")')
    asked = told.asked
    free, then = look_closely(target, "bank.sync:2")
    assert (free.lock, free.pending, free.marks, told.asked) == (None, None, [], asked)
    assert then.startswith("it acquires the lock")
    app.conf.update(redlock_enabled=False)
    assert look_closely(target, "bank.sync:1")[1].startswith("it runs without a lock: ")
    assert look_closely(target, "other:2")[1].startswith("it acquires the lock")
    slot, _ = look_closely(target, "bank.sync:1%next")
    assert (slot.lock and slot.lock.kind, slot.pending_views) == (Kind.PENDING, [])


def test_the_view_of_a_pending_slot_has_none_itself() -> None:
    slot = LockView("k%next", ["a"], [RESERVED])
    assert slot.pending is None
    assert slot.lock
    assert slot.as_json(1.0, "it waits")["pending"] is None


@pytest.mark.parametrize(
    ("seen", "absence"),
    [
        (view(FREE, FREE, DOWN), "free"),
        (view(FREE, DOWN, DOWN), "unknown (1 of 3 answered)"),
        (view(FREE, FREE, FREE, pending=(FREE, DOWN, DOWN)), "unknown (1 of 3 answered)"),
        (view(FREE, DOWN, DOWN, pending=(FREE, FREE, FREE)), "unknown (1 of 3 answered)"),
    ],
)
def test_what_no_node_names_is_free_if_a_quorum_answered_each_question(
    seen: LockView, absence: str
) -> None:
    assert seen.absence == absence
    assert seen.is_known is (absence == "free")
