"""On one lock key, this package and the Redlock clients of others exclude each other."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from celery_redlock.redlock import LockHeld, Redlock
from celery_redlock.redlock.protocol.scripts import lock_keys
from celery_redlock.testing import Servers
from tests.conftest import NewRedlock
from tests.support.evidence import record
from tests.support.judges.nodes import assert_freed
from tests.support.requirements import unmet
from tools.benchmarks.node_peers import NotInstalled

from .neighbours import NEIGHBOURS, Neighbour

# Their own code warns, too.
pytestmark = [pytest.mark.neighbours, pytest.mark.filterwarnings("ignore")]

NAME = lock_keys("redlock", "job")[0]
SECTIONS = 25


@pytest.fixture(scope="module")
def figures() -> Iterator[dict[str, dict[str, int]]]:
    """Take down what each neighbour was seen to do."""
    seen: dict[str, dict[str, int]] = {}
    yield seen
    if seen:
        record("neighbours", **seen)


@pytest.fixture(params=list(NEIGHBOURS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def neighbour(name: str, five: Servers) -> Iterator[Neighbour]:
    if "Node.js" in name and not shutil.which("npm"):
        unmet("there is no npm", "npm")
    with ExitStack() as stack:
        try:
            yield NEIGHBOURS[name](five.urls, NAME, stack)
        except NotInstalled as error:
            unmet(str(error), "npm")


@pytest.fixture
def ours(five: Servers, new_redlock: NewRedlock) -> Redlock:
    return new_redlock(five.urls)


def test_what_a_neighbour_holds_is_refused_to_us(ours: Redlock, neighbour: Neighbour) -> None:
    before = ours.acquire("job")
    ours.release(before)
    assert neighbour.acquire(60)
    with pytest.raises(LockHeld):
        ours.acquire("job")
    neighbour.release()
    # Tokens rise across the neighbour's turn.
    assert ours.acquire("job", wait=10).token > before.token


def test_what_we_hold_is_refused_to_a_neighbour(
    five: Servers, ours: Redlock, neighbour: Neighbour
) -> None:
    lease = ours.acquire("job")
    assert not neighbour.acquire(60)
    # What a refused client undoes is its own.
    lease.ensure()
    ours.release(lease)
    assert_freed(five, "job")
    assert neighbour.acquire(60)
    neighbour.release()


def test_of_both_at_once_one_is_inside(
    ours: Redlock, neighbour: Neighbour, name: str, figures: dict[str, dict[str, int]]
) -> None:
    inside: list[str] = []
    together: list[list[str]] = []
    entered = {"ours": 0, "theirs": 0}

    def section(who: str) -> None:
        inside.append(who)
        time.sleep(0.001)
        if inside != [who]:
            together.append(list(inside))
        entered[who] += 1
        inside.remove(who)

    def we() -> None:
        while entered["ours"] < SECTIONS:
            try:
                with ours.lock("job", ttl=30):
                    section("ours")
            except LockHeld:
                time.sleep(0.002)

    def they() -> None:
        while entered["theirs"] < SECTIONS:
            if neighbour.acquire(30):
                section("theirs")
                neighbour.release()
            time.sleep(0.002)

    failed = _all_at_once(we, they)
    assert not failed
    assert not together
    figures[name] = {**entered, "together": len(together)}


def _all_at_once(*works: Callable[[], None]) -> list[BaseException]:
    """Run each in a thread; return what they raised."""
    raised: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # of any kind: the test shows it
            raised.append(error)

    threads = [threading.Thread(target=run, args=[work], daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a client never got its turns"
    return raised
