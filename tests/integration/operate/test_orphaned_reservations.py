"""`redlock release --orphaned` beside real workers, at Redis and at RabbitMQ."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from celery_redlock.config.options import Lifetime, OnConflict
from tests.integration.conftest import NewNodes, NewProject
from tests.support.eventually import eventually
from tests.support.processes.brokers import RabbitMQ
from tests.support.processes.commands import run_with
from tests.support.processes.project import Project
from tests.support.processes.ran import Ran

UNTIL_EXECUTED = Lifetime.UNTIL_EXECUTED, OnConflict.SKIP
REDIS = {
    "plain": {},
    "prefix": {"global_keyprefix": "bank:", "queue_order_strategy": "priority"},
    "separator": {"sep": ":", "priority_steps": [0, 5], "fanout_prefix": "/bank-{db}."},
    "all": {"global_keyprefix": "bank:", "sep": "|", "unacked_key": "had", "visibility_timeout": 9},
}


@pytest.fixture(scope="module")
def rabbitmq() -> Iterator[str]:
    # Not the one that tests share: others would have messages that are delayed there.
    with RabbitMQ() as broker:
        yield broker.url


NewBank = Callable[..., Project]


@pytest.fixture
def new_bank(new_project: NewProject, new_nodes: NewNodes) -> NewBank:
    """Make a project with nodes of its own: messages at another broker are not looked for."""
    return lambda **conf: new_project("lifetimes", nodes=new_nodes(3), **conf)


@pytest.fixture
def at_rabbitmq(rabbitmq: str, new_bank: NewBank) -> Project:
    # In this order, and these tests first: so the broker outlives the projects.
    return new_bank(broker=rabbitmq)


Publish = Callable[..., str]


def publishing(project: Project) -> Publish:
    """Return a function that publishes a call whose message reserves a key."""
    task = project.tasks.tasks[UNTIL_EXECUTED]
    return lambda key, *args, **options: str(task.apply_async((key, *args), **options).id)


def release(project: Project, *words: str) -> Ran:
    return run_with(project.app, "release", "--orphaned", "--grace", "0.5", *words)


def released(project: Project) -> list[str]:
    """Return the keys of the orphans, after their release: there are some."""
    keys: list[str] = []

    def are_released() -> bool:
        shown = release(project, "--yes").output
        keys[:] = [line.split(":")[1] for line in shown.splitlines() if line.endswith(", released")]
        return bool(keys)

    # Nothing is as long as a busy worker does not answer in time.
    eventually(are_released)
    return keys


def with_worker(project: Project) -> list[str]:
    """Return what is released beside a worker that runs one call, and has two more.

    One message is purged. Of what the worker has, one waits for its turn, and one for its time.
    """
    publish = publishing(project)
    publish("purged")
    project.app.control.purge()
    project.start_worker(pool="threads", concurrency=1)
    running = publish("running", "gate")
    project.run_of(running)
    publish("scheduled", countdown=3600)
    publish("waiting")
    inspect = project.app.control.inspect(timeout=2.0)
    eventually(lambda: any((inspect.scheduled() or {}).values()))
    eventually(lambda: any((inspect.reserved() or {}).values()))
    keys = released(project)
    for key in ("running", "scheduled", "waiting"):
        assert project.is_held(key)
    assert not project.is_held("purged")
    project.open("gate")
    return keys


# ---- RabbitMQ


@pytest.mark.long
def test_beside_a_waiting_message_nothing_is_released(at_rabbitmq: Project) -> None:
    publish = publishing(at_rabbitmq)
    publish("purged")
    at_rabbitmq.app.control.purge()
    publish("queued")
    shown = release(at_rabbitmq, "--yes")
    says = f"RabbitMQ does not show the 1 message in queue {at_rabbitmq.queue}. Nothing was rel"
    assert says in shown.output
    assert shown.exit_code == 1
    assert at_rabbitmq.is_held("purged")

    at_rabbitmq.app.control.purge()
    shown = release(at_rabbitmq)
    assert "2 reservations without a message." in shown.output
    assert "Not seen: the messages of a worker that is shutting down" in shown.output
    assert f" in queues other than {at_rabbitmq.queue}.\n" in shown.output
    assert sorted(released(at_rabbitmq)) == ["purged", "queued"]


@pytest.mark.long
def test_a_message_in_a_queue_that_is_named_counts(at_rabbitmq: Project) -> None:
    queue = f"{at_rabbitmq.queue}-other"
    publishing(at_rabbitmq)("elsewhere", queue=queue)
    del at_rabbitmq.app.amqp.queues[queue]  # which another process published to
    assert "1 reservation without a message." in release(at_rabbitmq).output
    shown = release(at_rabbitmq, "--queue", queue, "--yes")
    assert f"the 1 message in queue {queue}." in shown.output
    assert at_rabbitmq.is_held("elsewhere")
    at_rabbitmq.app.control.purge()


@pytest.mark.long
def test_what_a_worker_has_from_rabbitmq_is_kept(at_rabbitmq: Project) -> None:
    assert with_worker(at_rabbitmq) == ["purged"]


@pytest.mark.long
def test_with_a_worker_that_does_not_answer_nothing_is_released(at_rabbitmq: Project) -> None:
    publish = publishing(at_rabbitmq)
    publish("purged")
    at_rabbitmq.app.control.purge()
    worker = at_rabbitmq.start_worker(pool="threads", concurrency=1)
    worker.pause()
    try:
        shown = release(at_rabbitmq, "--yes")
    finally:
        worker.resume()
    assert f"queue {at_rabbitmq.queue} has 1 consumer, of which 0 tell what" in shown.output
    assert shown.exit_code == 1
    assert at_rabbitmq.is_held("purged")
    assert released(at_rabbitmq) == ["purged"]


# ---- Redis


@pytest.mark.long
@pytest.mark.parametrize("options", REDIS)
def test_only_the_purged_reservation_is_released_from_redis(
    new_bank: NewBank, options: str
) -> None:
    project = new_bank(broker_transport_options=REDIS[options])
    publish = publishing(project)
    publish("purged")
    project.app.control.purge()
    publish("queued")
    publish("urgent", priority=9)
    publish("elsewhere", queue=f"{project.queue}:other")
    assert released(project) == ["purged"]
    for key in ("queued", "urgent", "elsewhere"):
        assert project.is_held(key)
    assert not project.is_held("purged")


@pytest.mark.long
@pytest.mark.parametrize("options", ["separator", "all"])
def test_what_a_worker_has_from_redis_is_kept(new_bank: NewBank, options: str) -> None:
    assert with_worker(new_bank(broker_transport_options=REDIS[options])) == ["purged"]
