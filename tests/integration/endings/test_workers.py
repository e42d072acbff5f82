"""How a worker ends, and when the locks of the tasks that it runs are free."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.integration.conftest import NewProject
from tests.support.judges.endings import End, Free, Row, Scene, let_it_end
from tests.support.judges.figures import Figures
from tests.support.processes.project import Project
from tests.support.processes.workers import GREEN_POOLS, POOLS
from tests.support.versions import COLD_SHUTDOWN_ENDS_SOLO, PUTS_BACK_WITHOUT_A_WORD

PREFORK = ("prefork",)
DONE = End("SUCCESS", "returns 'done'", worker="ends")
# Celery says that it will be tried again, but has no message left to do so.
LOST = End("RETRY", "hangs", worker="ends")
PUT_BACK = End(
    "PENDING" if PUTS_BACK_WITHOUT_A_WORD else "RETRY",
    "hangs",
    message="in the queue",
    worker="ends",
)
NOTHING = End("PENDING", "hangs", worker="ends")
# A worker that takes it for lost after the visibility timeout will run it.
LEFT_BEHIND = End("PENDING", "hangs", message="unacknowledged", worker="ends")


def warm_shutdown(scene: Scene) -> None:
    scene.worker.ask_to_end(signal.SIGTERM)
    scene.worker.wait_for_line("Warm shutdown")
    let_it_end(scene)


def cold_shutdown(scene: Scene) -> None:
    scene.worker.ask_to_end(signal.SIGQUIT)


def cold_shutdown_that_waits(scene: Scene) -> None:
    """Of threads, which can't be ended."""
    scene.worker.ask_to_end(signal.SIGQUIT)
    scene.worker.wait_for_line("terminate all running tasks")
    let_it_end(scene)


def soft_shutdown(scene: Scene) -> None:
    scene.worker.ask_to_end(signal.SIGQUIT)
    scene.worker.wait_for_line("Initiating Soft Shutdown")
    let_it_end(scene)


def kill_the_main_process(scene: Scene) -> None:
    scene.worker.kill()


def forget_messages(project: Project) -> None:
    """Leave nothing for the next worker to run."""
    with project.app.connection_for_write() as connection:
        channel: Any = connection.default_channel
        channel.client.delete(project.queue, channel.unacked_key, channel.unacked_index_key)


# fmt: off
ROWS = [
    Row("warm shutdown", POOLS, warm_shutdown, Free.BEFORE_RESULT, (DONE,)),
    Row("cold shutdown", PREFORK, cold_shutdown, Free.AT_DEATH, (PUT_BACK,)),
    Row("cold shutdown, acked early", PREFORK, cold_shutdown, Free.AT_DEATH, (LOST,), task="early"),
    Row("cold shutdown", ("threads",), cold_shutdown_that_waits, Free.BEFORE_RESULT, (DONE,)),
    # Celery's handler of the signal fails to store RETRY when it interrupts the hub.
    Row("cold shutdown", GREEN_POOLS, cold_shutdown, Free.AS_IT_ENDS, (NOTHING, LOST),
        task="early"),
    # Celery's handler of the signal raises in the middle of the body.
    Row("cold shutdown", ("solo",), cold_shutdown, Free.BEFORE_RESULT,
        (End("FAILURE", "raises NotImplementedError",
             worker="ends" if COLD_SHUTDOWN_ENDS_SOLO else "goes on"),)),
    Row("soft shutdown, too short", PREFORK, cold_shutdown, Free.AT_DEATH, (PUT_BACK,)),
    Row("soft shutdown", ("prefork", "threads", *GREEN_POOLS), soft_shutdown, Free.BEFORE_RESULT,
        (DONE,)),
    Row("kill -9", POOLS, kill_the_main_process, Free.WITHIN_TTL, (LEFT_BEHIND,), task="brief"),
]
# fmt: on
CASES = [
    pytest.param(pool, row, id=f"{pool}-{row.ending}")
    for row in ROWS
    for pool in POOLS
    if pool in row.pools
]


@pytest.fixture(scope="module")
def hasty(new_project: NewProject) -> Project:
    """A project without soft shutdown."""
    return new_project("endings")


@pytest.fixture(scope="module")
def soft(new_project: NewProject) -> Project:
    """A project with a soft shutdown that is long enough for a body to end."""
    return new_project("endings", worker_soft_shutdown_timeout=8.0)


@pytest.fixture(scope="module")
def short(new_project: NewProject) -> Project:
    """A project with a soft shutdown that is over before a body ends."""
    return new_project("endings", worker_soft_shutdown_timeout=1.0)


@pytest.mark.parametrize(("pool", "row"), CASES)
def test_the_lock_is_free_when_it_must_be(
    hasty: Project, soft: Project, short: Project, pool: str, row: Row, figures: Figures
) -> None:
    projects = {"soft shutdown": soft, "soft shutdown, too short": short}
    project = projects.get(row.ending, hasty)
    worker = project.start_worker(pool=pool, concurrency=2)
    try:
        assert Scene(project, worker, row, figures).play() in row.ends
    finally:
        worker.kill_all()
        forget_messages(project)
