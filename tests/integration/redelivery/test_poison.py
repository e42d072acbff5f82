"""A poison message of a quorum queue that is put back between its deliveries is bounded, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.conftest import NewProject
from tests.support.eventually import eventually
from tests.support.processes.project import Project

HOLD_MS = 30_000


@pytest.fixture(scope="module")
def project(new_project: NewProject, rabbitmq: str) -> Iterator[Project]:
    project = new_project("poisoned", broker=rabbitmq)
    with project.app.connection_for_write() as connection:
        channel: Any = connection.default_channel
        channel.queue_declare(project.tasks.dead_letters, durable=True, auto_delete=False)
        project.start_worker(concurrency=2)
        yield project
        channel.queue_delete(project.tasks.dead_letters)


def hold_until(project: Project, key: str, is_true: Any) -> None:
    """Renew the lock that was left behind until `is_true`, and free it then."""
    name = project.tasks.lock_key(key)
    clients = [node.client() for node in project.nodes]

    def renew() -> Any:
        for client in clients:
            client.pexpire(name, HOLD_MS)
        return is_true()

    try:
        eventually(renew)
    finally:
        for client in clients:
            client.delete(name)
            client.close()


@pytest.mark.long
@pytest.mark.parametrize("by_other", [True, False], ids=["another", "its predecessor"])
def test_a_poison_message_that_finds_its_lock_held_ends_too(
    project: Project, key: str, by_other: bool
) -> None:
    """It ends at the limit of deliveries."""
    [worker], limit = project.workers, project.tasks.LIMIT
    outcome = "reschedule" if by_other else "parked"
    result = project.tasks.poison.delay(key, by_other=by_other)
    goes_back = f"task_id={result.id} .*outcome={outcome}"
    for count in range(1, limit + 2):
        project.wait_for_note("begin", task_id=result.id, count=count)
        if count <= limit:
            before = len(worker.lines(goes_back))
            hold_until(project, key, lambda before=before: len(worker.lines(goes_back)) > before)
    worker.wait_for_line(
        f"message delivered too often, rejected .*{result.id} deliveries={limit + 1}"
    )
    eventually(lambda: project.queue_length(project.tasks.dead_letters) == 1)
    eventually(lambda: project.queue_length() == 0)
    assert len(project.notes("begin", task_id=result.id)) == limit + 1
    assert len(worker.lines("delivered too often.*" + result.id)) == 1
    with project.app.connection_for_write() as connection:
        channel: Any = connection.default_channel
        letter = channel.basic_get(project.tasks.dead_letters, no_ack=True)
    assert letter.headers["id"] == result.id
    assert letter.headers["x-first-death-reason"] == "rejected"
