"""A worker with one pool process, whose nodes are behind proxies."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import redis

from celery_redlock.testing import Servers
from tests.support.eventually import PATIENCE, eventually
from tests.support.faults.proxy import Proxy

from .project import Project
from .workers import Worker

_ASKING = 3
"""The process of the pool, the main process's keeper of the pool, and its node watch."""


@dataclass(frozen=True, slots=True)
class BehindProxies:
    """A worker with one pool process, whose nodes are behind proxies.

    Attributes:
        project: Its project; it sees the nodes themselves, and has a task `early`.
        worker: The worker.
        proxies: What the worker's nodes are behind.
    """

    project: Project
    worker: Worker
    proxies: list[Proxy]

    def child(self) -> int:
        """Return the one process of the pool, once all have their connections to the nodes."""
        result = self.project.tasks.early.delay(uuid.uuid4().hex)
        result.get(timeout=PATIENCE)
        eventually(self._are_connected, "the process, the pool's keeper, and the node watch asked")
        return self.project.run_of(result.id).pid

    def _are_connected(self) -> bool:
        """Return whether each has asked each node, and was answered: nobody else connects."""
        for proxy in self.proxies:
            # What it answered them has passed before this.
            with redis.Redis(port=proxy.port) as client:
                last = [one["cmd"] for one in client.client_list()]
            if last.count("evalsha") < _ASKING:
                return False
        return True

    def hold(self, *, requests: bool) -> None:
        """Let nothing pass to the nodes, or nothing back."""
        for proxy in self.proxies:
            direction = proxy.requests if requests else proxy.replies
            direction.holds = True

    def heal(self) -> None:
        """Let everything pass again, what was held back too."""
        for proxy in self.proxies:
            proxy.heal()


@contextmanager
def behind_proxies(
    new_project: Any, nodes: Servers, module: str, env: Mapping[str, str] | None = None, **conf: Any
) -> Iterator[BehindProxies]:
    """Start a worker whose nodes are behind proxies.

    Args:
        new_project: The fixture.
        nodes: The nodes.
        module: Of the project's app.
        env: More environment variables of the worker.
        conf: More settings of the project.
    """
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(node.port)) for node in nodes]
        urls = [proxy.url for proxy in proxies]
        project = new_project(module, nodes=nodes, redlock_nodes=urls, **conf)
        worker = project.start_worker(concurrency=1, env=dict(env or {}))
        stack.callback(worker.kill_all)
        yield BehindProxies(project, worker, proxies)
