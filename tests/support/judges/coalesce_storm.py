"""Processes that change a few rows while workers copy them, and the judge of it.

The app is `tests/integration/apps/coalesce_storm.py`; the policy is `coalesce`.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from tests.support.eventually import eventually
from tests.support.faults.killer import Killer
from tests.support.processes.crowd import crowd
from tests.support.processes.inside import Note
from tests.support.processes.project import Project

from .runs import disorders, runs_in

PROCESSES = 4


def coalesce_storm(
    project: Project,
    task: Any,
    *,
    rows: int,
    updates: int,
    within: float,
    most: float = 1.0,
    kill_every: float | None = None,
) -> str:
    """Change rows and publish `task` for each change, and check what came of it.

    Args:
        project: Its workers run.
        task: One of its tasks; with `kill_every` one of the late.
        rows: How many there are.
        updates: How many changes there are, of all rows together.
        within: How long to publish may take, and then how long what is left to run, seconds.
        most: How many runs there may be, as a part of the updates, besides one more for each kill.
            There are more, the longer it takes to publish.
        kill_every: Kill a pool process each time so many seconds have passed. None: none.

    Returns:
        What there was of what, for people.
    """
    storm, tasks = uuid.uuid4().hex, project.tasks
    tasks.new_rows(storm, rows)
    killer = Killer(*project.workers, every=kill_every)
    with killer:
        crowd(
            project, "update", task.name, storm, rows, updates // PROCESSES,
            processes=PROCESSES, within=within,
        )  # fmt: skip
        eventually(
            lambda: not project.queue_length(),
            f"all are taken; {project.queue_length()} are not",
            within=within,
        )
    eventually(
        project.is_settled,
        f"no message is left; {project.queue_length()} wait, {project.unacked()} are delivered",
        within=within,
    )
    eventually(lambda: not project.holds(storm), "nothing is locked or reserved on any node")

    source, copy = tasks.sources(storm), tasks.copies(storm)
    assert len(source) == rows, source
    assert sum(source.values()) == updates, "each update counts"
    stale = {name: (source[name], copy[name]) for name in source if source[name] != copy[name]}
    assert stale == {}, f"rows and their copies, which differ: {stale}"

    notes = [note for note in project.notes() if note.more.get("key") in source]
    runs = runs_in(notes, killer.deaths)
    wrong = disorders(runs)
    assert not wrong, f"{len(wrong)} pairs overlap, or their tokens do not grow: {wrong[:3]}"
    lost = [run for run in runs if run.ended == float("inf")]
    assert lost == [], f"neither ended nor killed: {lost}"
    unseen = unseen_updates(notes)
    assert not unseen, (
        f"{len(unseen)} updates were not seen by the runs they relied on: {unseen[:3]}"
    )
    cut_short, kills = sum(not run.is_whole for run in runs), len(killer.deaths)
    # On a slow machine the updates come slowly, and each row may have one run after the other.
    at = [note.at for note in notes if note.event == "updated"]
    in_turn = rows * ((max(at) - min(at)) / tasks.TAKES_S + 3)
    assert len(runs) <= max(most * updates, in_turn) + kills, f"{len(runs)} runs, {updates} updates"
    return (
        f"{updates} updates, {kills} kills, {cut_short} runs cut short, "
        f"{len(runs)} runs = {100 * len(runs) / updates:.1f} %"
    )


def unseen_updates(notes: Iterable[Note]) -> list[Note]:
    """Return the updates that no run has seen of those which their publisher was told to rely on.

    That is a run of the task whose result was returned. If a worker turned that task away, it is
    one of the task that was waiting then: of each, if several copies were turned away.
    """
    saw: dict[str | None, int] = defaultdict(int)
    relied_on: dict[str | None, set[str | None]] = defaultdict(set)
    updates = []
    for note in notes:
        if note.event == "end":
            saw[note.task_id] = max(saw[note.task_id], note.more["saw"])
        elif note.event == "skipped":
            relied_on[note.task_id].add(note.more["holder"])
        elif note.event == "updated":
            updates.append(note)

    def is_seen(update: Note) -> bool:
        asked: set[str | None] = set()
        to_ask: set[str | None] = {update.more["returned"]}
        while to_ask := to_ask - asked - {None}:
            asked |= to_ask
            to_ask = {holder for task_id in to_ask for holder in relied_on[task_id]}
        return any(saw[task_id] >= update.more["version"] for task_id in asked)

    return [update for update in updates if not is_seen(update)]
