"""The bell that wakes a thread."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator

import pytest

from celery_redlock.redlock.bell import Bell


@pytest.fixture
def bell() -> Iterator[Bell]:
    bell = Bell()
    yield bell
    bell.close()


def test_a_wait_ends_by_itself(bell: Bell) -> None:
    assert not bell.wait(0.001)
    assert not bell.wait(-1)


def test_a_ring_ends_the_next_wait_and_only_that(bell: Bell) -> None:
    bell.ring()
    bell.ring()
    rung = bell.wait(60)
    assert [rung, bell.wait(0.001)] == [True, False]


def test_a_ring_from_another_thread_ends_the_wait(bell: Bell) -> None:
    thread = threading.Thread(target=bell.ring)
    thread.start()
    assert bell.wait(60)
    thread.join()


def test_a_bell_that_is_never_heard_can_be_rung_for_ever(bell: Bell) -> None:
    for _ in range(100_000):
        bell.ring()
    assert bell.wait(60)


def test_a_process_with_thousands_of_connections_can_have_a_bell() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("this process may not have that many descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    crowd = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while crowd[-1] < 1024:
            crowd.append(os.dup(crowd[0]))
        bell = Bell()
        try:
            bell.ring()
            rung = bell.wait(60)
            assert [rung, bell.wait(0.001)] == [True, False]
        finally:
            bell.close()
    finally:
        for descriptor in crowd:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
