"""What is wrong is said at the earliest moment, with what is wrong and what to do."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from celery_redlock.redlock import ConfigurationError, LockHeld, QuorumUnavailable
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.testing import Server, Servers
from tests.conftest import NewRedlock
from tests.support.eventually import eventually
from tests.support.fakes.fake_clock import LeapingClock
from tests.support.judges.nodes import assert_freed, holders_on
from tests.support.requirements import redis_versions

THREE = ["redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://127.0.0.1:3"]


# ---- when the lock is made


@pytest.mark.parametrize("name", ["node_timeout", "max_ttl", "max_clock_skew", "floor_ttl"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "5", None, True], ids=repr)
def test_settings_that_are_no_seconds_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name} must be"):
        TaskLock(THREE, **{name: value})


@pytest.mark.parametrize("name", ["node_timeout", "max_ttl", "floor_ttl"])
def test_settings_that_leave_nothing_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name} must be a number of seconds > 0, got 0"):
        TaskLock(THREE, **{name: 0})  # type: ignore[arg-type]


def test_the_shortest_floor_ttl_works(five: Servers, new_redlock: NewRedlock) -> None:
    redlock = new_redlock(five.urls, floor_ttl=0.0001)
    with redlock.lock("k") as lease:
        lease.ensure()
    assert_freed(five, "k")


# ---- when a lock is asked for


@pytest.mark.parametrize("key", [None, 5, b"x", "", "\ud800"], ids=repr)
@pytest.mark.parametrize(
    "ask",
    [
        lambda redlock, key: redlock.acquire(key),
        lambda redlock, key: redlock.lock(key).__enter__(),
        lambda redlock, key: redlock.reserve(key, 5),
        lambda redlock, key: redlock.release_owner(key, "owner"),
        lambda redlock, key: redlock.mark_done(key, "label"),
    ],
    ids=["acquire", "lock", "reserve", "drop", "mark_done"],
)
def test_a_key_that_can_not_be_is_refused_before_a_node_is_asked(
    ask: Callable[[TaskLock, Any], object], key: Any
) -> None:
    with pytest.raises(ConfigurationError, match=r"^key "):
        ask(TaskLock(THREE), key)


# ---- when the nodes are first met


def test_a_host_that_does_not_exist_is_named(new_redlock: NewRedlock) -> None:
    with pytest.raises(QuorumUnavailable, match=r"no-such-host\.invalid:6379: "):
        new_redlock(["redis://no-such-host.invalid"]).acquire("k")


@redis_versions
def test_a_replica_is_refused(redis_binary: Path, new_redlock: NewRedlock) -> None:
    with Servers(Server(binary=redis_binary) for _ in range(5)) as five:
        for number in (1, 2):
            with five[number].client() as client:
                client.replicaof("127.0.0.1", five[3].port)
        redlock = new_redlock(five.urls[:3])
        for ask in (lambda: redlock.acquire("k"), redlock.check):
            with pytest.raises(ConfigurationError) as caught:
                ask()
            assert str(caught.value) == (
                f"node 127.0.0.1:{five[1].port} is a slave: a lock granted by a replica is lost "
                "in a failover; name independent masters only"
            )
        for number in (1, 2):
            with five[number].client() as client:
                client.execute_command("REPLICAOF", "NO", "ONE")
        eventually(lambda: not problems(redlock))
        redlock.acquire("k").ensure()


def test_a_replica_beside_a_quorum_is_down_and_loud(
    five: Servers, new_redlock: NewRedlock, caplog: pytest.LogCaptureFixture
) -> None:
    with five[1].client() as client:
        client.replicaof("127.0.0.1", five[3].port)
    try:
        redlock = new_redlock(five.urls[:3])
        lease = redlock.acquire("k", wait=60)
        assert holders_on(five[:3:2], "k") == [lease.owner] * 2
        with pytest.raises(ConfigurationError, match="is a slave"):
            redlock.check()
        redlock.release(lease)
        [line] = [one for one in caplog.records if one.levelno == logging.ERROR]
        assert "is a slave" in line.getMessage()
    finally:
        with five[1].client() as client:
            client.execute_command("REPLICAOF", "NO", "ONE")


def problems(redlock: TaskLock) -> object:
    try:
        return redlock.check()
    except ConfigurationError as error:
        return error


@pytest.mark.parametrize(
    "second",
    ["redis://localhost:{port}", "redis://127.0.0.1:{port}/5", "valkey://127.0.0.1:{port}",
     "redis://127.1:{port}", "{unix}"],
)  # fmt: skip
def test_a_server_that_is_named_in_two_ways_is_refused(
    five: Servers, new_redlock: NewRedlock, second: str
) -> None:
    again = second.format(port=five[0].port, unix=five[0].unix_url)
    redlock = new_redlock([five[0].url, again, five[1].url])
    for ask in (lambda: redlock.acquire("k"), redlock.check):
        with pytest.raises(ConfigurationError, match=r"are the same server .*it would vote twice"):
            ask()
    assert holders_on(five, "k") == [None] * 5


def start_cluster_node(binary: Path) -> Server:
    return Server("--cluster-enabled", "yes", binary=binary)


@redis_versions
def test_a_node_of_a_cluster_that_lacks_slots_is_refused(
    redis_binary: Path, new_redlock: NewRedlock
) -> None:
    with start_cluster_node(redis_binary) as server:
        with pytest.raises(ConfigurationError) as caught:
            new_redlock([server.url]).acquire("k")
        assert str(caught.value) == (
            f"node 127.0.0.1:{server.port} is in cluster mode and serves 0 of 16384 slots: it "
            "would refuse the other keys; name independent masters outside a cluster"
        )


@redis_versions
def test_a_cluster_of_one_that_has_all_slots_will_do(
    redis_binary: Path, new_redlock: NewRedlock
) -> None:
    with start_cluster_node(redis_binary) as server:
        with server.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTS", *range(16_384))
            eventually(lambda: client.cluster("info")["cluster_state"] == "ok")
        redlock = new_redlock([server.url])
        for key in ("k", "another", "a}b", "{c}"):
            redlock.release(redlock.acquire(key), done="task")


# ---- later


@redis_versions
def test_a_node_that_becomes_a_replica_does_not_vote_any_more(
    redis_binary: Path, new_redlock: NewRedlock
) -> None:
    with Servers(Server(binary=redis_binary) for _ in range(4)) as four:
        redlock = new_redlock(four.urls[:3])
        redlock.release(redlock.acquire("k"))
        with four[1].client() as client:
            client.replicaof("127.0.0.1", four[3].port)
        for _ in range(20):
            lease = redlock.acquire("k", wait=60)
            lease.ensure()
            redlock.release(lease)
        four[0].kill()
        with pytest.raises(QuorumUnavailable):
            redlock.acquire("k")


def test_a_minority_found_wrong_later_does_not_end_a_lease(
    five: Servers, new_redlock: NewRedlock
) -> None:
    five[2].kill()
    clock = LeapingClock()
    redlock = new_redlock(five.urls[:3], clock=clock)
    lease = redlock.acquire("k")
    five[2].start()
    with five[2].client() as client:
        client.replicaof("127.0.0.1", five[3].port)

    def is_refused() -> bool:
        clock.leap(1)
        return isinstance(problems(redlock), ConfigurationError)

    eventually(is_refused, within=20)
    redlock.extend(lease)
    lease.ensure()
    redlock.release(lease)
    assert_freed(five[:2], "k")
    redlock.release(redlock.acquire("k", wait=60))
    five[0].kill()
    with pytest.raises(QuorumUnavailable, match="is a slave"):
        redlock.acquire("k")


def test_a_key_that_is_not_the_lock_s_is_refused_and_stays(
    five: Servers, new_redlock: NewRedlock
) -> None:
    for server in five:
        with server.client() as client:
            client.hset("redlock:{k}", "somebody's", "data")
    with pytest.raises(QuorumUnavailable, match="WRONGTYPE"):
        new_redlock(five.urls).acquire("k")
    for server in five:
        with server.client() as client:
            assert client.type("redlock:{k}") == b"hash"


def test_a_key_without_an_end_is_held_by_whoever_set_it(
    five: Servers, new_redlock: NewRedlock
) -> None:
    for server in five:
        with server.client() as client:
            client.set("redlock:{k}", "by hand")
    with pytest.raises(LockHeld) as caught:
        new_redlock(five.urls).acquire("k", wait=0.01)
    assert (caught.value.holder, caught.value.owner) == (None, "by hand")
    assert caught.value.remaining == 0


# ---- what is not loaded


@pytest.mark.parametrize("name", ["node_timeout", "max_ttl", "max_clock_skew", "floor_ttl"])
def test_a_time_beyond_ten_years_is_refused(new_redlock: NewRedlock, name: str) -> None:
    # Redis can't count it: each lock would fail, and the nodes be blamed.
    for seconds in (1e9, 1e300, 10**400):
        with pytest.raises(ConfigurationError, match=f"{name} must be at most 315360000 seconds"):
            new_redlock(THREE, **{name: seconds})


def test_a_node_timeout_of_years_overflows_nowhere(five: Servers, new_redlock: NewRedlock) -> None:
    redlock = new_redlock(five.urls[:3], node_timeout=3e8)
    with redlock.lock("k") as lease:
        lease.ensure()
    assert redlock.check() == {}
