"""Storms have real workers, too: the fixtures are those of tests/integration."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.integration.conftest import (
    _lock_nodes,
    figures,
    key,
    new_nodes,
    new_project,
    pytest_runtest_makereport,
    rabbitmq,
)
from tests.support.processes.brokers import Broker, RabbitMQ, RedisBroker

SECONDS = float(os.environ.get("REDLOCK_CHAOS_SECONDS", "600"))
PATIENCE_S = 600.0
NewBroker = Callable[[str, ExitStack], Broker]

__all__ = [
    "PATIENCE_S",
    "SECONDS",
    "NewBroker",
    "_lock_nodes",
    "figures",
    "key",
    "new_broker",
    "new_nodes",
    "new_project",
    "pytest_runtest_makereport",
    "rabbitmq",
]


@pytest.fixture(scope="session")
def own_rabbitmq() -> Iterator[RabbitMQ]:
    """A RabbitMQ node that the chaos has to itself; it takes seconds to start."""
    with RabbitMQ() as broker:
        yield broker


@pytest.fixture(scope="session")
def new_broker(request: pytest.FixtureRequest) -> NewBroker:
    """Return a broker of one of `BROKERS`; what it needs is entered into a stack of the test's."""

    def new(kind: str, stack: ExitStack) -> Broker:
        if kind == "redis":
            return stack.enter_context(RedisBroker())
        broker: RabbitMQ = request.getfixturevalue("own_rabbitmq")
        return broker

    return new
