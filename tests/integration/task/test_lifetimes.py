"""Every lifetime with every policy: what becomes of a second call, at publish and at a worker.

The table is in `tests.support.judges.lifetime_table`. All its rows are played at the same time,
scene by scene, with one worker.
"""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from celery import states

from celery_redlock import DuplicateTask, LockHeld
from celery_redlock.config.options import ALLOWED, Lifetime, OnConflict
from celery_redlock.redlock.lease import task_of
from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.judges.lifetime_table import FATES, SCENES, STAGES, Copy, Fate, Held, Pair
from tests.support.judges.nodes import expire_on
from tests.support.processes.project import Project

PAIRS = [pytest.param(pair, id=f"{pair[0].value}-{pair[1].value}") for pair in FATES]
GOES_BACK = {OnConflict.RESCHEDULE, OnConflict.COALESCE}


@dataclass(slots=True)
class Story:
    """What was seen of a first and a second call for one key."""

    key: str
    first: Any = None
    second: Any = None
    fate: Fate | None = None
    state_meanwhile: str = ""
    held: tuple[Held, ...] = ()


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    project = new_project("lifetimes")
    project.start_worker(pool="threads", concurrency=64)
    return project


@pytest.fixture(scope="module")
def stories(project: Project) -> dict[str, dict[Pair, Story]]:
    return {scene: play(project, scene) for scene in SCENES}


def play(project: Project, scene: str) -> dict[Pair, Story]:
    """Play one scene with every row of the table."""
    is_by_name, is_running = scene.startswith("by_name"), scene.endswith("runs")
    idle = f"{project.queue}-{uuid.uuid4().hex}"  # nobody takes from there yet
    stories = {pair: Story(uuid.uuid4().hex) for pair in FATES}
    for pair, story in stories.items():
        queue = project.queue if is_running else idle
        story.first = project.tasks.tasks[pair].apply_async((story.key, story.key), queue=queue)
    for pair, story in stories.items():
        if is_running:
            project.run_of(story.first.id)
        story.held = (held_by(project, story),)
        call(project, pair, story, project.queue if is_running or is_by_name else idle, scene)
    if not is_running and not is_by_name:
        consume(project, idle)
    for pair, story in stories.items():
        if story.fate is None:
            settle(project, pair, story, getattr(FATES[pair], scene))
    if not is_running and is_by_name:
        consume(project, idle)
    for pair, story in stories.items():
        finish(project, pair, story)
    return stories


def consume(project: Project, queue: str) -> None:
    project.app.control.add_consumer(queue, reply=True)


def call(project: Project, pair: Pair, story: Story, queue: str, scene: str) -> None:
    """Call the task a second time, and see whether that sends a message."""
    task = project.tasks.tasks[pair]
    length = project.queue_length(queue)
    if scene.startswith("by_name"):
        story.second = project.app.send_task(task.name, (story.key,), queue=queue)
        return
    try:
        story.second = task.apply_async((story.key,), queue=queue)
    except LockHeld as held:
        story.second, story.fate = project.app.AsyncResult(str(task_of(held.owner))), Fate.RAISES
    if story.second.id == story.first.id:
        story.fate = story.fate or Fate.RETURNS_IT
    if queue != project.queue:
        assert project.queue_length(queue) == length + (story.fate is None)


def settle(project: Project, pair: Pair, story: Story, expected: Fate) -> None:
    """Return when it is clear what becomes of the second call while the first is there."""
    project.wait_for_note("taken", task_id=story.second.id)

    def is_clear() -> bool:
        story.state_meanwhile = story.second.state
        return (
            story.state_meanwhile in (*states.READY_STATES, states.RETRY)
            or bool(project.notes("begin", task_id=story.second.id))
            # Nothing is to be seen of one that waits in the worker.
            or (pair[1] is OnConflict.WAIT and expected is Fate.AFTER)
        )

    eventually(is_clear, f"{pair}: what becomes of the second call")


def finish(project: Project, pair: Pair, story: Story) -> None:
    """Let the first message end, and see how the second one does."""
    project.run_of(story.first.id)
    project.open(story.key)
    eventually(story.first.ready, f"{pair}: the first has ended")
    if story.fate is None:
        eventually(story.second.ready, f"{pair}: the second has ended")
        story.fate = fate_of(project, story)
    story.held = (*story.held, held_by(project, story))


def fate_of(project: Project, story: Story) -> Fate:
    """Return how a message has ended that was sent."""
    ran = project.notes("begin", task_id=story.second.id)
    if ran:
        [first_end] = project.notes("end", task_id=story.first.id)
        assert len(ran) == 1
        assert story.second.result == story.second.id
        return Fate.AFTER if ran[0].at > first_end.at else Fate.AT_ONCE
    match story.second.state, story.second.result:
        case states.REVOKED, DuplicateTask() as duplicate:
            assert duplicate.holder == story.first.id
            return Fate.REVOKED
        case states.SUCCESS, project.tasks.INSTEAD:
            return Fate.SUCCESS
        case states.FAILURE, LockHeld() as held:
            assert story.first.id in str(held.holder)
            return Fate.FAILURE
    raise AssertionError(f"{story.second.state}: {story.second.result!r}")


def held_by(project: Project, story: Story) -> Held:
    """Return what the first message holds, on a majority of the nodes.

    A node that was slow may keep a reservation that was released before it came there.
    """
    holds = [hold for hold in project.holds(story.key) if hold.task_id == story.first.id]
    votes = Counter(hold.key for hold in holds)
    held = [name for name, count in votes.items() if count > len(project.nodes) / 2]
    if not held:
        return Held.NOTHING
    [name] = held
    return Held.PENDING_SLOT if name.endswith("%next}") else Held.LOCK


def test_the_table_has_every_policy_that_is_allowed() -> None:
    assert set(FATES) == {
        (lifetime, policy) for lifetime, policies in ALLOWED.items() for policy in policies
    }
    assert set(STAGES) == set(Lifetime)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("scene", SCENES)
def test_of_a_second_call_becomes_what_the_table_says(
    stories: dict[str, dict[Pair, Story]], scene: str, pair: Pair
) -> None:
    story = stories[scene][pair]
    assert story.fate is getattr(FATES[pair], scene)
    if story.fate in (Fate.RETURNS_IT, Fate.RAISES):
        assert story.second.id == story.first.id
    if story.fate is Fate.AFTER and pair[1] in GOES_BACK:
        assert story.state_meanwhile == states.RETRY


@pytest.mark.parametrize("pair", PAIRS)
def test_a_message_holds_what_the_table_says(
    stories: dict[str, dict[Pair, Story]], pair: Pair
) -> None:
    stages = STAGES[pair[0]]
    for scene in SCENES:
        before = stages.running if scene.endswith("runs") else stages.waiting
        assert stories[scene][pair].held == (before, stages.after)


@pytest.mark.parametrize("lifetime", Lifetime)
def test_of_a_second_copy_becomes_what_the_table_says(
    project: Project, key: str, lifetime: Lifetime
) -> None:
    task, idle = project.tasks.late_tasks[lifetime], f"idle-{key}"
    result = task.apply_async((key, key), queue=idle)
    project.deliver_again(idle)
    consume(project, idle)
    project.run_of(result.id)
    [worker] = project.workers
    if STAGES[lifetime].copy is Copy.RUNS:
        project.wait_for_note("begin", count=2, key=key)
    else:
        worker.wait_for_line(f"task_id={result.id}.*outcome=parked")
    project.open(key)
    if STAGES[lifetime].copy is Copy.PARKED:
        worker.wait_for_line(f"message handled by another copy, copy discarded.*{result.id}")
        assert len(project.notes("begin", key=key)) == 1
    assert result.get(timeout=PATIENCE) == result.id
    assert result.state == states.SUCCESS


@pytest.mark.parametrize("policy", sorted(ALLOWED[Lifetime.UNTIL_EXPIRED]))
def test_when_the_period_is_over_the_next_call_is_sent(
    project: Project, key: str, policy: OnConflict
) -> None:
    task = project.tasks.tasks[Lifetime.UNTIL_EXPIRED, policy]
    first = task.delay(key)
    eventually(first.ready)
    expire_on(project.nodes, f"{task.name}:{key}")
    second = task.delay(key)
    assert second.id != first.id
    eventually(second.ready)
    assert second.result == second.id
