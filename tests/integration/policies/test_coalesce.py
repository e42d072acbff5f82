"""One more run when this one has ended, however many ask for it: none is lost, none piles up.

Each test plays its story with every such task at the same time: a killed process takes Celery
seconds to find.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from celery import states

from celery_redlock import DuplicateTask
from celery_redlock.config.app_lock import redlock_of
from celery_redlock.config.options import Lifetime
from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.processes.project import Project
from tests.support.processes.workers import kill_process


@dataclass(frozen=True, slots=True)
class Story:
    """One task and one key: its runs, which read what was last written."""

    project: Project
    task: Any
    is_late: bool
    is_in_line_from_publish_on: bool
    key: str

    def begin(self) -> Any:
        """Start a run that has read 0 and waits at the gate `key`."""
        self.write(0)
        holder = self.task.delay(self.key, self.key)
        self.project.run_of(holder.id)
        return holder

    def write(self, value: int) -> None:
        self.project.tasks.write(self.key, value)

    def update(self, value: int, gate: str | None = None) -> Any:
        """Write `value`, and ask for a run."""
        self.write(value)
        return self.task.delay(self.key, gate)

    def wait(self, value: int, gate: str | None = None) -> Any:
        """Write `value`, and ask for a run, which has to wait."""
        result = self.update(value, gate)
        wait_for_state(result, states.RETRY)
        return result

    def check_that_it_relies_on(self, waiting: Any, result: Any) -> None:
        """Check that `result` is of a call that was turned away because `waiting` will run."""
        if self.is_in_line_from_publish_on:
            assert result.id == waiting.id
            return
        self.check_that_it_was_skipped_for(waiting, result.get(timeout=PATIENCE, propagate=False))
        assert result.state == states.REVOKED

    def check_that_it_was_skipped_for(self, waiting: Any, outcome: Any) -> None:
        assert isinstance(outcome, DuplicateTask)
        assert outcome.holder == waiting.id

    @property
    def seen(self) -> list[int]:
        """What the runs read, in order; one that was killed did, too."""
        return [note.more["saw"] for note in self.project.notes("begin", key=self.key)]

    def end(self) -> None:
        """Return when nothing runs or waits any more; each run was alone."""
        eventually(lambda: not self.project.is_held(self.key))


def wait_for_state(result: Any, state: str) -> None:
    eventually(lambda: result.state == state, f"{result} is {state}")


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    project = new_project("coalescing")
    project.start_worker(pool="prefork", concurrency=9)
    return project


@pytest.fixture
def stories(project: Project) -> Iterator[list[Story]]:
    stories = [
        Story(project, task, is_late, lifetime is not Lifetime.WHILE_EXECUTING, uuid.uuid4().hex)
        for is_late, tasks in ((False, project.tasks.early), (True, project.tasks.late))
        for lifetime, task in tasks.items()
    ]
    yield stories
    for story in stories:
        project.open(story.key)


@pytest.fixture
def late(stories: list[Story]) -> list[Story]:
    """Those whose messages are acknowledged when they have run, and come again after a crash."""
    return [story for story in stories if story.is_late]


def test_of_many_one_waits_and_sees_what_all_of_them_did(stories: list[Story]) -> None:
    for story in stories:
        holder, waiting = story.begin(), story.wait(1)
        for result in [story.update(value) for value in range(2, 10)]:
            story.check_that_it_relies_on(waiting, result)
        assert waiting.state == states.RETRY
        story.project.open(story.key)
        assert holder.get(timeout=PATIENCE) == 0
        assert waiting.get(timeout=PATIENCE) == 9
        assert story.seen == [0, 9]
        assert story.project.most_at_once(key=story.key) == 1
        story.end()


def test_a_call_after_the_waiting_one_began_waits_for_it(late: list[Story]) -> None:
    for story in late:
        gate = f"second-{story.key}"
        story.begin()
        second = story.wait(1, gate)
        story.project.open(story.key)
        story.project.run_of(second.id)
        third = story.wait(2)
        assert third.id != second.id
        story.project.open(gate)
        assert second.get(timeout=PATIENCE) == 1
        assert third.get(timeout=PATIENCE) == 2
        story.end()


def test_a_call_while_one_waits_relies_on_it_if_nothing_runs(
    stories: list[Story],
) -> None:
    for story in stories:
        if story.is_in_line_from_publish_on:
            continue
        line = f"{story.task.name}:{story.key}%next"
        place = redlock_of(story.project.app).reserve(line, 60, label="who waits")
        duplicate = story.update(1).get(timeout=PATIENCE, propagate=False)
        assert isinstance(duplicate, DuplicateTask)
        assert duplicate.holder == "who waits"
        redlock_of(story.project.app).release_owner(line, place.owner)
        assert story.update(2).get(timeout=PATIENCE) == 2
        assert story.seen == [2]
        story.end()


# --- crashes --------------------------------------------------------------------------------------


def test_when_the_holder_dies_the_waiting_one_runs(stories: list[Story]) -> None:
    ends = []
    for story in stories:
        holder, waiting = story.begin(), story.wait(1)
        story.check_that_it_relies_on(waiting, story.update(2))
        kill_process(story.project.run_of(holder.id).pid)
        story.project.open(story.key)
        ends.append((story, holder, waiting))
    for story, holder, waiting in ends:
        assert waiting.get(timeout=PATIENCE) == 2
        if not story.is_late:
            wait_for_state(holder, states.FAILURE)
        elif (outcome := holder.get(timeout=PATIENCE, propagate=False)) != 2:
            # It came again after the lock was free, and before the waiting one had begun.
            story.check_that_it_was_skipped_for(waiting, outcome)
        story.end()


def test_when_the_waiting_one_dies_in_its_run_it_runs_again(late: list[Story]) -> None:
    ends = []
    for story in late:
        gate = f"second-{story.key}"
        story.begin()
        second = story.wait(1, gate)
        story.project.open(story.key)
        begun = story.project.run_of(second.id)
        third = story.wait(2)
        story.write(3)
        kill_process(begun.pid)
        story.project.open(gate)
        ends.append((story, second, third))
    for story, second, third in ends:
        assert second.get(timeout=PATIENCE) == 3
        assert third.get(timeout=PATIENCE) == 3
        story.end()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_one_that_dies_as_it_goes_back_to_the_queue_is_not_lost(
    late: list[Story], moment: str
) -> None:
    ends = []
    for story in late:
        story.begin()
        story.project.tasks.doom(story.key, moment)
        # The process that takes it dies when it has the place in line, and has not published the
        # message again; or has, without having acknowledged it.
        ends.append((story, story.update(1)))
    for story, waiting in ends:
        if moment == "after":
            wait_until_one_copy_ends(story, waiting)
        else:
            story.project.wait_for_note("taken", count=2, task_id=waiting.id)
        wait_for_state(waiting, states.RETRY)
        story.check_that_it_relies_on(waiting, story.update(2))
        story.project.open(story.key)
    for story, waiting in ends:
        assert waiting.get(timeout=PATIENCE) == 2
        story.end()
        assert story.seen == [0, 2]


# --- copies ---------------------------------------------------------------------------------------


def test_a_second_copy_of_the_waiting_message_ends_silently(late: list[Story]) -> None:
    for story in late:
        idle = f"idle-{story.key}"
        story.begin()
        story.write(1)
        waiting = story.task.apply_async((story.key,), queue=idle)
        story.project.deliver_again(idle)
        story.project.app.control.add_consumer(idle, reply=True)
        wait_until_one_copy_ends(story, waiting)
        wait_for_state(waiting, states.RETRY)
        story.project.open(story.key)
        assert waiting.get(timeout=PATIENCE) == 1
        story.end()
        assert story.seen == [0, 1]
        assert waiting.state == states.SUCCESS


def wait_until_one_copy_ends(story: Story, result: Any) -> None:
    story.project.workers[0].wait_for_line(f"copy discarded .*task_id={result.id}")
