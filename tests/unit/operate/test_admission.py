"""Which nodes are admitted before their restart guard is over, and what speaks against it."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.operate import admission
from celery_redlock.operate.admission import admit, candidates
from celery_redlock.operate.node_status import read_statuses
from tests.support.fakes.operated import Operated

A, B, C = (f"127.0.0.1:700{number}" for number in range(3))


@pytest.fixture(autouse=True)
def _young(three: Operated, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that wait, but the last, in a time in which pauses end at once."""
    monkeypatch.setattr(admission, "SystemClock", lambda: three)
    for number, uptime in enumerate(("20", "20", "10000")):
        three[number].info["uptime_in_seconds"] = uptime


def found(three: Operated, **options: Any) -> tuple[list[str], list[str]]:
    """Return the names of the nodes that wait, and what speaks against their admission."""
    target = three.target(**options)
    with target.nodes() as nodes:
        waiting, objections = candidates(target, nodes)
    return [one.node for one in waiting], objections


def admitted(three: Operated) -> dict[str, str]:
    """Admit the nodes that wait; return the errors."""
    target = three.target()
    with target.nodes() as nodes:
        return admit(target, nodes, candidates(target, nodes)[0], "alice@ops", "")


def votes_in(three: Operated, **options: Any) -> list[float]:
    target = three.target(**options)
    with target.nodes() as nodes:
        return [round(one.votes_in, 1) for one in read_statuses(target, nodes)]


def test_admitted_nodes_vote_in_their_present_run(three: Operated) -> None:
    assert votes_in(three) == [43.6, 43.6, 0.0]
    assert (found(three), three.slept) == (([A, B], []), [])
    assert admitted(three) == {}
    assert votes_in(three) == [0.0, 0.0, 0.0]
    assert votes_in(three, max_ttl=30.0) == [0.0, 0.0, 0.0]
    assert votes_in(three, max_ttl=600.0)[:2] != [0.0, 0.0], "a longer lease inherits none"
    three[0].info["run_id"] = "another"
    assert votes_in(three) == [43.6, 0.0, 0.0]
    three.time += 64.0
    notes = [node._get("redlock:admitted") for node in three._reporting]
    assert notes == [None] * 3, "they end with the guard"


def test_admitted_nodes_still_wait_until_clocks_agree(three: Operated) -> None:
    admitted(three)
    three[0].info["uptime_in_seconds"] = "2"
    assert votes_in(three) == [3.0, 0.0, 0.0]


def test_no_node_is_admitted_while_an_old_attempt_may_go_on(three: Operated) -> None:
    three[0].info["uptime_in_seconds"] = "2"
    three.after(1.0, lambda: three[2]._set("redlock:{k}", "owner:me@here", 60_000.0))
    assert found(three) == ([A, B], [f"{C}: it has the lock redlock:{{k}}"])
    assert three.slept == [3.0]


def test_the_pause_is_as_long_as_an_attempt_may_take(three: Operated) -> None:
    three[1].info["uptime_in_seconds"] = "-7"  # unknown
    assert found(three, node_timeout=5.0) == ([A, B], [])
    assert found(three, max_clock_skew=2.0) == found(three, max_clock_skew=0.0) == ([A, B], [])
    assert three.slept == [20.0, 9.0, 1.0]


@pytest.mark.parametrize(
    ("at", "key", "objection"),
    [
        *((1, f"redlock:{key}", f"{B}: it is not new, it has redlock:{key}")
          for key in ("{k}", "{k}:floor", "{k}:done:me")),
        (0, "redlock:{\udcff}", f"{A}: it is not new, it has redlock:{{\ufffd}}"),
        (2, "redlock:{k}", f"{C}: it has the lock redlock:{{k}}"),
        (2, "redlock:{k}:floor", None),
        (0, "redlock:{probe-0123456789abcdef}:floor", None),
        (0, "other:{k}", None),
    ],
)  # fmt: skip
def test_no_lock_may_be_on_a_node_and_nothing_on_a_new_one(
    three: Operated, at: int, key: str, objection: str | None
) -> None:
    for number in range(3):
        three[at]._set(f"other:{number}", "x", 60_000.0)  # a page of the scan, and more
    three[at]._set(key, "123", 60_000.0)
    assert found(three) == ([A, B], [objection] if objection else [])


def test_a_node_that_does_not_tell_may_have_a_lock(three: Operated) -> None:
    three[1].refused["SCAN"] = "NOPERM"
    assert found(three) == ([A, B], [f"{B}: NOPERM"])
    three[1].is_up, three[2].is_full = False, True
    waiting, [down, full] = found(three)
    assert (waiting, down) == ([A], f"{B}: Connection refused")
    assert full.startswith(f"{C}: refuses to write: OOM")


def test_a_node_that_refuses_the_note_is_named(three: Operated) -> None:
    three[1].refused["SET"] = "OOM"
    assert admitted(three) == {B: "OOM"}
    assert votes_in(three) == [0.0, 43.6, 0.0]


def test_without_a_guard_no_node_waits(three: Operated) -> None:
    three[1].refused["SCAN"] = "NOPERM"
    assert found(three, restart_guard=False) == ([], [])
    assert three.slept == []
