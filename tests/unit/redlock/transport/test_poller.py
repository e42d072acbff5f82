"""Waiting for several sockets, with each kind of poller that needs no eventlet."""

from __future__ import annotations

import gc
import select
import socket
from collections.abc import Callable, Iterator

import pytest

from celery_redlock.redlock.threads import native
from celery_redlock.redlock.transport import poller as module
from celery_redlock.redlock.transport.poller import Poller, new_poller
from tests.support.requirements import unmet

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture(scope="module", autouse=True)
def _few_descriptors() -> None:
    """Close what earlier tests have dropped: `select` can't wait for a number from 1,024 on."""
    gc.collect()


@pytest.fixture(params=["poll", "select"])
def poller(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Poller:
    if request.param == "select":
        monkeypatch.delattr(select, "poll")
    elif not hasattr(select, "poll"):
        unmet("this system has no poll")
    return new_poller()


@pytest.fixture
def new_pair() -> Iterator[Callable[[], Pair]]:
    """Connect two sockets: `new_pair()`, as often as you like."""
    made: list[socket.socket] = []

    def new() -> Pair:
        pair = socket.socketpair()
        made.extend(pair)
        return pair

    yield new
    for each in made:
        each.close()


def test_only_descriptors_that_can_be_read_are_returned(
    poller: Poller, new_pair: Callable[[], Pair]
) -> None:
    (mine, other), (silent, _) = new_pair(), new_pair()
    for end in (mine, silent):
        poller.register(end.fileno(), writing=False)
    assert list(poller.wait(0)) == []
    other.send(b"x")
    assert list(poller.wait(60)) == [mine.fileno()]


def test_a_descriptor_is_waited_for_to_be_written_only_if_asked(
    poller: Poller, new_pair: Callable[[], Pair]
) -> None:
    mine, _ = new_pair()
    poller.register(mine.fileno(), writing=True)
    assert list(poller.wait(60)) == [mine.fileno()]
    poller.register(mine.fileno(), writing=False)
    assert list(poller.wait(0)) == []


def test_a_descriptor_that_can_be_read_and_written_comes_once(
    poller: Poller, new_pair: Callable[[], Pair]
) -> None:
    mine, other = new_pair()
    other.send(b"x")
    poller.register(mine.fileno(), writing=True)
    assert list(poller.wait(60)) == [mine.fileno()]


def test_a_descriptor_that_was_removed_is_not_returned(
    poller: Poller, new_pair: Callable[[], Pair]
) -> None:
    mine, other = new_pair()
    poller.register(mine.fileno(), writing=True)
    poller.unregister(mine.fileno())
    other.send(b"x")
    assert list(poller.wait(0)) == []


def test_the_end_of_a_connection_is_readable(poller: Poller, new_pair: Callable[[], Pair]) -> None:
    mine, other = new_pair()
    poller.register(mine.fileno(), writing=False)
    other.close()
    assert list(poller.wait(60)) == [mine.fileno()]


def test_under_eventlet_the_hub_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_eventlet", lambda: True)
    assert isinstance(new_poller(), module._Eventlet)
    assert not native.is_eventlet(), "else the others would not be tested here"


@pytest.mark.parametrize("seconds", [1e7, 1e100])
def test_a_wait_may_be_longer_than_the_kernel_counts(
    poller: Poller, new_pair: Callable[[], Pair], seconds: float
) -> None:
    ours, theirs = new_pair()
    poller.register(ours.fileno(), writing=False)
    theirs.send(b"x")
    assert list(poller.wait(seconds)) == [ours.fileno()]
