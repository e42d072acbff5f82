"""Operations that fail keep nothing of their callers alive."""

from __future__ import annotations

import pytest

from celery_redlock.redlock import Redlock
from celery_redlock.redlock.lease import Lease
from celery_redlock.redlock.task_lock import TaskLock
from tests.support.fakes.simulated_network import Network
from tests.support.garbage import frames_left_by


@pytest.fixture
def redlock(five: Network) -> Redlock:
    """A client whose errors nobody keeps."""
    return five.redlock()


@pytest.mark.parametrize("wait", [0.0, 5.0])
def test_a_refused_acquisition_leaves_no_frame(redlock: Redlock, lease: Lease, wait: float) -> None:
    assert frames_left_by(lambda: redlock.acquire(lease.key, wait=wait)) == []


def test_an_acquisition_without_a_quorum_leaves_no_frame(redlock: Redlock, five: Network) -> None:
    for node in five.nodes[:3]:
        node.is_up = False
    assert frames_left_by(lambda: redlock.acquire("k")) == []


def test_a_refused_reservation_leaves_no_frame(redlock: TaskLock, lease: Lease) -> None:
    assert frames_left_by(lambda: redlock.reserve(lease.key, 60)) == []


def test_an_extension_of_a_lost_lease_leaves_no_frame(redlock: Redlock, lease: Lease) -> None:
    redlock.release(lease)
    assert frames_left_by(lambda: redlock.extend(lease)) == []


def test_a_block_that_raises_leaves_no_frame(redlock: Redlock) -> None:
    def fail() -> None:
        with redlock.lock("k"):
            raise ValueError

    assert frames_left_by(fail) == []
