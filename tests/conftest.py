"""Fixtures for tests that need real servers. They are started here, never expected to be there."""

from __future__ import annotations

import gc
import math
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.testing import Server, Servers, find_server_binary, start_servers

from .support.faults.clock_shim import WallClock, build_clock_shim
from .support.faults.proxy import Proxy
from .support.lock_alone import is_of_the_lock_alone
from .support.reports import encodable
from .support.requirements import unmet, what_tests_run_on

# No correctness test depends on how fast the machine is.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# A project of its own, whose tests a test runs.
collect_ignore = ["django_project"]

StartServers = Callable[..., Servers]
NewRedlock = Callable[..., TaskLock]
ProxyFor = Callable[[Server], Proxy]


def pytest_configure() -> None:
    # Until all tests are collected: next to nothing of what that makes is garbage.
    gc.disable()
    # Ignored in the background of a script, and then in every process that a test starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # What a test has started ends, and its folders go, as after Ctrl-C: CI's time limits send this.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_report_header() -> str:
    return what_tests_run_on()


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    return encodable((yield))


def pytest_collection_finish() -> None:
    # The modules and thousands of tests live as long as this process. Each full collection would
    # look at them all, and those that tests ask for are many.
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    # Imports are read only if `-m` asks: each process of pytest-xdist would read them all.
    if "lock" in item.config.option.markexpr and is_of_the_lock_alone(item.path):
        item.add_marker("lock")


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

    It is patient, since the machine may be slow and a test's clock may leap; and its nodes vote at
    once, since they have just been started.
    """
    with ExitStack() as stack:

        def new(urls: Sequence[str], **options: Any) -> TaskLock:
            patient = {"node_timeout": 2.0, "restart_guard": False, "idle_timeout": math.inf}
            redlock = TaskLock(urls, **patient | options)
            stack.callback(redlock.close)
            return redlock

        yield new


@pytest.fixture
def proxy_for() -> Iterator[ProxyFor]:
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
