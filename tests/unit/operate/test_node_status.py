"""Status of a node, by what it reports."""

from __future__ import annotations

from typing import Any

import pytest

from celery_redlock.operate.node_status import NodeStatus, judged, votes, with_twins
from celery_redlock.operate.target import Target

MASTER = {"role": "master", "run_id": "1", "redis_version": "7.0.15"}


def status(node: str = "a", **changes: Any) -> NodeStatus:
    return NodeStatus(node, **{"info": MASTER} | changes)


@pytest.mark.parametrize(
    ("one", "state", "why"),
    [
        (status(), "votes", None),
        (status(votes_in=12.4), "guarded", "restarted lately, votes in 12 s"),
        (status(error="refused"), "down", "refused"),
        (status(refusal="it is a slave", votes_in=1.0), "refused", "it is a slave"),
    ],
)
def test_a_node_votes_unless_something_is_wrong(
    one: NodeStatus, state: str, why: str | None
) -> None:
    assert (one.state, one.why) == (state, why)


def test_a_replica_is_refused() -> None:
    one = judged(status(info={"role": "slave"}), None)
    assert one.refusal == "it is a slave: a lock that a replica grants is lost in a failover"


@pytest.mark.parametrize(("slots", "state"), [(None, "refused"), (99, "refused"), (16384, "votes")])
@pytest.mark.parametrize("field", ["redis_mode", "server_mode"])
def test_a_cluster_node_is_refused_unless_it_serves_all_slots(
    field: str, slots: int | None, state: str
) -> None:
    assert judged(status(info=MASTER | {field: "cluster"}), slots).state == state


def test_the_second_address_of_one_server_is_refused() -> None:
    other = status("c", info=MASTER | {"run_id": "2"})
    statuses = with_twins([status("a"), status("b"), other, status("d", error="down", info={})])
    assert [one.refusal for one in statuses] == [None, "it is the same server as a", None, None]


def test_no_node_votes_while_one_is_refused() -> None:
    assert votes([status(), status(), status(error="down")]) == 2
    assert votes([status(), status(), status(refusal="it is a slave")]) == 0


def test_the_version_names_the_server_that_it_is() -> None:
    assert status().version == "Redis 7.0.15"
    assert status(info=MASTER | {"valkey_version": "9.1.0"}).version == "Valkey 9.1.0"
    assert status(info={}).version is None


def test_the_guard_is_off_for_one_node_unless_it_is_set() -> None:
    assert Target(["a"]).guard == 0.0
    assert Target(["a"], restart_guard=True).guard == pytest.approx(63.6)
    assert Target(["a", "b", "c"]).guard == pytest.approx(63.6)
    assert Target(["a", "b", "c"], restart_guard=False).guard == 0.0
