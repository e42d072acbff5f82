"""Nodes that hang: connections stay open, and nothing is answered."""

from __future__ import annotations

import threading

import pytest

from celery_redlock.redlock import LockHeld, QuorumUnavailable
from celery_redlock.testing import Servers
from tests.conftest import NewRedlock
from tests.support.eventually import eventually
from tests.support.fakes.fake_clock import LeapingClock
from tests.support.judges.nodes import (
    assert_freed,
    floor_on,
    holder_on,
    take_on,
)
from tests.support.locking import assert_all_is_well, channel_of, name_of, sent_to, settle


def test_a_hung_minority_is_never_waited_for(five: Servers, new_redlock: NewRedlock) -> None:
    redlock, rival = (new_redlock(five.urls, node_timeout=100) for _ in range(2))
    assert_all_is_well(redlock, rival)
    five[0].pause()
    five[1].pause()
    before = redlock.clock.now()
    for _ in range(5):
        assert_all_is_well(redlock, rival)
    assert redlock.clock.now() - before < 100


def test_a_node_that_owes_replies_only_gets_releases(
    five: Servers, new_redlock: NewRedlock
) -> None:
    clock = LeapingClock()
    redlock = new_redlock(five.urls, clock=clock)
    redlock.release(redlock.acquire("k"))
    five[1].pause()
    lease = redlock.acquire("k")  # it is asked once more, and owes from now on
    settle(redlock, 1)
    clock.leap(3)
    redlock.extend(lease)
    channel = channel_of(redlock)
    assert list(channel.voters()) == list(channel.holders()) == [0, 2, 3, 4]
    before = sent_to(redlock, 1)
    redlock.extend(lease)
    other = redlock.acquire("other")
    assert sent_to(redlock, 1) == before
    redlock.release(other)
    redlock.release(lease)
    assert sent_to(redlock, 1) == before + 2


def test_a_node_that_answers_again_is_asked_again(five: Servers, new_redlock: NewRedlock) -> None:
    clock = LeapingClock()
    redlock = new_redlock(five.urls, clock=clock)
    five[1].pause()
    redlock.release(redlock.acquire("k"))
    settle(redlock, 1)
    clock.leap(3)
    five[1].resume()

    def is_granted_there() -> bool:
        lease = redlock.acquire("k")
        holder = holder_on(five[1], "k")
        redlock.release(lease)
        return holder == lease.owner

    eventually(is_granted_there)


def test_nodes_that_owe_replies_are_asked_if_a_quorum_needs_them(
    five: Servers, new_redlock: NewRedlock
) -> None:
    clock = LeapingClock()
    redlock = new_redlock(five.urls, clock=clock)
    redlock.release(redlock.acquire("k"))
    for server in five[:2]:
        server.pause()
    redlock.release(redlock.acquire("k"))
    settle(redlock, 0, 1)
    clock.leap(3)
    redlock.release(redlock.acquire("k"))
    five[4].kill()  # the end of its connection is read before the suspects are skipped
    thread = threading.Timer(0.2, five[0].resume)
    thread.start()
    redlock.acquire("k")  # asks the two that hang, too, and one of them answers in time
    thread.join()


def test_a_hung_majority_is_reported_and_leaves_nothing(
    five: Servers, new_redlock: NewRedlock
) -> None:
    redlock = new_redlock(five.urls, node_timeout=1.5)
    redlock.release(redlock.acquire("other"))
    for server in five[:3]:
        server.pause()
    with pytest.raises(QuorumUnavailable) as caught:
        redlock.acquire("k")
    assert caught.value.errors == {
        name_of(server): "timed out after 1500 ms" for server in five[:3]
    }
    for server in five[:3]:
        server.resume()
    # The grant was carried out late, and was followed by its own release.
    eventually(lambda: all(floor_on(server, "k") > 0 for server in five))
    assert_freed(five, "k")
    eventually(lambda: redlock.acquire("k"))


def test_a_late_grant_of_a_failed_attempt_is_released(
    five: Servers, new_redlock: NewRedlock
) -> None:
    redlock = new_redlock(five.urls)
    redlock.release(redlock.acquire("other"))
    take_on(five[:3], "k", "somebody")
    five[4].pause()
    with pytest.raises(LockHeld):
        redlock.acquire("k")
    five[4].resume()
    eventually(lambda: floor_on(five[4], "k") > 0)
    assert_freed([five[4]], "k")


def test_a_late_grant_of_a_lease_is_released(five: Servers, new_redlock: NewRedlock) -> None:
    redlock = new_redlock(five.urls)
    redlock.release(other := redlock.acquire("other"))
    eventually(lambda: floor_on(five[4], "other") == other.token + 1)  # it owes no reply
    five[4].pause()
    lease = redlock.acquire("k")
    redlock.release(lease)
    five[4].resume()
    eventually(lambda: floor_on(five[4], "k") == lease.token + 1)
    assert holder_on(five[4], "k") is None


def test_a_late_grant_is_released_on_an_abandoned_connection(
    five: Servers, new_redlock: NewRedlock
) -> None:
    clock = LeapingClock()
    redlock = new_redlock(five.urls, clock=clock)
    redlock.release(redlock.acquire("other"))
    take_on(five[:3], "k", "somebody")
    five[4].pause()
    with pytest.raises(LockHeld):
        redlock.acquire("k")
    settle(redlock, 4)
    clock.leap(10)
    redlock.acquire("other")
    assert channel_of(redlock)._connections.by_node[4] is None
    five[4].resume()
    eventually(lambda: floor_on(five[4], "k") > 0)
    assert_freed([five[4]], "k")


def test_nodes_that_hang_from_the_start_are_worked_around(
    five: Servers, new_redlock: NewRedlock
) -> None:
    five[0].pause()
    five[1].pause()
    redlock, rival = (new_redlock(five.urls, node_timeout=1.5) for _ in range(2))
    assert_all_is_well(redlock, rival)
