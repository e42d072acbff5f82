"""Acquire and release: against peers, distance, clients, nodes, faults, and persistence."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import pytest

from celery_redlock import Redlock
from celery_redlock.testing import Servers, start_servers
from tests.conftest import NewRedlock, StartServers
from tools.benchmarks import peers
from tools.benchmarks.bare import BareLock
from tools.benchmarks.hop import ROUND_TRIPS_MS, reached
from tools.benchmarks.names import BARE, OURS, OURS_ON_ONE, POTTERY, REDIS_PY, REDLOCK_PY
from tools.benchmarks.page import Page, Row
from tools.benchmarks.sampling import Call, interleaved, percentiles_us, timed

# Others' code warns, too.
pytestmark = [pytest.mark.benchmark, pytest.mark.filterwarnings("ignore")]

CLIENTS = (1, 8, 64, 512)
QUORUMS = (1, 3, 5, 7)


def _ours(redlock: Redlock) -> Call:
    key = peers.new_key()
    return lambda: redlock.release(redlock.acquire(key, ttl=peers.TTL_S))


def _bare(servers: Sequence[str], stack: ExitStack) -> Call:
    bare = BareLock(int(url.rpartition(":")[2]) for url in servers)
    stack.callback(bare.close)
    return lambda: bare.acquire_and_release("key")


def _missing_rows(missing: Mapping[str, str], **more: object) -> list[Row]:
    return [{"name": name, **more, "missing": why} for name, why in missing.items()]


@pytest.mark.parametrize("round_trip_ms", ROUND_TRIPS_MS)
def test_a_lock_against_its_peers(
    five: Servers, new_redlock: NewRedlock, seconds: float, page: Page, round_trip_ms: float
) -> None:
    with reached(five.urls, round_trip_ms) as urls, ExitStack() as stack:
        blocks = {
            BARE: timed(_bare(urls, stack)),
            OURS: timed(_ours(new_redlock(urls))),
            OURS_ON_ONE: timed(_ours(new_redlock(urls[:1]))),
        }
        others, missing = peers.opened(peers.ALL, urls, stack)
        variants = interleaved(blocks | others, seconds)
    rows = [variant.row(rtt_ms=round_trip_ms) for variant in variants]
    rows += _missing_rows(missing, rtt_ms=round_trip_ms)
    page.add("locks", "Acquire + release, one client", rows)


def test_a_lock_against_bare_sockets(
    five: Servers, new_redlock: NewRedlock, seconds: float, page: Page
) -> None:
    with ExitStack() as stack:
        blocks = {
            BARE: timed(_bare(five.urls, stack)),
            OURS: timed(_ours(new_redlock(five.urls))),
        }
        # Call by call: neither leaves work behind.
        variants = interleaved(blocks, seconds / 2, in_a_row=1)
    rows = [variant.row() for variant in variants]
    page.add("floor", "Acquire + release, against the least that five nodes cost", rows)


@pytest.mark.parametrize("nodes", QUORUMS)
def test_a_lock_on_more_nodes(
    servers: StartServers, new_redlock: NewRedlock, seconds: float, page: Page, nodes: int
) -> None:
    urls = servers(nodes).urls
    names = {"bare sockets": BARE, "celery-redlock": OURS, "redlock-py": REDLOCK_PY}
    with ExitStack() as stack:
        others, missing = peers.opened([REDLOCK_PY], urls, stack)
        blocks = {BARE: timed(_bare(urls, stack)), OURS: timed(_ours(new_redlock(urls)))} | others
        variants = interleaved(blocks, seconds / len(QUORUMS))
    short = {name: short for short, name in names.items()}
    for variant in variants:
        variant.name = short[variant.name]
    missing = {short[name]: why for name, why in missing.items()}
    rows = [variant.row(nodes=nodes) for variant in variants]
    page.add("nodes", "Acquire + release, by nodes", rows + _missing_rows(missing, nodes=nodes))


@pytest.mark.parametrize("clients", CLIENTS)
def test_a_lock_for_many_clients(
    five: Servers, new_redlock: NewRedlock, seconds: float, page: Page, clients: int
) -> None:
    redlock = new_redlock(five.urls)
    with ExitStack() as stack:
        shared: dict[str, Callable[[], Call]] = {OURS: lambda: _ours(redlock)}
        missing: dict[str, str] = {}
        for name in (REDLOCK_PY, REDIS_PY):
            _, missing_here = peers.opened([name], five.urls, stack)
            if missing_here:
                missing |= missing_here
            else:
                shared[name] = lambda name=name: peers.IN_PYTHON[name](five.urls, stack)  # type: ignore[misc]
        rows = [
            {"name": name, "clients": clients, **_crowd(new, clients, seconds / 12)}
            for name, new in shared.items()
        ]
    page.add(
        "clients", "Acquire + release by many threads of one process, each its own lock",
        rows + _missing_rows(missing, clients=clients),
    )  # fmt: skip


def _crowd(new: Callable[[], Call], clients: int, seconds: float) -> Row:
    """Return what threads see that acquire and release without a pause, each a lock of its own."""
    calls = [new() for _ in range(clients)]
    walls: list[list[float]] = [[] for _ in calls]
    are_connected = threading.Barrier(clients + 1)
    has_ended = threading.Event()

    def loop(call: Call, mine: list[float]) -> None:
        call()
        are_connected.wait()
        while not has_ended.is_set():
            began = time.perf_counter()
            call()
            mine.append(time.perf_counter() - began)

    threads = [threading.Thread(target=loop, args=pair) for pair in zip(calls, walls, strict=True)]
    for thread in threads:
        thread.start()
    are_connected.wait()
    began = time.perf_counter()
    time.sleep(seconds)
    has_ended.set()
    took = time.perf_counter() - began
    for thread in threads:
        thread.join()
    all_walls = [wall for mine in walls for wall in mine]
    return {"locks_per_s": len(all_walls) / took, **percentiles_us(all_walls)}


def _refuse_one(servers: Servers) -> None:
    servers[0].kill()
    servers[1].resume()


FAULTS: dict[str, Callable[[Servers], None]] = {
    "all five well": lambda servers: None,
    "one hung": lambda servers: servers[0].pause(),
    "two hung": lambda servers: servers[1].pause(),
    "one refuses": _refuse_one,
    "two refuse": lambda servers: servers[1].kill(),
}
"""Each follows the one before."""


def test_a_lock_while_nodes_are_down(new_redlock: NewRedlock, seconds: float, page: Page) -> None:
    with start_servers(5) as servers, ExitStack() as stack:
        # As by default, not as patient as a test: this is how long a silent node is waited for.
        ours = new_redlock(servers.urls, node_timeout=peers.SILENT_S)
        names = (REDLOCK_PY, POTTERY)
        others, missing = peers.opened(names, servers.urls, stack)
        share = seconds / len(FAULTS) / 2
        for state, strike in FAULTS.items():
            strike(servers)
            # Not in turn with the others: a call of theirs may take a second.
            variants = interleaved({OURS: timed(_ours(ours))}, share)
            if others:
                variants += interleaved(others, share, in_a_row=2)
            rows = [variant.row(state=state) for variant in variants]
            page.add(
                "faults", "Acquire + release, while nodes are down",
                rows + _missing_rows(missing, state=state),
            )  # fmt: skip


PERSISTENCE = {
    "none": (),
    "appendfsync everysec": ("--appendonly", "yes", "--appendfsync", "everysec"),
    "appendfsync always": ("--appendonly", "yes", "--appendfsync", "always"),
}


def test_a_lock_on_nodes_that_write_to_disk(
    servers: StartServers, new_redlock: NewRedlock, seconds: float, page: Page
) -> None:
    blocks = {}
    for persistence, arguments in PERSISTENCE.items():
        urls = servers(5, *arguments).urls
        blocks[f"five nodes, {persistence}"] = timed(_ours(new_redlock(urls)))
        blocks[f"one node, {persistence}"] = timed(_ours(new_redlock(urls[:1])))
    variants = interleaved(blocks, seconds / 2)
    page.add("disk", "Acquire + release, by persistence", [variant.row() for variant in variants])
