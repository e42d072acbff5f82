"""The judge of executions, told what happened."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import states

from celery_redlock.redlock.errors import LockHeld

from .judge import Execution, TaskJudge
from .schedule import Call


def stub(**attributes: object) -> Any:
    """Return something that has these attributes."""
    return SimpleNamespace(**attributes)


class Scene:
    """Calls that have arrived at the broker, and how their copies have ended."""

    def __init__(self, *names: str) -> None:
        self.world = stub(time=1.0, error=None, note=lambda _: None)
        broker = stub(arrived=dict.fromkeys(names, 1.0), has=lambda _: True)
        locks = stub(
            held_since=lambda *_: True,
            held_by=lambda _: "",
            has_left_slot=lambda *_: False,
            done=(),
        )
        traffic = stub(faults=(), policy="skip", lifetime="while_executing", is_prefork=False)
        self.judge = TaskJudge(self.world, traffic, broker, locks, 0.0, [])
        for name in names:
            self.judge.note_called(name, Call(0.0, "a", 1.0))

    def drop(self, name: str, holder: str) -> None:
        """Drop a copy of a message, for one that holds the lock."""
        execution = self._execution(name)
        execution.conflict = LockHeld("a", None, 0.0, owner=f"0:{holder}@w"), "skip"
        self.judge.note_stored(execution, name, states.REVOKED, None)

    def run(self, name: str) -> None:
        """Run a message."""
        execution = self._execution(name)
        execution.has_run = True
        self.judge._stories[name].began.append(1.0)
        self.judge.note_stored(execution, name, states.SUCCESS, None)

    def _execution(self, name: str) -> Execution:
        worker = stub(process=stub(struck={}), execution=None)
        return Execution(worker, name, 0.5, name)

    def violation(self) -> str:
        """Return what is wrong in the end; "": nothing."""
        self.judge.judge_end()
        return str(self.world.error or "")


@pytest.mark.parametrize("holders", [("t1", "t2"), ("t2", "t1")])
def test_a_message_is_covered_by_any_holder_of_its_copies(holders: tuple[str, str]) -> None:
    scene = Scene("t0", "t1", "t2")
    scene.run("t1")
    scene.drop("t2", "t0")
    for holder in holders:
        scene.drop("t0", holder)
    assert scene.violation() == ""


def test_messages_that_are_dropped_for_each_other_are_seen() -> None:
    scene = Scene("t0", "t1")
    scene.drop("t0", "t1")
    scene.drop("t1", "t0")
    assert scene.violation().startswith("dropped:")
