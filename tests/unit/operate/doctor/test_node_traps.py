"""Each trap of a node is found by what the node reports, and not beside it."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.operate.doctor.nodes import is_local, node_findings
from celery_redlock.operate.node_status import NodeStatus
from celery_redlock.operate.target import Target
from celery_redlock.redlock.inspection import State

INFO = {"role": "master", "redis_version": "7.0.15", "maxmemory_policy": "noeviction"}
Found = tuple[str, str, str, str]


def status(
    node: str = "a",
    info: dict[str, str] | None = None,
    state: State = State.VOTES,
    why: str | None = None,
    **changes: Any,
) -> NodeStatus:
    return NodeStatus(node, state, why, **{"info": INFO | (info or {})} | changes)


def healthy(count: int) -> list[NodeStatus]:
    return [status(node, {"run_id": node}) for node in "abcde"[:count]]


def found(
    statuses: list[NodeStatus],
    *,
    fleet: tuple[int, int] | None = None,
    urls: list[str] | None = None,
    **settings: Any,
) -> list[Found]:
    target = Target(urls or ["redis://localhost"] * len(statuses), **settings)
    return [
        (one.trap.code, one.severity.value, one.where, one.what)
        for one in node_findings(target, statuses, fleet)
    ]


def of_one(one: NodeStatus, **more: Any) -> list[Found]:
    """Return what is found about the first of three nodes, of which the others are healthy."""
    return found([one, *healthy(3)[1:]], **more)


def codes(findings: list[Found]) -> list[str]:
    return [code for code, *_ in findings]


@pytest.mark.parametrize("count", [3, 5])
def test_healthy_nodes_have_no_finding(count: int) -> None:
    assert found(healthy(count)) == []


def test_a_node_down_is_a_warning_until_the_quorum_is_lost() -> None:
    down = [status(node, state=State.DOWN, why="refused") for node in "abc"]
    assert found([down[0], *healthy(3)[1:]]) == [("RL102", "warning", "a", "refused")]
    lost = found([*down[:2], healthy(3)[2]])
    assert lost[0] == ("RL101", "error", "redlock_nodes", "1 of 3 vote, 2 needed")
    assert codes(lost[1:]) == ["RL102", "RL102"]


def test_a_node_that_denies_its_user_is_found_with_the_rights() -> None:
    why = "NOPERM this user has no permissions to run the 'script' command"
    assert of_one(status(state=State.DOWN, why=why)) == []
    silent = NodeStatus("a", State.DOWN, why)
    assert of_one(silent) == [("RL102", "warning", "a", why)]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, [("RL110", "warning", "redlock_nodes", "one URL")]),
        (3, []),
    ],
)
def test_the_number_of_nodes_is_more_than_one(count: int, expected: list[Found]) -> None:
    assert found(healthy(count)) == expected


def test_a_guarded_node_is_a_warning_that_says_when_it_votes() -> None:
    guarded = [status(node, state=State.GUARDED, why="votes in 12.0 s") for node in "abc"]
    assert of_one(guarded[0]) == [("RL103", "warning", "a", "votes in 12.0 s")]
    assert codes(found(guarded)) == ["RL101"] + ["RL103"] * 3


def test_nodes_that_refuse_to_write_are_no_quorum() -> None:
    full = [status(node, state=State.REFUSES, why="refuses to write: OOM") for node in "ab"]
    assert found([*full, status("c")]) == [
        ("RL101", "error", "redlock_nodes", "1 of 3 vote, 2 needed")
    ]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("noeviction", []),
        ("allkeys-lru", [("RL104", "error", "a", "maxmemory_policy:allkeys-lru")]),
        ("volatile-ttl", [("RL104", "error", "a", "maxmemory_policy:volatile-ttl")]),
    ],
)
def test_every_policy_but_noeviction_is_an_error(policy: str, expected: list[Found]) -> None:
    assert of_one(status(info={"maxmemory_policy": policy})) == expected


def test_a_policy_that_is_not_told_is_unknown() -> None:
    silent = NodeStatus("a", State.VOTES, info={"role": "master"})
    assert of_one(silent) == [("RL104", "unknown", "a", "its INFO does not tell maxmemory_policy")]


@pytest.mark.parametrize(
    ("info", "why", "code"),
    [
        ({"role": "slave"}, "node a is a slave", "RL105"),
        ({"redis_mode": "sentinel"}, "node a is a Sentinel", "RL105"),
        ({"redis_mode": "cluster"}, "node a is in cluster mode", "RL107"),
        ({"server_mode": "cluster"}, "node a is in cluster mode", "RL107"),
        ({}, "nodes a and b are the same server", "RL108"),
    ],
)
def test_an_unfit_node_is_an_error_beside_a_quorum(
    info: dict[str, str], why: str, code: str
) -> None:
    assert of_one(status(info=info, state=State.UNFIT, why=why)) == [(code, "error", "a", why)]


@pytest.mark.parametrize(
    ("info", "says"),
    [
        ({"connected_slaves": "0", "master_replid2": "0" * 40}, None),
        ({"connected_slaves": "1"}, "connected_slaves:1"),
        ({"master_replid2": "ab" * 20}, "master_replid2 is set: it was promoted since its start"),
    ],
)
def test_a_master_with_a_replica_or_a_past_as_one(info: dict[str, str], says: str | None) -> None:
    assert of_one(status(info=info)) == ([("RL106", "warning", "a", says)] if says else [])


@pytest.mark.parametrize(
    ("offset", "error", "says"),
    [
        (0.5, 0.0, None),
        (0.6, 0.0, "0.6 s ahead of this machine's"),
        (-0.6, 0.0, "0.6 s behind this machine's"),
        # Not surely wrong: the answer may have been under way for so long.
        (0.6, 0.2, None),
        (None, 0.0, None),
    ],
)
def test_a_clock_is_wrong_beyond_the_skew_that_is_allowed(
    offset: float | None, error: float, says: str | None
) -> None:
    one = status(clock_offset=offset, clock_error=error)
    findings = of_one(one, max_clock_skew=0.5)
    assert codes(findings) == (["RL111"] if says else [])
    for _, severity, where, what in findings:
        assert (severity, where) == ("error", "a")
        assert f"its clock is {says}" in what


@pytest.mark.parametrize(("milliseconds", "is_found"), [(12.5, False), (12.6, True), (50, True)])
def test_a_round_trip_fits_four_times_into_the_timeout(
    milliseconds: float, *, is_found: bool
) -> None:
    slow = [status(node, latency=milliseconds / 1000) for node in "abc"]
    what = f"round trip {milliseconds:.1f} ms, redlock_node_timeout 50 ms"
    assert found(slow, node_timeout=0.05) == (
        [("RL113", "warning", node, what) for node in "abc"] if is_found else []
    )


def test_slow_nodes_are_an_error_if_no_quorum_is_left() -> None:
    slow = [status(node, state=State.SLOW, why="62 ms", latency=0.062) for node in "ab"]
    assert of_one(slow[0]) == [("RL113", "warning", "a", "62 ms")]
    assert found([*slow, status("c")]) == [
        ("RL101", "error", "redlock_nodes", "1 of 3 vote, 2 needed"),
        ("RL113", "error", "a", "62 ms"),
        ("RL113", "error", "b", "62 ms"),
    ]


@pytest.mark.parametrize(
    ("field", "limit", "code"),
    [("connected_clients", "maxclients", "RL114"), ("used_memory", "maxmemory", "RL115")],
)
@pytest.mark.parametrize(
    ("used", "most", "is_found"),
    [
        ("80", "100", False),
        ("81", "100", True),
        ("81", "0", False),
        ("81", "x", False),
        ("x", "100", False),
    ],
)
def test_a_limit_is_near_beyond_four_fifths(
    field: str, limit: str, code: str, used: str, most: str, is_found: bool
) -> None:
    findings = of_one(status(info={field: used, limit: most}))
    says = f"{field}:{used} of {limit}:{most}"
    assert findings == ([(code, "warning", "a", says)] if is_found else [])


@pytest.mark.parametrize(
    ("fleet", "is_found"),
    [(None, False), ((100, 2), False), ((100, 3), True), ((1, 498), True)],
)
def test_a_fleet_has_three_connections_a_worker_one_a_process(
    fleet: tuple[int, int] | None, is_found: bool
) -> None:
    findings = of_one(status(info={"maxclients": "500"}), fleet=fleet)
    mine = [one for one in findings if one[2] == "a"]
    assert [one[:2] for one in mine] == ([("RL120", "error")] if is_found else [])
    if fleet and is_found:
        assert f"up to {fleet[0] * (3 + fleet[1])} connections, maxclients:500" in mine[0][3]


def test_without_maxclients_room_for_a_fleet_is_unknown() -> None:
    assert of_one(status(), fleet=(1, 1))[0] == (
        "RL120", "unknown", "a", "its INFO does not tell maxclients"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("url", "is_found"),
    [
        ("redis://10.0.0.1", True),
        ("valkey://node.example", True),
        ("rediss://10.0.0.1", False),
        ("redis://127.0.0.1", False),
        ("unix:///run/redis.sock", False),
    ],
)
def test_an_open_connection_to_another_machine_is_a_warning(url: str, is_found: bool) -> None:
    scheme = url.partition(":")[0]
    findings = of_one(status(), urls=[url, "redis://localhost", "redis://localhost"])
    assert findings == ([("RL119", "warning", "a", f"{scheme}://")] if is_found else [])


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://localhost:1", True),
        ("redis://", True),
        ("unix:///run/redis.sock", True),
        ("redis://127.8.8.8", True),
        ("redis://[::1]", True),
        ("redis://0.0.0.0", False),
        ("redis://localhost.example", False),
    ],
)
def test_only_addresses_of_the_loopback_are_local(url: str, expected: bool) -> None:
    assert is_local(url) is expected
