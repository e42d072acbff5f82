"""The log of what operators do: written as far as nodes take it, and merged when it is read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from celery_redlock.operate import operator_log
from celery_redlock.operate.admission import admit
from celery_redlock.operate.ending import Order, end
from celery_redlock.operate.lock_view import view_of
from celery_redlock.operate.locks import Kind, Lock
from celery_redlock.operate.node_set import NodeSet
from celery_redlock.operate.node_status import read_statuses
from celery_redlock.operate.operator_log import KEPT_S, MOST, Action, read_log, recorded
from celery_redlock.operate.removal import removal_of, remove
from celery_redlock.redlock.errors import QuorumUnavailable, RedlockError
from tests.support.fakes.operated import Operated

NOW = 1_800_000_000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The operator's clock: its `now` may be set."""
    clock = SimpleNamespace(now=NOW)
    monkeypatch.setattr(operator_log, "time", SimpleNamespace(time=lambda: clock.now))
    return clock


@pytest.fixture(autouse=True)
def _clock(clock: Any) -> None: ...


@pytest.fixture
def nodes(three: Operated) -> Iterator[NodeSet]:
    with three.target().nodes() as nodes:
        yield nodes


def record(
    three: Operated, nodes: NodeSet, what: str = "x", key: str = "", reason: str = ""
) -> None:
    action = Action("release", "alice@ops", what, key, reason)
    with recorded(three.target(), nodes, action) as result:
        result.text = "released"


def elements(three: Operated) -> list[bytes]:
    """Return what the first node has."""
    raws: Any = three[0].execute(("LRANGE", "redlock:log", 0, 99))
    return list(raws)


def whats(three: Operated, nodes: NodeSet) -> list[str]:
    return [one.what for one in read_log(three.target(), nodes)[0]]


def test_an_action_is_read_as_it_was_recorded(three: Operated, nodes: NodeSet) -> None:
    record(three, nodes, "held by task-1@host", key="k", reason="it hangs")
    [action], errors = read_log(three.target(), nodes)
    assert errors == {}
    assert len(action.id) == 16
    assert action == Action(
        "release", "alice@ops", "held by task-1@host", "k", "it hangs", "released", NOW, action.id
    )


@pytest.mark.parametrize("most", [1, 25, 26, 50])
def test_of_many_actions_the_latest_are_read(
    three: Operated, nodes: NodeSet, clock: Any, most: int
) -> None:
    for at in range(60):
        clock.now = NOW + at
        record(three, nodes, str(at))
    actions, _ = read_log(three.target(), nodes, most)
    assert [one.what for one in actions] == [str(at) for at in range(60 - most, 60)]


def test_nodes_with_different_actions_tell_the_latest(
    three: Operated, nodes: NodeSet, clock: Any
) -> None:
    for at in range(6):
        clock.now = NOW + at
        three[at % 3].refused["LPUSH"] = "OOM"
        record(three, nodes, str(at))
        three[at % 3].refused.clear()
    assert [one.what for one in read_log(three.target(), nodes, 3)[0]] == ["3", "4", "5"]


def test_the_latest_comes_last_and_each_once(three: Operated, nodes: NodeSet, clock: Any) -> None:
    for at in (2, 1, 3):
        clock.now = NOW + at
        record(three, nodes, str(at))
    assert whats(three, nodes) == ["1", "2", "3"]


def test_what_any_node_has_is_shown(three: Operated, nodes: NodeSet, clock: Any) -> None:
    record(three, nodes, "first")
    clock.now += 1
    three[0].forget()
    three[1].refused["LPUSH"] = "NOPERM no LPUSH"
    record(three, nodes, "second")
    assert whats(three, nodes) == ["first", "second"]


@pytest.mark.parametrize(("refusing", "is_said"), [(1, False), (2, True), (3, True)])
def test_that_too_few_nodes_record_it_is_logged_and_no_error(
    three: Operated, nodes: NodeSet, log: Any, refusing: int, is_said: bool
) -> None:
    for number in range(3 - refusing, 3):
        three[number].refused["LPUSH"] = "NOPERM no LPUSH"
    record(three, nodes, key="k")
    line = "operator's action not recorded on a quorum key=k action=release error=NOPERM no LPUSH"
    assert log() == ([("WARNING", line)] if is_said else [])


def test_a_node_that_is_down_is_left_out(three: Operated, nodes: NodeSet) -> None:
    record(three, nodes)
    three[0].is_up = False
    three[1].refused["LRANGE"] = "NOPERM no LRANGE"
    actions, errors = read_log(three.target(), nodes)
    assert len(actions) == 1
    assert errors == {
        "127.0.0.1:7000": "Connection closed", "127.0.0.1:7001": "NOPERM no LRANGE"
    }  # fmt: skip


def test_the_log_is_bounded_in_number(
    three: Operated, nodes: NodeSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MOST == 1000
    monkeypatch.setattr(operator_log, "MOST", 2)
    for number in range(4):
        record(three, nodes, str(number))
    assert len(elements(three)) == 2
    assert sorted(whats(three, nodes)) == ["2", "3"]


def test_the_log_is_bounded_in_age(three: Operated, nodes: NodeSet, clock: Any) -> None:
    record(three, nodes, "old")
    clock.now = NOW + KEPT_S
    record(three, nodes, "new")
    assert whats(three, nodes) == ["new"]
    assert three[0].execute(("PTTL", "redlock:log")) == round(KEPT_S * 1000)


def test_texts_are_bounded(three: Operated, nodes: NodeSet) -> None:
    record(three, nodes, "x" * 5000, key="k" * 5000)
    [action], _ = read_log(three.target(), nodes)
    assert (len(action.what), len(action.key)) == (500, 500)
    [raw] = elements(three)
    assert len(raw) < 1500


def test_a_reply_has_25_actions_at_most(
    three: Operated, nodes: NodeSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(60):
        record(three, nodes, str(number))
    execute, sizes = three[0].execute, list[int]()

    def counted(command: Any) -> object:
        reply: Any = execute(command)
        sizes.append(len(reply))
        return reply

    monkeypatch.setattr(three[0], "execute", counted)
    assert len(read_log(three.target(), nodes)[0]) == 60
    assert [size for size in sizes if size] == [25, 25, 10]
    assert len(sizes) == 40


@pytest.mark.parametrize(
    "value",
    [
        "", "x", "1", "[]", "{}", json.dumps({"at": "now"}), json.dumps({"at": -1}),
        json.dumps({"at": 1e11}), json.dumps({"at": -10**400}), "[" * 100_000,
    ],
    ids=map(str, range(10)),
)  # fmt: skip
def test_what_is_no_action_is_left_out(three: Operated, nodes: NodeSet, value: str) -> None:
    three[0].execute(("LPUSH", "redlock:log", value))
    record(three, nodes, "real")
    assert whats(three, nodes) == ["real"]


def test_a_field_that_is_missing_is_empty(three: Operated, nodes: NodeSet) -> None:
    three[0].execute(("LPUSH", "redlock:log", json.dumps({"at": NOW, "reason": None})))
    assert only(three, nodes) == ("",) * 5


def test_an_action_that_fails_is_recorded_as_such(three: Operated, nodes: NodeSet) -> None:
    action = Action("release", "alice@ops", "x")
    with pytest.raises(ValueError, match="no"), recorded(three.target(), nodes, action):
        raise ValueError("no")
    with pytest.raises(KeyboardInterrupt), recorded(three.target(), nodes, action):
        raise KeyboardInterrupt
    actions, _ = read_log(three.target(), nodes)
    assert sorted(one.result for one in actions) == ["failed: no", "interrupted"]


# ---- who records


def only(three: Operated, nodes: NodeSet) -> tuple[str, ...]:
    [action], _ = read_log(three.target(), nodes)
    return action.action, action.author, action.key, action.reason, action.result


def test_a_release_is_recorded(three: Operated, nodes: NodeSet) -> None:
    three.redlock().acquire("k", label="task-1")
    removal = removal_of(three.target(), nodes, "k", None)
    assert removal
    assert remove(three.target(), nodes, removal[0], "alice@ops", "it hangs")
    assert only(three, nodes) == ("release", "alice@ops", "k", "it hangs", "released")
    assert whats(three, nodes) == [f"held by {removal[0].holder()} (id {removal[0].id})"]


def test_a_deleted_done_mark_is_recorded(three: Operated, nodes: NodeSet) -> None:
    three.redlock().mark_done("k", "task-1/0/abc")
    removal = removal_of(three.target(), nodes, "k", "task-1/0/abc")
    assert removal
    assert remove(three.target(), nodes, removal[0], "alice@ops")
    assert only(three, nodes) == ("release", "alice@ops", "k", "", "released")
    assert whats(three, nodes) == [f"done mark task-1/0/abc (id {removal[0].id})"]


def test_a_release_of_what_others_hold_by_now_is_recorded(three: Operated, nodes: NodeSet) -> None:
    gone = Lock("k", Kind.HELD, f"{0:032}:task-1@host", 3, 3, 9.0, 1)
    assert not remove(three.target(), nodes, gone, "alice@ops")
    assert only(three, nodes) == ("release", "alice@ops", "k", "", "not released")


def test_a_release_without_a_quorum_is_recorded_where_it_can_be(
    three: Operated, nodes: NodeSet
) -> None:
    three.redlock().acquire("k", label="task-1")
    removal = removal_of(three.target(), nodes, "k", None)
    assert removal
    three[1].is_up = three[2].is_up = False
    with pytest.raises(QuorumUnavailable):
        remove(three.target(), nodes, removal[0], "alice@ops")
    [action], _ = read_log(three.target(), nodes)
    assert action.result.startswith("failed: cannot release 'k': 0 of 3 nodes answered")


def test_an_ended_run_is_recorded(
    three: Operated, nodes: NodeSet, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    three.redlock().acquire("k", label="task-1")
    lock = view_of(nodes, "redlock", "k").lock
    assert lock
    monkeypatch.setattr(app.control, "broadcast", lambda *_, **__: [])
    order = Order("alice@ops", "it hangs")
    ended = end(three.target(app=app), nodes, lock, order, lambda _: three.expire())
    assert only(three, nodes) == ("end", "alice@ops", "k", "it hangs", ended.outcome)


def test_an_order_that_no_worker_could_get_is_recorded(
    three: Operated, nodes: NodeSet, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = Lock("k", Kind.HELD, f"{0:032}:task-1@host", 3, 3, 9.0, 1)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("down")

    monkeypatch.setattr(app.control, "broadcast", fail)
    with pytest.raises(RedlockError):
        end(three.target(app=app), nodes, lock, Order("alice@ops"), lambda _: None)
    result = "failed: the workers could not be asked: OSError"
    assert only(three, nodes) == ("end", "alice@ops", "k", "", result)


@pytest.mark.parametrize("error", [None, "READONLY"])
def test_an_admission_is_recorded(three: Operated, nodes: NodeSet, error: str | None) -> None:
    waiting = read_statuses(three.target(), nodes)[:2]
    if error:
        three[0].refused["SET"] = three[1].refused["SET"] = error
    admit(three.target(), nodes, waiting, "alice@ops", "new machines")
    failed = "127.0.0.1:7000: READONLY; 127.0.0.1:7001: READONLY"
    result = f"not admitted: {failed}" if error else "admitted"
    assert only(three, nodes) == ("admit", "alice@ops", "", "new machines", result)
    assert whats(three, nodes) == ["127.0.0.1:7000, 127.0.0.1:7001"]
