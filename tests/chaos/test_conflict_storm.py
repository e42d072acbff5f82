"""Brokers with faults, while calls of few keys conflict: none is lost, none runs twice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.chaos.conftest import SECONDS, NewBroker
from tests.integration.conftest import NewProject
from tests.support.faults.nemesis import Nemesis
from tests.support.faults.of_processes import worker_nemeses
from tests.support.faults.of_services import service_nemeses
from tests.support.faults.proxy import Proxy
from tests.support.judges.conflict_storm import conflict_storm
from tests.support.judges.figures import Figures
from tests.support.processes.brokers import BROKERS, Broker
from tests.support.processes.project import Project
from tests.support.processes.supervisor import Supervisor

pytestmark = pytest.mark.chaos
STORM_S = min(60.0, max(6.0, SECONDS / 4))
PATIENCE_S = 180.0
CONCURRENCY = 4


@dataclass
class Stage:
    """Two workers whose broker is their own, behind a proxy."""

    project: Project
    broker: Broker
    supervisor: Supervisor
    faults: dict[str, Nemesis]


@pytest.fixture(scope="module")
def brokers() -> Iterator[ExitStack]:
    """What brokers and their proxies are entered into: they outlive the projects."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module", params=BROKERS)
def stage(
    request: pytest.FixtureRequest,
    brokers: ExitStack,
    new_broker: NewBroker,
    new_project: NewProject,
) -> Iterator[Stage]:
    broker = new_broker(request.param, brokers)
    proxy = brokers.enter_context(Proxy(broker.port))
    project = new_project(
        "conflicting",
        broker=broker.url_at(proxy.port),
        broker_connection_max_retries=None,
        worker_prefetch_multiplier=2,
        worker_enable_prefetch_count_reduction=False,
        **BROKERS[request.param],
    )
    project.start_workers(2, concurrency=CONCURRENCY)
    with Supervisor(project, concurrency=CONCURRENCY) as supervisor:
        faults = service_nemeses("broker", broker, proxy) + worker_nemeses(
            supervisor.running, supervisor.deaths, stopped_s=0.0
        )
        yield Stage(project, broker, supervisor, {fault.name: fault for fault in faults})
    project.ask_workers_to_end()
    for worker in project.workers:
        worker.stop()


def weather(
    stage: Stage, figures: Figures, fault: str, *, every: float, seconds: float = STORM_S
) -> None:
    began = time.monotonic()
    said = conflict_storm(
        stage.project,
        stage.broker,
        stage.supervisor,
        stage.faults[fault],
        every=every,
        seconds=seconds,
        within=PATIENCE_S,
    )
    figures.add(f"{fault}: {said}", time.monotonic() - began)


def test_a_cut_connection_loses_and_doubles_nothing(stage: Stage, figures: Figures) -> None:
    weather(stage, figures, "broker-cut", every=3.0)


def test_a_restarted_broker_loses_and_doubles_nothing(stage: Stage, figures: Figures) -> None:
    # Meanwhile nothing can be published, for as long as a third of that.
    weather(stage, figures, "broker-restarted", every=6.0, seconds=3 * STORM_S)


def test_a_killed_worker_loses_and_doubles_nothing(stage: Stage, figures: Figures) -> None:
    weather(stage, figures, "worker-killed", every=4.0)
