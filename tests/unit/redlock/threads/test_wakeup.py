"""The wakeup that wakes a thread."""

from __future__ import annotations

import os
import resource
import select
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from celery_redlock.redlock.threads.wakeup import Wakeup
from tests.support.requirements import unmet


@pytest.fixture(params=["linux", "win32"])
def _platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", request.param)
    if request.param == "win32":
        monkeypatch.delattr(select, "poll")


@pytest.fixture
def wakeup(_platform: None) -> Iterator[Wakeup]:
    wakeup = Wakeup()
    yield wakeup
    wakeup.close()


def test_a_wait_ends_by_itself(wakeup: Wakeup) -> None:
    assert not wakeup.wait(0.001)
    assert not wakeup.wait(-1)


def test_a_ring_ends_the_next_wait_and_only_that(wakeup: Wakeup) -> None:
    wakeup.wake()
    wakeup.wake()
    woken = wakeup.wait(60)
    assert [woken, wakeup.wait(0.001)] == [True, False]


def test_a_ring_from_another_thread_ends_the_wait(wakeup: Wakeup) -> None:
    thread = threading.Thread(target=wakeup.wake)
    thread.start()
    assert wakeup.wait(60)
    thread.join()


def test_a_bell_that_is_never_heard_can_be_rung_for_ever(wakeup: Wakeup) -> None:
    for _ in range(100_000):
        wakeup.wake()
    assert [wakeup.wait(60), wakeup.wait(0.001)] == [True, False]


@pytest.mark.parametrize(
    ("seconds", "longest"), [(-1.0, 0.0), (0.0, 0.0), (2.5, 2.5), (3600.0, 3600.0), (1e9, 3600.0)]
)
@pytest.mark.usefixtures("_platform")
def test_a_wait_is_at_most_an_hour(
    monkeypatch: pytest.MonkeyPatch, seconds: float, longest: float
) -> None:
    waits: list[float] = []
    poll = SimpleNamespace(register=lambda *_: None, poll=lambda ms: waits.append(ms / 1000))
    if hasattr(select, "poll"):
        monkeypatch.setattr(select, "poll", lambda: poll)
    monkeypatch.setattr(select, "select", lambda *args: waits.append(args[-1]))
    assert not Wakeup().wait(seconds)
    assert waits == [longest]


def test_a_wakeup_is_closed_once(wakeup: Wakeup) -> None:
    wakeup.close()
    wakeup.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(wakeup.fd)


def test_a_wakeup_works_beside_thousands_of_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        unmet("this process may not have that many descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    crowd = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while crowd[-1] < 1024:
            crowd.append(os.dup(crowd[0]))
        wakeup = Wakeup()
        try:
            wakeup.wake()
            woken = wakeup.wait(60)
            assert [woken, wakeup.wait(0.001)] == [True, False]
        finally:
            wakeup.close()
    finally:
        for descriptor in crowd:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
