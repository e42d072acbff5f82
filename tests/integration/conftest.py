"""Fixtures for tests with real workers: each file has a project, its broker and lock nodes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from celery_redlock.testing import Server, Servers, start_servers
from tests.support.judges.figures import Figures
from tests.support.processes import workers
from tests.support.processes.project import Project
from tests.support.requirements import rabbitmq_url

NewProject = Callable[..., Project]
NewNodes = Callable[..., Servers]


_LONG = {"eventlet", "solo", "classic", "rabbitmq classic"}
"""Of whole workers, `make test` has prefork's, threads and gevent's, and RabbitMQ's quorum queues.
What differs in others, as to poll and to wake a greenlet, is tried without a worker."""


def pytest_itemcollected(item: pytest.Item) -> None:
    if isinstance(item, pytest.Function) and "new_project" in item.fixturenames:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if not _LONG.isdisjoint(one for one in parameters.values() if isinstance(one, str)):
            item.add_marker(pytest.mark.long)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the workers' logs with a test that failed."""
    report = yield
    if report.failed:
        for worker in workers.started:
            report.sections.append((f"log of {worker}", worker.log_tail()))
    return report


@pytest.fixture(scope="session")
def _lock_nodes(_has_server: None) -> Iterator[Servers]:
    with start_servers(3) as nodes:
        yield nodes


@pytest.fixture(scope="session")
def rabbitmq() -> str:
    """The URL of a RabbitMQ broker; none is started here, for it comes in no wheel."""
    return rabbitmq_url()


@pytest.fixture(scope="module")
def new_project(
    _lock_nodes: Servers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NewProject]:
    """Make a project that lives as long as the test file: `new_project(module, **conf)`.

    With a Redis server of its own as broker and result backend, unless `broker` names another one;
    and with three lock nodes that all files share, unless it is given `nodes`: those are for tests
    that stop them.
    """
    projects: list[Project] = []
    brokers: list[Server] = []
    with ExitStack() as stack:

        def new(
            module: str, *, nodes: Servers | None = None, broker: str | None = None, **conf: Any
        ) -> Project:
            server = stack.enter_context(Server())
            brokers.append(server)
            folder = tmp_path_factory.mktemp("project")
            project = Project(
                f"tests.integration.apps.{module}",
                folder,
                broker or f"{server.url}/0",
                f"{server.url}/1",
                nodes or _lock_nodes,
                **conf,
            )
            projects.append(project)
            return stack.enter_context(project)

        yield new
        for project in projects:
            project.ask_workers_to_end()  # all of them at once, since each takes its time
        for server in brokers:
            assert server.is_running, f"{server} ended with {server.process.returncode}"


@pytest.fixture
def key(project: Project) -> Iterator[str]:
    """The name of a lock that no other test has, and of a gate that is open at the end of the test.

    For files that have a fixture `project`.
    """
    key = uuid.uuid4().hex
    yield key
    project.open(key)


@pytest.fixture(scope="module")
def new_nodes(_has_server: None) -> Iterator[NewNodes]:
    """Start lock nodes that this test file has to itself: `new_nodes(3)`, with arguments if any."""
    with ExitStack() as stack:
        yield lambda count, *args: stack.enter_context(start_servers(count, *args))


@pytest.fixture(scope="module")
def figures() -> Iterator[Figures]:
    """Take down what this test file measures; shown with its last test, by ``pytest -rP`` too."""
    figures = Figures()
    yield figures
    print(figures)  # noqa: T201 - it is for who looks at the tests
