"""Fixtures for tests that need real servers. They are started here, never expected to be there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from celery_redlock.redlock import Redlock
from celery_redlock.testing import Server, Servers, find_server_binary, start_servers

from .support.clock_shim import WallClock, build_clock_shim
from .support.proxy import Proxy
from .support.requirements import unmet

StartServers = Callable[..., Servers]
NewRedlock = Callable[..., Redlock]


@pytest.fixture(scope="session")
def _has_server() -> None:
    try:
        find_server_binary()
    except FileNotFoundError as exc:
        unmet(str(exc))


@pytest.fixture
def redis_binary(request: pytest.FixtureRequest) -> Path:
    """One of the servers of `@redis_versions`."""
    binary: Path | None = request.param
    return binary if binary is not None else unmet("no Redis server found")


@pytest.fixture
def servers(_has_server: None) -> Iterator[StartServers]:
    """Start servers that this test has to itself: `servers(3, *more_arguments, binary=None)`."""
    with ExitStack() as stack:

        def start(count: int, *args: str, binary: Path | None = None) -> Servers:
            return stack.enter_context(start_servers(count, *args, binary=binary))

        yield start


@pytest.fixture(scope="session")
def _shared_five(_has_server: None) -> Iterator[Servers]:
    with start_servers(5) as five:
        yield five


@pytest.fixture
def five(_shared_five: Servers) -> Servers:
    """Five servers, running and empty, which tests share; they may be paused, killed, stopped."""
    _shared_five.reset()
    return _shared_five


@pytest.fixture
def new_redlock() -> Iterator[NewRedlock]:
    """Make a lock for a test: `new_redlock(urls, **options)`, closed in the end.

    It is patient, since the machine may be slow; and its nodes vote at once, since they have just
    been started.
    """
    with ExitStack() as stack:

        def new(urls: Sequence[str], **options: Any) -> Redlock:
            redlock = Redlock(urls, **{"node_timeout": 2.0, "restart_guard": False} | options)
            stack.callback(redlock.close)
            return redlock

        yield new


@pytest.fixture
def proxy_for() -> Iterator[Callable[[Server], Proxy]]:
    """Put a fault proxy in front of a server: `proxy_for(server)`, as often as you like."""
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(Proxy(server.port))


@pytest.fixture(scope="session")
def _clock_shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_clock_shim(tmp_path_factory.mktemp("clock-shim"))


@pytest.fixture
def new_wall_clock(_clock_shim: Path, tmp_path: Path) -> Iterator[Callable[[], WallClock]]:
    """Make a wall clock for one server: `Server(env=clock.env)`, then `clock.step(60)`."""
    with ExitStack() as stack:
        clocks: list[WallClock] = []

        def new() -> WallClock:
            clock = WallClock(_clock_shim, tmp_path / f"wall-clock-{len(clocks)}")
            clocks.append(clock)
            stack.callback(clock.close)
            return clock

        yield new
