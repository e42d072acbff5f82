"""Status of a node, by what it reports."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.operate.node_status import NodeStatus, read_statuses, votes
from celery_redlock.operate.target import Target
from celery_redlock.redlock.inspection import State
from celery_redlock.redlock.protocol.scripts import Argument
from tests.support.fakes.operated import Operated, Reporting

MASTER = {"role": "master", "run_id": "1", "redis_version": "7.0.15"}


def status(state: State = State.VOTES, **changes: Any) -> NodeStatus:
    return NodeStatus("a", state, **{"info": MASTER} | changes)


def test_a_node_that_does_not_vote_is_not_counted() -> None:
    assert votes([status(state) for state in (State.VOTES, *State)]) == 2


def test_the_version_names_the_server_that_it_is() -> None:
    assert status().version == "Redis 7.0.15"
    assert status(info=MASTER | {"valkey_version": "9.1.0"}).version == "Valkey 9.1.0"
    assert status(info={}).version is None


def test_a_status_is_told_as_values() -> None:
    full = {
        "uptime_in_seconds": "90", "used_memory": "1000000", "maxmemory": "2000000",
        "maxmemory_policy": "noeviction", "connected_clients": "2", "maxclients": "10000",
    }  # fmt: skip
    one = status(
        State.GUARDED, info=MASTER | full, why="restarted", votes_in=1.23456,
        latency=0.0012345678, clock_offset=-0.5000004,
    )  # fmt: skip
    assert one.as_json() == {
        "node": "a", "state": "guarded", "why": "restarted", "role": "master",
        "version": "Redis 7.0.15", "uptime": 90, "votes_in": 1.235, "latency": 0.001235,
        "clock_offset": -0.5, "memory": 1_000_000, "max_memory": 2_000_000, "policy": "noeviction",
        "connections": 2, "max_connections": 10_000,
    }  # fmt: skip
    nothing = status(State.DOWN, info={}).as_json()
    assert {name for name, value in nothing.items() if value is not None} == {
        "node", "state", "votes_in"
    }  # fmt: skip
    assert status(info={"maxclients": "many"}).number("maxclients") is None


Trip = tuple[float, float]


def answer_after(node: Reporting, network: Operated, trips: list[Trip]) -> None:
    """Let each TIME take its way to the node and back; its clock is 3 s ahead. Then it is down."""
    execute, left = node.execute, [*trips]

    def timed(command: tuple[Argument, ...]) -> object:
        if command[0] != "TIME":
            return execute(command)
        there, back = left.pop(0)
        network.pass_(there)
        now = network.wall_us() + 3_000_000
        network.pass_(back)
        node.is_up = bool(left)
        return [b"%d" % (now // 1_000_000), b"%d" % (now % 1_000_000)]

    node.execute = timed  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("trips", "latency"),
    [
        ([(0.5, 0.0), (0.3, 0.0), (0.05, 0.05), (0.0, 0.4), (0.2, 0.0), (9.0, 0.0)], 0.3),
        ([(0.05, 0.05), (0.3, 0.0)], 0.2),
    ],
)
def test_of_five_round_trips_the_quickest_tells_the_clock(
    monkeypatch: pytest.MonkeyPatch, trips: list[Trip], latency: float
) -> None:
    network = Operated(1, monkeypatch)
    nodes = network.opened()
    answer_after(network[0], network, trips)
    [one] = read_statuses(network.target(), nodes)
    assert one.latency == pytest.approx(latency)
    assert one.clock_offset == pytest.approx(3.0)
    assert one.clock_error == pytest.approx(0.05)


def test_what_a_node_does_not_tell_is_unknown(three: Operated) -> None:
    three[0].refused["INFO"] = "NOPERM"
    three[1].refused["TIME"] = "NOPERM"
    execute = three[1].execute
    odd: dict[Any, Any] = {("INFO", "memory"): b"allocator:\xff:2\r\nno field"}
    three[1].execute = lambda one: odd.get(one) or execute(one)  # type: ignore[assignment]
    three[2].is_up = False
    silent, timeless, down = read_statuses(three.target(), three.opened())
    assert (silent.node, silent.info, silent.latency) == ("127.0.0.1:7000", {}, None)
    assert (timeless.state, timeless.latency) == (State.VOTES, None)
    assert timeless.info == three[1].info | {"allocator": "\N{REPLACEMENT CHARACTER}:2"}
    assert (down.state, down.why, down.info) == (State.DOWN, "Connection refused", {})


def test_the_guard_is_off_for_one_node_unless_it_is_set() -> None:
    assert Target(["a"]).guard == 0.0
    assert Target(["a"], restart_guard=True).guard == pytest.approx(63.6)
    assert Target(["a", "b", "c"]).guard == pytest.approx(63.6)
    assert Target(["a", "b", "c"], restart_guard=False).guard == 0.0
