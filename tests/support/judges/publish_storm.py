"""Processes that publish the same few tasks while workers run them, and the judge of it.

The app is `tests/integration/apps/publish_storm.py`; the lifetime is `until_executed`.
"""

from __future__ import annotations

from celery_redlock import DuplicateTask
from tests.support.eventually import eventually
from tests.support.processes.crowd import crowd
from tests.support.processes.project import Project

from .runs import disorders, runs_in


def publish_storm(
    project: Project, *, publishes: int, keys: int, processes: int, within: float
) -> str:
    """Publish from `processes`, and check what came of it.

    Args:
        project: Its workers run.
        publishes: How many, all together.
        keys: Of how many locks.
        processes: How many publish.
        within: How long to publish may take, and then how long what is left to run, seconds.

    Returns:
        What there was of what, for people.
    """
    crowd(project, "publish", publishes // processes, keys, processes=processes, within=within)
    eventually(
        project.is_settled,
        f"no message is left; {project.queue_length()} wait, {project.unacked()} are delivered",
        within=within,
    )
    eventually(lambda: not project.holds(), "nothing is locked or reserved on any node")

    published = project.notes("published")
    assert len(published) == publishes, f"{len(published)} of {publishes} were published"
    runs = runs_in(project.notes())
    wrong = disorders(runs)
    assert not wrong, f"{len(wrong)} pairs overlap, or their tokens do not grow: {wrong[:3]}"
    assert all(run.is_whole for run in runs), [run for run in runs if not run.is_whole]
    asked_for = {note.more["returned"] for note in published if note.more["is_new"]}
    ran = {str(run.task_id): run for run in runs}
    assert len(ran) == len(runs), "a task ran twice"
    assert ran.keys() <= asked_for, f"nobody asked for {ran.keys() - asked_for}"

    # A publish that met the nodes divided between others, time and again, is sent without a
    # reservation. Its task runs, or ends as the duplicate of one that does.
    skipped = asked_for - ran.keys()
    assert len(skipped) <= publishes / 100, f"{len(skipped)} duplicates came to the workers"
    for task_id in skipped:
        ending = project.app.AsyncResult(task_id).result
        assert isinstance(ending, DuplicateTask), f"{task_id} did not run: {ending!r}"
        assert ending.holder in ran, f"{task_id} relied on {ending.holder}, which did not run"
    released: dict[str | None, float] = {}

    def all_released() -> bool:
        # A moment after the nodes say so.
        released.update((note.task_id, note.at) for note in project.notes("released"))
        return ran.keys() <= released.keys()

    eventually(all_released, "every run has said that it released its lock")
    for note in published:
        if not note.more["is_new"]:
            run = ran.get(note.more["returned"])
            assert run, f"{note} relied on a task that did not run"
            assert run.key == note.more["key"], f"{note} relied on {run}"
            assert note.more["asked_at"] < released[run.task_id], f"{note} relied on {run}, over"
    return f"{publishes} publishes, {len(asked_for)} messages, {len(runs)} runs"
