"""Brokers with faults, while calls of few keys conflict: none is lost, none runs twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.chaos.conftest import SECONDS
from tests.integration.conftest import NewProject
from tests.support.faults.proxy import Proxy
from tests.support.judges import conflict_storm as storms
from tests.support.judges.conflict_storm import conflict_storm
from tests.support.judges.figures import Figures
from tests.support.processes.brokers import Broker, RabbitMQ, RedisBroker
from tests.support.processes.project import Project

pytestmark = pytest.mark.chaos
STORM_S = min(60.0, max(8.0, SECONDS / 4))
PATIENCE_S = 180.0
CONCURRENCY = 4
QUORUM = {"task_default_queue_type": "quorum"}
BROKERS: dict[str, dict[str, Any]] = {
    "classic": {},
    "quorum, direct": QUORUM,
    # Only with such an exchange does Celery let the broker keep a message until its eta.
    "quorum, topic": QUORUM | {"task_default_exchange_type": "topic"},
    # Else what a dead worker had comes back in an hour, or in minutes if it died as it looked for
    # what others had.
    "redis": {"broker_transport_options": {"visibility_timeout": 6, "unacked_mutex_expire": 5}},
}
# Whoever publishes has to know that it is published.
CONFIRMING = {"broker_transport_options": {"confirm_publish": True}}


@dataclass
class Stage:
    """Two workers whose broker is their own, behind a proxy."""

    project: Project
    broker: Broker
    proxy: Proxy
    supervisor: storms.Supervisor


@pytest.fixture(scope="session")
def own_rabbitmq() -> Iterator[RabbitMQ]:
    with RabbitMQ() as broker:
        yield broker


@pytest.fixture(scope="module")
def brokers() -> Iterator[ExitStack]:
    """What brokers and their proxies are entered into: they outlive the projects."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module", params=BROKERS)
def stage(
    request: pytest.FixtureRequest, brokers: ExitStack, new_project: NewProject
) -> Iterator[Stage]:
    broker: Broker
    if request.param == "redis":
        broker = brokers.enter_context(RedisBroker())
        scheme, conf = "redis://127.0.0.1:{}/0", BROKERS[request.param]
    else:
        broker = request.getfixturevalue("own_rabbitmq")
        scheme = "amqp://guest:guest@127.0.0.1:{}//"
        conf = CONFIRMING | BROKERS[request.param]
    proxy = brokers.enter_context(Proxy(broker.port))
    project = new_project(
        "conflicting",
        broker=scheme.format(proxy.port),
        broker_connection_max_retries=None,
        worker_prefetch_multiplier=2,
        worker_enable_prefetch_count_reduction=False,
        **conf,
    )
    project.start_workers(2, concurrency=CONCURRENCY)
    with storms.Supervisor(project, concurrency=CONCURRENCY) as supervisor:
        yield Stage(project, broker, proxy, supervisor)
    project.ask_workers_to_end()
    for worker in project.workers:
        worker.stop()


def weather(
    stage: Stage,
    figures: Figures,
    name: str,
    strike: Callable[[], None],
    *,
    every: float,
    seconds: float = STORM_S,
) -> None:
    began = time.monotonic()
    said = conflict_storm(
        stage.project,
        stage.broker,
        stage.supervisor,
        strike,
        every=every,
        seconds=seconds,
        within=PATIENCE_S,
    )
    figures.add(f"{name}: {said}", time.monotonic() - began)


def test_a_cut_connection_loses_and_doubles_nothing(stage: Stage, figures: Figures) -> None:
    strike = partial(storms.cut, stage.broker, stage.proxy)
    weather(stage, figures, "cut", strike, every=3.0)


def test_a_restarted_broker_loses_and_doubles_nothing(stage: Stage, figures: Figures) -> None:
    strike = partial(storms.restart, stage.broker, stage.proxy)
    # Meanwhile nothing can be published, for as long as a third of that.
    weather(stage, figures, "restarted", strike, every=6.0, seconds=3 * STORM_S)


def test_a_killed_worker_loses_and_doubles_nothing(stage: Stage, figures: Figures) -> None:
    weather(stage, figures, "killed", stage.supervisor.kill_one, every=4.0)
