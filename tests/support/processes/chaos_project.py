"""A project whose nodes, network, workers, broker and result backend can all be struck."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery_redlock.testing import Server, Servers
from tests.support.faults.proxy import Proxy

from .brokers import Broker, Service
from .project import Project
from .publishing import publish
from .workers import POOLS, Worker

if TYPE_CHECKING:
    from typing_extensions import Self

MODULE = "tests.integration.apps.chaotic"


class ChaosProject(Project):
    """Workers of every pool, in two groups with ways of their own to the nodes.

    Args:
        stack: What proxies and servers are entered into.
        folder: An empty one.
        nodes: The lock nodes; they run.
        broker: It runs.
        results: The result backend; it runs.
        conf: More of Celery's configuration.

    Attributes:
        views: For each group, its proxy to each node.
        to_broker: The proxy before the broker.
        to_results: That before the result backend.
    """

    def __init__(
        self, stack: ExitStack, folder: Path, nodes: Servers, broker: Broker, results: Service,
        **conf: Any,
    ) -> None:  # fmt: skip
        self.views = [[stack.enter_context(Proxy(node.port)) for node in nodes] for _ in range(2)]
        self.to_broker = stack.enter_context(Proxy(broker.port))
        self.to_results = stack.enter_context(Proxy(results.port))
        register = stack.enter_context(Server())
        super().__init__(
            MODULE, folder, broker.url_at(self.to_broker.port),
            results.url_at(self.to_results.port), nodes,
            chaos_register=register.url,
            broker_connection_max_retries=None,
            worker_prefetch_multiplier=1,
            # Else, after a reconnection, a greenlet reads from RabbitMQ beside the one that does.
            worker_enable_prefetch_count_reduction=False,
            # Else a call whose result PostgreSQL refuses three times is never acknowledged.
            result_backend_always_retry=True,
            result_backend_max_retries=1000,
            result_backend_max_sleep_between_retries_ms=500,
            **conf,
        )  # fmt: skip

    def new_worker(self, **options: Any) -> Worker:
        """Return one more worker, of the group that its pool belongs to."""
        view = self.views[POOLS.index(options.get("pool", "prefork")) % len(self.views)]
        conf = {"redlock_nodes": [proxy.url for proxy in view]}
        return super().new_worker(**options, env={"REDLOCK_TEST_CONF": json.dumps(conf)})


class Publisher(threading.Thread):
    """Publishes calls of few keys, until it is stopped; by `with`.

    Args:
        project: Its tasks are called.
        every: Seconds between two calls, on average.
        lengths: How long a body may run, seconds.

    Attributes:
        turn: First part of the keys; may be changed at any time.
    """

    def __init__(
        self, project: ChaosProject, every: float, lengths: Sequence[float] = (0.05, 0.2, 0.6, 2.2)
    ) -> None:
        super().__init__(name="publisher", daemon=True)
        self.turn = "calm"
        self._project, self._every, self._lengths = project, every, lengths
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join()

    def run(self) -> None:
        """Publish."""
        chance, tasks = random.Random(0), self._project.tasks
        while not self._is_over.wait(chance.uniform(0, 2 * self._every)):
            body, key, length = chance.choice(tasks.bodies), self.turn, chance.choice(self._lengths)
            publish(tasks.inside, body, key, length, key=f"{body.name}/{key}")
