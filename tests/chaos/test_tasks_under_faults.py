"""Singleton tasks in every pool while each fault strikes, alone and with others.

`REDLOCK_CHAOS_SEED` repeats a schedule of faults, `REDLOCK_CHAOS_ONLY` names some of them, with
commas in between.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from celery_redlock.redlock.protocol.quorum import guard_s
from celery_redlock.testing import Server, Servers
from tests.chaos.conftest import SECONDS, NewBroker
from tests.support.faults.clock_shim import WallClock
from tests.support.faults.nemesis import Fault, Nemesis, Strike, Strikes, alone, combined
from tests.support.faults.of_network import network_nemeses, scrambles
from tests.support.faults.of_nodes import (
    PERSISTENCE,
    Replicas,
    Victims,
    forgetful_nemeses,
    new_node,
    node_nemeses,
)
from tests.support.faults.of_processes import killed_acquiring, worker_nemeses
from tests.support.faults.of_services import service_nemeses
from tests.support.judges.conflict_storm import settles
from tests.support.judges.fenced_register import (
    FencedRegister,
    history_in,
    updates_lost,
)
from tests.support.judges.linearizability import judge
from tests.support.judges.validity import Judgement, holds_of, judge_tasks
from tests.support.processes.brokers import BROKERS, Broker, RedisBroker, Service
from tests.support.processes.chaos_project import ChaosProject, Publisher
from tests.support.processes.postgres import Postgres
from tests.support.processes.supervisor import Supervisor
from tests.support.processes.workers import POOLS
from tools.evidence.chaos_figures import ChaosFigures
from tools.evidence.timeline import timeline

pytestmark = pytest.mark.chaos
SEED = int(os.environ.get("REDLOCK_CHAOS_SEED", "1"))
TTL_S, SKEW_S, NODE_TIMEOUT_S = 1.5, 0.25, 0.1
GUARD_S = guard_s(TTL_S, SKEW_S)
STOPPED_S = 2 * TTL_S
TURN_S, REST_S = (0.7, 0.3) if SECONDS < 120 else (4.0, 1.0)
COMBINED_S = max(10.0, SECONDS / 2)
# A lock stands for its ttl, and may be renewed once more by who stood still.
GRACE_S = 2 * TTL_S + STOPPED_S + 2.0
OUTSIDE = "outside"
ONLY = os.environ.get("REDLOCK_CHAOS_ONLY", "").split(",")
PATIENCE_S = 120.0
KEYS_S = 30.0
PICTURE_S = min(KEYS_S, COMBINED_S)
STAGES: dict[str, tuple[str, Callable[[], AbstractContextManager[Service]]]] = {
    "Redis and Redis": ("redis", RedisBroker),
    "RabbitMQ and PostgreSQL": ("classic", Postgres),
    "RabbitMQ, quorum queue, and Redis": ("quorum, direct", RedisBroker),
    "RabbitMQ, quorum queue, topic exchange, and PostgreSQL": ("quorum, topic", Postgres),
}
"""Broker, of `BROKERS`, and result backend."""
FIRST = next(iter(STAGES))
IN_SHORT = 1 if SECONDS < 30 else None


@dataclass
class Stage:
    name: str
    project: ChaosProject
    broker: Broker
    supervisor: Supervisor
    single: list[Nemesis]
    inside: list[Nemesis]
    outside: list[Nemesis]
    replicas: Replicas
    faults: list[Fault] = field(default_factory=list)

    def strike(self, schedule: list[Strike], turn: str, *, is_alone: bool) -> None:
        """Strike while calls are published, and wait until all of them have come to an end."""
        with Publisher(self.project, every=0.12) as publisher:
            publisher.turn = f"{turn}:0"

            def begin(strike: Strike) -> None:
                # More calls are published for a key than can run, one after the other, meanwhile.
                part = strike.nemesis.name if is_alone else int(strike.at / KEYS_S)
                publisher.turn = f"{turn}:{part}"

            with Strikes(schedule, begin) as strikes:
                strikes.wait()
        self.faults += strikes.faults
        assert strikes.errors == []
        assert len(strikes.faults) == len(schedule)
        project = self.project
        is_settled = settles(project, self.broker, PATIENCE_S)
        left = self.broker.left([project.queue])
        assert is_settled, f"messages left: {left}, {project.holds()}"

    def assert_well(self, turn: str) -> Judgement:
        """Judge what happened inside of the fault model."""
        judgement = self.judge(turn)
        assert judgement.violations == []
        # What a Redis server had just given away is lost with the worker that did not note it yet,
        # with or without a lock.
        may_be_lost = self.supervisor.ended if isinstance(self.broker, RedisBroker) else 0
        assert len(judgement.lost) <= may_be_lost, judgement.lost
        return judgement

    def effects(self) -> dict[str, int]:
        """Return what faults have done to bytes and writes."""
        return scrambles(self.project.views) | {"writes_refused_by_replicas": self.replicas.refused}

    def judge(self, turn: str) -> Judgement:
        return judge_tasks(
            self.project.notes(),
            self.supervisor.deaths,
            grace_s=GRACE_S,
            is_judged=lambda key: f"/{turn}" in key,
        )


@pytest.fixture(scope="module")
def figures() -> ChaosFigures:
    return ChaosFigures(SEED, POOLS, OUTSIDE)


@pytest.fixture(scope="module", params=list(STAGES)[:IN_SHORT])
def stage(
    request: pytest.FixtureRequest,
    new_broker: NewBroker,
    _clock_shim: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("project")
    with ExitStack() as stack:
        kind, new_results = STAGES[request.param]
        broker = new_broker(kind, stack)
        results = stack.enter_context(new_results())
        modes = [*PERSISTENCE, "none"]
        clocks = [WallClock(_clock_shim, folder / f"clock-{n}") for n in range(3)]
        for clock in clocks:
            stack.callback(clock.close)
        envs = [clock.env for clock in clocks] + [None, None]
        nodes = Servers(new_node(mode, env) for mode, env in zip(modes, envs, strict=True))
        stack.enter_context(nodes)
        voting_at = time.monotonic() + GUARD_S
        project = stack.enter_context(
            ChaosProject(
                stack, folder, nodes, broker, results, **BROKERS[kind],
                redlock_max_ttl=TTL_S, redlock_ttl=TTL_S, redlock_max_clock_skew=SKEW_S,
                redlock_node_timeout=NODE_TIMEOUT_S, redlock_restart_guard=True,
            )
        )  # fmt: skip
        workers = [project.new_worker(pool=pool, concurrency=3) for pool in POOLS]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.wait_until_ready()
        time.sleep(max(0.0, voting_at - time.monotonic()))
        supervisor = stack.enter_context(Supervisor(project, concurrency=3))
        victims = Victims(nodes, modes)
        master = stack.enter_context(Server("--repl-diskless-sync-delay", "0"))
        replicas = Replicas(master, GUARD_S)
        around = [
            *worker_nemeses(supervisor.running, supervisor.deaths, stopped_s=STOPPED_S),
            killed_acquiring(project.views[0], supervisor.running, supervisor.deaths),
            *service_nemeses("broker", broker, project.to_broker),
            *service_nemeses("results", results, project.to_results),
        ]
        of_nodes = [*node_nemeses(victims), replicas.nemesis(victims)]
        inside = [*around, *of_nodes, *network_nemeses(project.views)]
        # One by one, the faults of nodes are the same with any broker.
        single = inside if request.param == FIRST else around
        single, inside = (
            [nemesis for nemesis in some if any(part in nemesis.name for part in ONLY)]
            for some in (single, inside)
        )
        outside = forgetful_nemeses(victims, clocks)
        yield Stage(request.param, project, broker, supervisor, single, inside, outside, replicas)


def test_each_fault_alone(stage: Stage) -> None:
    stage.strike(
        alone(stage.single, seed=SEED, seconds=TURN_S, rest=REST_S), "alone", is_alone=True
    )
    judgement = stage.assert_well("alone")
    assert judgement.acquisitions > len(stage.single)


def test_faults_at_the_same_time(stage: Stage) -> None:
    schedule = combined(stage.inside, seed=SEED, total=COMBINED_S, lasts=1.0, every=1.6)
    stage.strike(schedule, "combined", is_alone=False)
    stage.assert_well("combined")


def test_outside_of_the_fault_model_the_tokens_hold(stage: Stage) -> None:
    schedule = alone(stage.outside, seed=SEED, seconds=TURN_S, rest=REST_S)
    stage.strike(schedule, OUTSIDE, is_alone=True)
    assert stage.judge(OUTSIDE).unfenced == []


def test_the_register_is_linearizable_all_the_time(stage: Stage) -> None:
    history = history_in(stage.project.folder)
    judgement = judge(history, FencedRegister())
    assert judgement.is_linearizable, str(judgement)
    assert updates_lost(history) == {}


def test_the_figures_are_recorded(stage: Stage, figures: ChaosFigures) -> None:
    """Not a test: it comes last, and has the figures of those before."""
    turns = {turn: stage.judge(turn) for turn in ("alone", "combined", OUTSIDE)}
    history = history_in(stage.project.folder)
    effects = stage.effects()
    file = figures.add(stage.name, turns, stage.faults, stage.supervisor.deaths, history, effects)
    if stage.name != FIRST:
        return  # one picture is enough, and not each fault is struck
    assert any(ONLY) or all(effects.values()), effects
    holds = holds_of(stage.project.notes(), stage.supervisor.deaths)
    shown = {
        key.partition("-late/")[0]: of_key
        for key, of_key in holds.items()
        if key.endswith("/combined:0")
    }
    first = min(hold.won_at for of_key in shown.values() for hold in of_key)
    picture = timeline(
        f"Singleton tasks in five pools under faults (seed {SEED})",
        shown, stage.faults, begin=first, end=first + PICTURE_S,
    )  # fmt: skip
    file.with_suffix(".svg").write_text(picture, encoding="utf-8")
