"""What the worker's look at the nodes tells, and how often."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, cast

import pytest
from celery import Celery

from celery_redlock import node_down, node_up, nodes_checked, quorum_degraded
from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.redlock.events import log_event_of_leases
from celery_redlock.redlock.inspection import Judgement, State
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.redlock.threads import dispatch
from celery_redlock.worker.node_watch import NodeWatch, mute_node_lines
from tests.support.fakes.simulated_network import Network


class Nodes:
    """A lock of three nodes, and why each does not vote."""

    nodes = ("a", "b", "c")
    quorum = 2

    def __init__(self) -> None:
        self.why: dict[str, str] = {}

    def judge(self) -> list[Judgement]:
        # The watch looks at no state.
        return [Judgement(node, State.DOWN, self.why.get(node)) for node in self.nodes]


class Stage:
    """A watch over three nodes, and what it tells."""

    def __init__(self) -> None:
        self.nodes = Nodes()
        self.app = Celery("bank", set_as_current=False)
        self.watch = NodeWatch(self.app, cast(TaskLock, self.nodes), is_known=False)
        self.told: list[tuple[object, ...]] = []

    def look(self, **why: str) -> list[tuple[object, ...]]:
        self.nodes.why = why
        self.told.clear()
        self.watch.check()
        return list(self.told)


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()

    def note_from(name: str) -> Any:
        def note(sender: object, signal: object, **more: object) -> None:
            assert sender is stage.app
            stage.told.append((name, *more.values()))

        return note

    with ExitStack() as stack:
        for name, signal in (
            ("down", node_down), ("up", node_up), ("degraded", quorum_degraded),
        ):  # fmt: skip
            receiver = note_from(name)
            signal.connect(receiver, weak=False)
            stack.callback(signal.disconnect, receiver)
        yield stage


def test_nodes_that_all_vote_are_not_reported(stage: Stage) -> None:
    assert stage.look() == []


def test_a_node_is_reported_once_when_down_and_once_when_back(stage: Stage) -> None:
    assert stage.look(b="refused") == [("down", "b", "refused"), ("degraded", 2, 3, 2)]
    assert stage.look(b="refused") == []
    assert stage.look(b="restarted lately") == [], "it still does not vote"
    assert stage.look() == [("up", "b")]


def test_nodes_that_are_down_at_the_start_are_reported(stage: Stage) -> None:
    told = stage.look(a="refused", c="full")
    assert told == [("down", "a", "refused"), ("down", "c", "full"), ("degraded", 1, 3, 2)]


def test_a_quorum_that_is_lost_and_back_is_one_line_each(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(3):
        stage.look(a="refused", c="full")
    stage.look(a="refused")
    stage.look(a="refused")
    assert [record.getMessage() for record in caplog.records] == [
        "quorum lost, no lock can be acquired votes=1 of=3 errors=a: refused; c: full",
        "quorum is back votes=2 of=3",
    ]


def test_a_quorum_that_never_was_is_not_lost(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.watch = NodeWatch(stage.app, stage.watch._redlock, is_known=True)
    assert ("degraded", 1, 3, 2) in stage.look(a="votes in 60 s", c="votes in 60 s")
    assert "quorum lost" not in caplog.text
    stage.look()
    assert "quorum is back" in caplog.text
    stage.look(a="refused", c="full")
    assert "quorum lost" in caplog.text


def test_beside_an_unfit_node_the_others_are_watched(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    three = Network(3, monkeypatch)
    redlock = mute_node_lines(three.redlock())
    stage.watch = NodeWatch(stage.app, redlock, is_known=False)
    a, b, c = (node.name for node in redlock.nodes)
    redlock.nodes[2].misconfigured = ConfigurationError("c is a slave")
    stage.watch.check()
    assert stage.told == [("down", c, "c is a slave"), ("degraded", 2, 3, 2)]
    assert caplog.messages == []
    stage.told.clear()
    three.nodes[1].is_up = False
    stage.watch.check()
    [(_, down, why), degraded] = stage.told
    assert (down, degraded) == (b, ("degraded", 1, 3, 2))
    [line] = caplog.messages
    assert line.startswith("quorum lost, no lock can be acquired votes=1 of=3 errors=")
    assert line.endswith(f"{b}: {why}; {c}: c is a slave")
    assert a not in line


def test_a_node_that_is_down_or_back_is_no_lost_quorum(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    stage.look(b="refused")
    assert caplog.messages == []
    stage.look()
    assert caplog.messages == ["node votes again node=b"]


def test_each_check_tells_how_many_nodes_vote(stage: Stage) -> None:
    told: list[tuple[int, int, int]] = []

    def note(votes: int, nodes: int, needed: int, **_: Any) -> None:
        told.append((votes, nodes, needed))

    nodes_checked.connect(note)
    try:
        stage.look()
        stage.look(a="refused")
        stage.look(a="refused")
    finally:
        nodes_checked.disconnect(note)
    assert told == [(3, 3, 2), (2, 3, 2), (2, 3, 2)]


def test_a_lock_leaves_the_lines_about_nodes_to_the_watch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    redlock = mute_node_lines(TaskLock(["redis://127.0.0.1:1"]))
    assert mute_node_lines(redlock) is redlock, "it may be done again"
    caplog.set_level(logging.INFO, "celery_redlock")
    assert redlock.check()
    assert [line for line in caplog.messages if line.startswith("node down")] == []
    assert redlock.log is log_event_of_leases


def test_a_watch_has_a_thread_of_its_own_until_it_is_stopped(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    owns: list[bool] = []
    has_checked = threading.Event()

    def check() -> None:
        threads.append(threading.current_thread())
        owns.append(dispatch.is_own_thread())
        has_checked.set()

    monkeypatch.setattr(stage.watch, "check", check)
    stage.watch.start()
    assert has_checked.wait(60.0)
    stage.watch.stop()
    threads[0].join(60.0)
    assert not threads[0].is_alive()
    assert (threads[0].name, threads[0].daemon, owns) == ("redlock-node-watch", True, [True])


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_receiver_that_raises_does_not_end_the_watch(
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: type[BaseException],
) -> None:
    waits: list[float] = []

    def fail() -> None:
        raise error

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            stage.watch.stop()

    monkeypatch.setattr(stage.watch, "check", fail)
    monkeypatch.setattr(stage.watch._is_over, "wait", wait)
    stage.watch._run()
    assert waits == [10.0, 10.0]
    assert caplog.messages == ["node watch failed, continuing"] * 2
