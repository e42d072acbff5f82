"""A retry that can't be published: nothing stays locked, and its task is not lost or doubled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import states
from celery.result import AsyncResult

from celery_redlock.config.options import Lifetime
from tests.integration.conftest import NewProject
from tests.integration.redelivery.conftest import Brokers, writing_through_proxy
from tests.support.eventually import PATIENCE, eventually
from tests.support.faults.proxy import Proxy
from tests.support.processes.project import Project
from tests.support.versions import REJECT_IS_A_FAILURE

BROKERS: dict[str, dict[str, Any]] = {
    "redis": {},
    "rabbitmq classic": {"task_default_queue_type": "classic"},
    "rabbitmq quorum": {"task_default_queue_type": "quorum"},
}


@pytest.fixture(scope="module", params=BROKERS)
def brokers(request: pytest.FixtureRequest, new_project: NewProject) -> Iterator[Brokers]:
    """A project whose worker reads from its broker, but writes to it through a proxy."""
    url = None if request.param == "redis" else request.getfixturevalue("rabbitmq")
    conf = {"worker_prefetch_multiplier": 1, **BROKERS[request.param]}
    project = new_project("retried", broker=url, **conf)
    with writing_through_proxy(project, len(project.tasks.tasks)) as brokers:
        yield brokers


class Retries:
    """One task of each kind, all at the gate of their second try.

    Their first tries run at the same time, so that each pool child has connected.
    """

    def __init__(self, project: Project, key: str, **options: Any) -> None:
        self.project, self.key, self.options = project, key, options
        self.results: dict[tuple[Lifetime, bool], AsyncResult[Any]] = {
            kind: task.delay(self.name(kind), [f"{key}-first", key], options)
            for kind, task in project.tasks.tasks.items()
        }
        for result in self.results.values():
            project.wait_for_note("begin", task_id=result.id, retries=0)
        project.open(f"{key}-first")
        self.late = [result.id for (_, is_late), result in self.results.items() if is_late]
        for result in self.results.values():
            project.wait_for_note("begin", task_id=result.id, retries=1)

    def name(self, kind: tuple[Lifetime, bool]) -> str:
        return f"{kind[0].value}-{kind[1]}-{self.key}"

    def tries(self, result: AsyncResult[Any]) -> list[int]:
        return [note.more["retries"] for note in self.project.notes("begin", task_id=result.id)]

    def wait_until_requeued(self) -> None:
        [worker] = self.project.workers
        for task_id in self.late:
            worker.wait_for_line(rf"{task_id}\] reject requeue=True")

    def assert_nothing_is_left(self) -> None:
        """Nobody holds anything, nothing is in the queue, and the next call is a new one."""
        project = self.project
        eventually(lambda: project.queue_length() == 0)
        for kind, result in self.results.items():
            name = self.name(kind)
            eventually(lambda name=name: not project.holds(name), f"{name} is free")  # type: ignore[misc]
            following = project.tasks.tasks[kind].delay(name, [], {})
            assert following.id != result.id
            assert following.get(timeout=PATIENCE) == 0


@pytest.mark.parametrize("is_after", [False, True], ids=["before it arrives", "after it arrived"])
def test_a_retry_that_is_cut_runs_once(
    project: Project, proxy: Proxy, key: str, *, is_after: bool
) -> None:
    retries = Retries(project, key)
    way = proxy.replies if is_after else proxy.requests
    before = way.reads
    way.holds = True
    project.open(key)
    # One chunk of each: nobody sends more before that is answered.
    eventually(lambda: way.reads - before >= len(retries.results), "each has written")
    proxy.reset()
    proxy.heal()
    for result in retries.results.values():
        assert result.get(timeout=PATIENCE) == 2
    retries.assert_nothing_is_left()
    assert [retries.tries(one) for one in retries.results.values()] == [[0, 1, 2]] * 6


@pytest.mark.long
@pytest.mark.parametrize("fault", ["refused", "hanging"])
def test_a_retry_that_the_broker_does_not_take_is_not_lost(
    project: Project, proxy: Proxy, key: str, fault: str
) -> None:
    retries = Retries(project, key)
    if fault == "refused":
        proxy.refuse()
        proxy.reset()
    else:
        proxy.half_open()
    project.open(key)
    retries.wait_until_requeued()
    proxy.heal()
    for result in retries.results.values():
        assert result.get(timeout=PATIENCE) == 2
    retries.assert_nothing_is_left()
    for (_, is_late), result in retries.results.items():
        tries = retries.tries(result)
        if is_late:
            # What is put back runs again, before its retry.
            assert tries == [0] + [1] * tries.count(1) + [2]
        else:
            assert tries == [0, 1, 2]


def test_a_retry_that_is_given_up_leaves_no_lock(project: Project, proxy: Proxy, key: str) -> None:
    retries = Retries(project, key, retry=False)
    proxy.refuse()
    proxy.reset()
    project.open(key)
    retries.wait_until_requeued()
    for kind, result in retries.results.items():
        if not kind[1]:  # acknowledged early, it is nowhere else
            if REJECT_IS_A_FAILURE:
                eventually(lambda result=result: result.state == states.FAILURE)  # type: ignore[misc]
            eventually(lambda kind=kind: not project.holds(retries.name(kind)))  # type: ignore[misc]
    proxy.heal()
    for (_, is_late), result in retries.results.items():
        if is_late:
            assert result.get(timeout=PATIENCE) == 2
    retries.assert_nothing_is_left()
