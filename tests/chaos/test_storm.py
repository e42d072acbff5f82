"""A thousand tasks with every ending, each sent twice, while pool processes are killed.

Each counts up a register that refuses a token which is overtaken.
"""

from __future__ import annotations

import random
import time

import psutil
import pytest

from tests.chaos.conftest import PATIENCE_S, SECONDS
from tests.conftest import StartServers
from tests.integration.conftest import NewProject
from tests.support.eventually import eventually
from tests.support.evidence import record
from tests.support.faults.killer import Killer
from tests.support.judges.fenced_register import (
    FencedRegister,
    history_in,
    refused_in,
    updates_lost,
)
from tests.support.judges.figures import Figures
from tests.support.judges.linearizability import judge
from tests.support.judges.runs import disorders, runs_in
from tests.support.processes.workers import Worker

pytestmark = pytest.mark.chaos
TASKS = 1000 if SECONDS >= 120 else 150
KEYS = TASKS // 8
KILL_EVERY_S = 0.2
ENDINGS = ["success"] * 5 + ["exception", "retry", "ignore", "exit"]
PROCESSES = 4


def resources(worker: Worker) -> tuple[int, int, int]:
    """Return how many descriptors, threads and processes a worker's main process has."""
    process = psutil.Process(worker.pid)
    return process.num_fds(), process.num_threads(), len(process.children())


def test_no_task_is_lost_and_no_two_runs_overlap(
    new_project: NewProject, servers: StartServers, figures: Figures
) -> None:
    [register] = servers(1)
    project = new_project("storm", storm_register=register.url)
    worker = project.start_worker(concurrency=PROCESSES)
    chance = random.Random(1)
    tasks = project.tasks
    warm = [tasks.skipping.delay(f"warm-{n}", "success", 0.01) for n in range(8)]
    eventually(lambda: all(result.ready() for result in warm))
    before = resources(worker)
    killer = Killer(worker, every=KILL_EVERY_S)
    sent: dict[str, str] = {}
    began = time.monotonic()
    killer.start()
    for number in range(TASKS):
        task = chance.choice([tasks.skipping, tasks.rescheduling, tasks.waiting])
        ending = chance.choice(ENDINGS)
        args = (f"{task.name}-{number % KEYS}", ending, chance.choice([0.0, 0.01, 0.1]))
        first = task.apply_async(args)
        sent[first.id] = ending
        # The same message once more, as a broker may deliver it.
        task.apply_async(args, task_id=first.id)

    def is_settled() -> bool:
        return project.queue_length() == project.unacked() == 0

    deadline = time.monotonic() + min(SECONDS, PATIENCE_S)
    while not is_settled() and time.monotonic() < deadline:
        time.sleep(0.5)
    # What is left is left for a quiet hour: under these kills a task of 0.1 s may never end.
    killer.stop()
    eventually(is_settled, "every message is acknowledged", within=PATIENCE_S)
    eventually(lambda: not project.holds("storm"), "no key is left")
    took = time.monotonic() - began

    assert disorders(runs_in(project.notes(), killer.deaths)) == []
    history = history_in(project.folder)
    judgement = judge(history, FencedRegister())
    assert judgement.is_linearizable, str(judgement)
    assert updates_lost(history) == {}

    ran = {note.task_id for note in project.notes("end")}
    lost = {
        task_id: project.app.AsyncResult(task_id).state
        for task_id in sent
        if task_id not in ran and str(project.app.AsyncResult(task_id).state) != "REVOKED"
    }
    assert not lost, f"{len(lost)} never ran to an end, nor were skipped: {lost}"
    kills, skipped = len(killer.deaths), len(sent.keys() - ran)
    record(
        "histories_of_storm",
        operations=judgement.operations, registers=judgement.keys, refused=refused_in(history),
        kills=kills, violations=0,  # asserted above
    )  # fmt: skip
    figures.add(f"storm: {TASKS} tasks twice, {kills} kills, {skipped} skipped; took", took)
    eventually(lambda: len(worker.children()) == PROCESSES)
    eventually(
        lambda: all(now <= was for now, was in zip(resources(worker), before, strict=True)),
        f"before {before}, now {resources(worker)}",
    )
