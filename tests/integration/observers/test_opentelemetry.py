"""In a real worker, the spans of a lock belong to the span that Celery's instrumentation makes."""

from __future__ import annotations

from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE


def test_the_spans_of_a_lock_lie_within_celerys_span_of_the_task(new_project: NewProject) -> None:
    project = new_project("traced")
    project.start_worker(concurrency=2)
    task = project.tasks.run
    holder = task.delay("key", "gate")
    project.wait_for_note("begin", key="key")
    duplicate = task.delay("key")
    duplicate.get(propagate=False, timeout=PATIENCE)
    skipped = project.wait_for_note("span", name=f"run/{task.name}").more
    assert skipped["events"][0] == "redlock.conflict"
    project.open("gate")
    holder.get(timeout=PATIENCE)
    project.wait_for_note("span", name=f"run/{task.name}", count=2)
    [ran] = [
        note.more
        for note in project.notes("span", name=f"run/{task.name}")
        if note.more["span"] != skipped["span"]
    ]
    for name in ("redlock acquire", "redlock hold"):
        [span] = [note.more for note in project.notes("span", name=name)]
        assert (span["trace"], span["parent"]) == (ran["trace"], ran["span"])
