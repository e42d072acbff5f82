"""Fixtures for tests of singleton tasks. pytest loads this module at each start, so imports wait.

Every name begins with ``redlock_``: other plugins for Celery have fixtures of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from celery import Celery

    from . import Locks, MemoryServers, Servers

_NODES = 3


@pytest.fixture
def redlock_app(request: pytest.FixtureRequest) -> Celery:
    """The app under test, unless your `conftest.py` names another.

    It is that of Celery's own fixtures, such as `celery_worker`, if the test asks for them; else
    the current app.
    """
    from celery._state import get_current_app  # noqa: PLC0415  # `current_app` is a proxy

    for name in ("celery_app", "celery_session_app"):
        if name in request.fixturenames:
            # It becomes the current app only when its fixture is set up.
            app: Celery = request.getfixturevalue(name)
            return app
    return get_current_app()


@pytest.fixture(scope="session")
def _redlock_memory_servers() -> Iterator[MemoryServers]:
    from . import start_memory_servers  # noqa: PLC0415

    with start_memory_servers(_NODES) as nodes:
        yield nodes


@pytest.fixture(scope="session")
def _redlock_real_servers() -> Iterator[Servers]:
    from . import start_servers  # noqa: PLC0415

    with start_servers(_NODES) as nodes:
        yield nodes


@pytest.fixture
def redlock_nodes(
    request: pytest.FixtureRequest, redlock_app: Celery
) -> Iterator[MemoryServers | Servers]:
    """Three in-memory nodes, empty, on which the app's tasks are locked in this test.

    With `redlock_servers` in the same test, these are they.
    """
    from .settings import locked_on  # noqa: PLC0415

    is_real, is_disabled = (
        name in request.fixturenames for name in ("redlock_servers", "redlock_disabled")
    )
    nodes: MemoryServers | Servers = request.getfixturevalue(
        "_redlock_real_servers" if is_real else "_redlock_memory_servers"
    )
    nodes.reset()
    with locked_on(redlock_app, nodes.urls, is_enabled=not is_disabled):
        yield nodes


@pytest.fixture
def redlock_servers(redlock_nodes: Servers) -> Servers:
    """Three real servers, empty, on which the app's tasks are locked in this test."""
    return redlock_nodes


@pytest.fixture
def redlock_disabled(redlock_app: Celery) -> Iterator[None]:
    """Tasks run without locks in this test, and need no node."""
    from .settings import with_settings  # noqa: PLC0415

    with with_settings(redlock_app, redlock_enabled=False):
        yield


@pytest.fixture
def redlock_locks(redlock_app: Celery, redlock_nodes: object) -> Iterator[Locks]:  # noqa: ARG001
    """Locks of the app's tasks: conflicts and lost leases on command, and assertions."""
    from . import Locks  # noqa: PLC0415

    with Locks(redlock_app) as locks:
        yield locks
