"""Waiting for a lock: how soon the next holder has it, and who gets it how often."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import pytest

from celery_redlock import LockHeld
from celery_redlock.testing import Servers
from tests.conftest import NewRedlock
from tests.support.root import ROOT
from tools.benchmarks.names import OURS, PYTHON_REDIS_LOCK, REDIS_PY
from tools.benchmarks.page import Page, Row
from tools.benchmarks.peers import TTL_S, new_key
from tools.benchmarks.sampling import Variant
from tools.benchmarks.waiter import WAITING, Wait

# Others' code warns, too.
pytestmark = [pytest.mark.benchmark, pytest.mark.filterwarnings("ignore")]

_HELD_S = (0.05, 0.15)
_OURS_PER_TURN = 4
"""Its targets are percentiles, for which few samples are not enough."""
THREADS = 16
WAITERS = 1000
_RAMP_S = 3.0
"""Time for all waiters to connect, and to settle."""


@contextmanager
def _waiter(name: str, key: str, urls: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tools.benchmarks.waiter", name, key, *urls],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _hand_over(wait: Wait, waiter: subprocess.Popen[str]) -> float:
    """Return how long after the begin of a release another process has the lock, in seconds."""
    assert waiter.stdin
    assert waiter.stdout
    with wait():
        waiter.stdin.write("\n")
        waiter.stdin.flush()
        waiter.stdout.readline()
        time.sleep(random.uniform(*_HELD_S))
        released_at = time.monotonic_ns()
    return (int(waiter.stdout.readline()) - released_at) / 1e9


def test_the_next_holder_in_another_process(five: Servers, seconds: float, page: Page) -> None:
    with ExitStack() as stack:
        pairs, missing = {}, []
        for name, new in WAITING.items():
            key = new_key()
            try:
                holder = new(five.urls, key, stack)
            except ImportError:
                missing.append({"name": name, "missing": "not installed"})
                continue
            pairs[name] = holder, stack.enter_context(_waiter(name, key, five.urls))
        for pair in pairs.values():
            _hand_over(*pair)
        turn = [*pairs, *[OURS] * (_OURS_PER_TURN - 1)]
        variants = {name: Variant(name) for name in pairs}
        ends_at = time.perf_counter() + 2 * seconds
        while time.perf_counter() < ends_at:
            random.shuffle(turn)
            for name in turn:
                variants[name].walls.append(_hand_over(*pairs[name]))
    rows = [variant.row() for variant in variants.values()]
    page.add("hand_over", "A waiter in another process has the lock, after release", rows + missing)


def _fight(wait: Wait, seconds: float) -> Row:
    """Return how often each thread had the lock, and the longest that one waited for it."""
    turns = [0] * THREADS
    longest = [0.0] * THREADS
    ends_at = time.perf_counter() + seconds

    def loop(number: int) -> None:
        while (began := time.perf_counter()) < ends_at:
            with wait():
                longest[number] = max(longest[number], time.perf_counter() - began)
                turns[number] += 1

    threads = [threading.Thread(target=loop, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "turns_per_s": sum(turns) / seconds,
        "longest_s": max(longest),
        "least": min(turns),
        "most": max(turns),
        "least_to_most": min(turns) / max(turns),
    }


def test_many_threads_on_one_key(five: Servers, seconds: float, page: Page) -> None:
    for name in (OURS, REDIS_PY, PYTHON_REDIS_LOCK):
        with ExitStack() as stack:
            try:
                wait = WAITING[name](five.urls, new_key(), stack)
            except ImportError:
                row: Row = {"missing": "not installed"}
            else:
                row = _fight(wait, seconds)
            page.add("contention", f"{THREADS} threads on one key", [{"name": name, **row}])


def test_what_waiters_ask_of_a_node(
    five: Servers, new_redlock: NewRedlock, seconds: float, page: Page
) -> None:
    waiters, lasts = min(WAITERS, int(seconds * 100)), max(3.0, seconds / 3)
    holder, redlock = new_redlock(five.urls), new_redlock(five.urls)
    key = new_key()

    def wait() -> None:
        with suppress(LockHeld):
            redlock.acquire(key, ttl=TTL_S, wait=_RAMP_S + lasts)

    threads = [threading.Thread(target=wait) for _ in range(waiters)]
    with holder.lock(key, ttl=60.0), five[-1].client() as client:
        for thread in threads:
            thread.start()
        time.sleep(_RAMP_S)
        before, began = client.info(), time.perf_counter()
        time.sleep(lasts)
        after, took = client.info(), time.perf_counter() - began
        for thread in threads:
            thread.join()
    cpu = sum(after[name] - before[name] for name in ("used_cpu_user", "used_cpu_sys"))
    commands = after["total_commands_processed"] - before["total_commands_processed"]
    row = {
        "name": OURS,
        "waiters": waiters,
        "commands_per_s": commands / took,
        "node_cpu_share": cpu / took,
        "connections": after["connected_clients"],
    }
    page.add("waiters", "What the waiters of one process on one key ask of a node", [row])
