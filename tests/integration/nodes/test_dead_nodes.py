"""Nodes that die and come back, while the lock is in use."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest

from celery_redlock.redlock import LeaseLost, LockHeld, QuorumUnavailable, Redlock
from celery_redlock.redlock.events import Event, NodeDown, NodeUp
from celery_redlock.testing import Servers
from tests.conftest import NewRedlock
from tests.support.eventually import eventually
from tests.support.fakes.fake_clock import LeapingClock
from tests.support.judges.nodes import (
    assert_freed,
    holder_on,
    holders_on,
)
from tests.support.locking import assert_all_is_well, name_of


@pytest.mark.parametrize("is_connected", [True, False])
def test_a_minority_of_dead_nodes_changes_nothing(
    five: Servers, new_redlock: NewRedlock, is_connected: bool
) -> None:
    redlock, rival = new_redlock(five.urls), new_redlock(five.urls)
    if is_connected:
        assert_all_is_well(redlock, rival)
    five[0].kill()
    five[3].kill()
    assert_all_is_well(redlock, rival)
    assert_all_is_well(rival, redlock)


def test_a_lease_outlives_a_minority_of_its_nodes(five: Servers, new_redlock: NewRedlock) -> None:
    redlock, rival = new_redlock(five.urls), new_redlock(five.urls)
    with redlock.lock("k") as lease:
        five[1].kill()
        lease.ensure()
        five[4].kill()
        lease.ensure()
        with pytest.raises(LockHeld):
            rival.acquire("k")
    assert rival.acquire("k").token > lease.token


def test_without_a_majority_the_error_names_each_dead_node(
    five: Servers, new_redlock: NewRedlock
) -> None:
    redlock = new_redlock(five.urls)
    for server in five[:3]:
        server.kill()
    for _ in range(3):
        with pytest.raises(QuorumUnavailable) as caught:
            redlock.acquire("k")
        assert set(caught.value.errors) == {name_of(server) for server in five[:3]}
        assert (caught.value.key, caught.value.nodes, caught.value.action) == ("k", 5, "lock")
        message = str(caught.value)
        assert message.startswith("cannot lock 'k': 0 of 5 nodes answered, 2 not waited for, 3")
        for server in five[:3]:
            assert f"{name_of(server)}: " in message
        assert "refused" in message
    assert_freed(five[3:], "k")


def test_nodes_that_die_under_a_connected_client_are_named_too(
    five: Servers, new_redlock: NewRedlock
) -> None:
    redlock = new_redlock(five.urls)
    lease = redlock.acquire("k")
    for server in five[2:]:
        server.kill()
    dead = {name_of(server) for server in five[2:]}
    with pytest.raises(QuorumUnavailable, match="cannot extend 'k'") as extending:
        redlock.extend(lease)
    with pytest.raises(QuorumUnavailable, match="cannot release 'k'") as releasing:
        redlock.release(lease)
    assert set(extending.value.errors) == set(releasing.value.errors) == dead


def test_without_a_majority_nothing_waits_once_that_is_certain(
    five: Servers, new_redlock: NewRedlock
) -> None:
    redlock = new_redlock(five.urls, node_timeout=100)
    lease = redlock.acquire("k")
    for server in five[:3]:
        server.kill()
    before = redlock.clock.now()
    with pytest.raises(QuorumUnavailable):
        redlock.extend(lease)
    with pytest.raises(QuorumUnavailable):
        redlock.release(lease)
    with pytest.raises(QuorumUnavailable):
        redlock.acquire("k")
    assert redlock.clock.now() - before < 100


def test_the_first_attempt_after_a_restart_succeeds(five: Servers, new_redlock: NewRedlock) -> None:
    redlock = new_redlock(five.urls)
    for _ in range(2):
        redlock.release(redlock.acquire("k"))
        for server in five:
            server.kill()
        for _ in range(5):  # each of which lengthens the back-off
            with pytest.raises(QuorumUnavailable) as caught:
                redlock.acquire("k")
            assert len(caught.value.errors) >= 3
        for server in five[:3]:
            server.start()
        redlock.release(redlock.acquire("k"))
        five.reset()


def test_who_waits_gets_the_lock_once_enough_nodes_are_back(
    five: Servers, new_redlock: NewRedlock
) -> None:
    redlock = new_redlock(five.urls)
    for server in five[:3]:
        server.kill()
    thread = threading.Timer(0.2, five[1].start)
    thread.start()
    lease = redlock.acquire("k", wait=60)
    thread.join()
    assert holders_on([five[1], *five[3:]], "k") == [lease.owner] * 3


def test_a_node_that_comes_back_is_used_again(five: Servers, new_redlock: NewRedlock) -> None:
    redlock = new_redlock(five.urls)
    five[2].kill()
    redlock.release(redlock.acquire("k"))
    five[2].start()

    def is_granted_there() -> bool:
        lease = redlock.acquire("k")
        holder = holder_on(five[2], "k")
        redlock.release(lease)
        return holder == lease.owner

    eventually(is_granted_there)


def test_a_lease_is_not_vouched_for_without_a_majority(
    five: Servers, new_redlock: NewRedlock
) -> None:
    redlock = new_redlock(five.urls)
    lease = redlock.acquire("k")
    for server in five[:3]:
        server.pause()
    redlock = new_redlock(five.urls, node_timeout=0.1)
    lease.backing.verify = redlock._extension.verify
    with pytest.raises(LeaseLost, match="no quorum confirms it") as caught:
        lease.ensure()
    assert isinstance(caught.value.__cause__, QuorumUnavailable)
    with pytest.raises(QuorumUnavailable):
        redlock.extend(lease)
    assert lease.remaining() > 0, "it still stands until its deadline"
    for server in five[:3]:
        server.resume()
    eventually(lambda: redlock.extend_all([lease]) == [None])
    lease.ensure()


# ---- what is told of it


def test_a_dead_node_is_one_event_not_one_for_each_operation(
    five: Servers, new_redlock: NewRedlock
) -> None:
    seen: list[Event] = []
    redlock = new_redlock(five.urls, observers=[seen.append])
    redlock.release(redlock.acquire("k"))
    seen.clear()
    five[3].kill()

    def told() -> list[Event]:
        redlock.release(redlock.acquire("k"))
        return [event for event in seen if isinstance(event, NodeDown | NodeUp)]

    eventually(told)
    for _ in range(50):
        [event] = told()
        assert isinstance(event, NodeDown)
        assert event.node == name_of(five[3])
        assert "refused" in event.error


def use_connections(redlock: Redlock, count: int) -> None:
    """Have so many threads' connections looked after."""
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(redlock._pool.channel())


def test_a_restart_is_reported_once_for_all_its_connections(
    five: Servers, new_redlock: NewRedlock
) -> None:
    clock = LeapingClock()
    seen: list[Event] = []
    redlock = new_redlock(five.urls, observers=[seen.append], clock=clock)
    use_connections(redlock, 10)
    seen.clear()
    five[3].restart()

    def is_back() -> bool:
        clock.leap(10)
        use_connections(redlock, 5)
        return NodeUp(name_of(five[3]), 0.0) in seen

    eventually(is_back)
    use_connections(redlock, 10)
    told = [type(event) for event in seen]
    assert told == [NodeDown, NodeUp][-len(told) :], "down was seen if somebody looked meanwhile"


def test_back_off_does_not_grow_with_each_broken_connection(
    five: Servers, new_redlock: NewRedlock
) -> None:
    clock = LeapingClock()
    redlock = new_redlock(five.urls, clock=clock)
    use_connections(redlock, 10)
    five[3].kill()
    clock.leap(1)
    use_connections(redlock, 10)
    assert redlock.nodes[3].retry_at - clock.now() < 1


def test_check_names_what_is_wrong(five: Servers, new_redlock: NewRedlock) -> None:
    five[1].kill()
    five[2].pause()
    redlock, dead, hung = new_redlock(five.urls, node_timeout=0.2), *map(name_of, five[1:3])

    def is_right() -> bool:
        # Others may be too slow once.
        problems = redlock.check()
        return (
            set(problems) == {dead, hung}
            and "refused" in problems[dead]
            and "imeout" in problems[hung]
        )

    eventually(is_right)


def test_nodes_that_are_no_redis_at_all_are_named(new_redlock: NewRedlock) -> None:
    with pytest.raises(QuorumUnavailable) as caught:
        new_redlock(["redis://127.0.0.1:1"]).acquire("k")
    assert set(caught.value.errors) == {"127.0.0.1:1"}
