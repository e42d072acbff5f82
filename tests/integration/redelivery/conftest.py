"""Projects whose worker reads from its broker, but writes to it through a proxy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from tests.support.faults.proxy import Proxy
from tests.support.processes.project import Project

Brokers = tuple[Project, Proxy]


@contextmanager
def writing_through_proxy(project: Project, concurrency: int) -> Iterator[Brokers]:
    """Start a worker that writes to its broker through the proxy; end it after the block."""
    address = urlsplit(str(project.conf["broker_url"]))
    with Proxy(address.port or 5672) as proxy:
        user, at, _ = address.netloc.rpartition("@")
        proxied = address._replace(netloc=f"{user}{at}127.0.0.1:{proxy.port}").geturl()
        project.start_worker(env={"CELERY_BROKER_WRITE_URL": proxied}, concurrency=concurrency)
        yield project, proxy
        project.ask_workers_to_end()
        for worker in project.workers:
            worker.stop()


@pytest.fixture
def project(brokers: Brokers) -> Project:
    """The project of the file's `brokers`."""
    return brokers[0]


@pytest.fixture
def proxy(brokers: Brokers) -> Iterator[Proxy]:
    """The proxy of the file's `brokers`, healed after each test."""
    yield brokers[1]
    brokers[1].heal()
