"""Errors from the replies of the nodes."""

from __future__ import annotations

import pytest

from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.redlock.lease import new_owner
from celery_redlock.redlock.protocol.replies import (
    Busy,
    Extended,
    Failed,
    Granted,
    Healed,
    Occupied,
    Superseded,
)
from celery_redlock.redlock.refusals import held_by, refuse_misconfigured, unavailable
from celery_redlock.redlock.transport.node import Node
from tests.support.fakes.fake_clock import FakeClock


@pytest.fixture
def nodes() -> list[Node]:
    return [
        Node(f"redis://node-{name}", FakeClock(), 1.0, 0.0, lambda event: None) for name in "abc"
    ]


def test_no_quorum_names_the_reason_of_each_failed_node(nodes: list[Node]) -> None:
    error = unavailable("lock", "k", [Failed("timed out"), Granted(7), Failed("refused")], nodes)
    assert error.errors == {"node-a:6379": "timed out", "node-c:6379": "refused"}
    assert (error.key, error.nodes, error.action) == ("k", 3, "lock")


def test_a_node_that_was_not_waited_for_has_no_reason(nodes: list[Node]) -> None:
    error = unavailable("extend", "k", [Failed("x"), None, None], nodes, "it had lost the key")
    assert error.errors == {"node-a:6379": "x"}
    assert error.unheard == 2


@pytest.mark.parametrize("action", ["extend", "release"])
def test_nodes_that_were_not_waited_for_have_not_answered(nodes: list[Node], action: str) -> None:
    error = unavailable(action, "k", [Occupied(), Superseded(), None], nodes, "it had lost it")
    assert str(error).startswith(
        f"cannot {action} 'k': 2 of 3 nodes answered, 0 of them as needed, 1 not waited for, "
        "2 are needed (node-a:6379: "
    )
    assert error.answered == 2


def test_only_nodes_that_extended_are_not_to_blame(nodes: list[Node]) -> None:
    error = unavailable("extend", "k", [Extended(), Healed(), Healed()], nodes, "it had lost it")
    assert error.errors == {"node-b:6379": "it had lost it", "node-c:6379": "it had lost it"}


def test_nodes_that_answered_are_counted_as_such(nodes: list[Node]) -> None:
    replies = [Occupied(), Superseded(), Healed()]
    error = unavailable("extend", "k", replies, nodes, "it had lost it")
    assert str(error) == (
        "cannot extend 'k': 3 of 3 nodes answered, 0 of them as needed, 2 are needed "
        "(node-a:6379: another owner has the lock key; node-b:6379: it has granted a higher token "
        "since; node-c:6379: it had lost it)"
    )


def test_nodes_that_answered_with_an_error_are_counted_as_such(nodes: list[Node]) -> None:
    full = Failed("OOM command not allowed", is_reply=True)
    error = unavailable("lock", "k", [full, Granted(7), Failed("timed out")], nodes)
    assert "2 of 3 nodes answered, 1 of them as needed, 2 are needed" in str(error)
    assert error.refused == 1


def test_a_held_lock_names_its_holder_without_the_nonce() -> None:
    owner = new_owner("task-1")
    error = held_by("k", Busy(owner, 1500, 3), 1000.0, contended=False, age=2.5)
    assert error.holder is not None
    assert error.holder.startswith("task-1@")
    assert (error.key, error.remaining, error.held_since) == ("k", 1.5, 997.5)
    assert error.owner == owner
    assert owner.split(":")[0] not in str(error)
    assert not error.contended


def test_of_a_reservation_it_is_unknown_since_when() -> None:
    """The floor under it, whose age is given, is that of an earlier lease."""
    busy = Busy(new_owner("task-1", is_reservation=True), 1500, 3)
    error = held_by("k", busy, 1000.0, contended=False, age=2.5)
    assert error.held_since is None
    assert str(error).endswith(", set to expire in 1.500 s")


@pytest.mark.parametrize("value", ["5b2c1f0e", "a:5b2c1f0e", "a@5b2c1f0e"])
def test_a_lock_of_another_client_names_no_holder(value: str) -> None:
    error = held_by("k", Busy(value, 1500, 0), 1000.0, contended=False)
    assert (error.holder, error.task_id, error.hostname) == (None, None, None)
    assert "5b2c1f0e" not in f"{error} {error!r}"


@pytest.mark.parametrize("leader", [None, Busy("", 0, 9)], ids=["no leader", "released"])
def test_a_lock_that_nobody_holds_any_more_names_no_holder(leader: Busy | None) -> None:
    error = held_by("k", leader, 1000.0, contended=True)
    assert error.holder is None
    assert error.remaining == 0.0
    assert error.contended


def test_an_expiry_that_has_passed_is_no_negative_time() -> None:
    assert held_by("k", Busy(new_owner(), -2, 3), 0.0, contended=False).remaining == 0.0


def test_more_unfit_nodes_than_allowed_are_an_error(nodes: list[Node]) -> None:
    nodes[1].misconfigured = ConfigurationError("node node-b:6379 is a replica")
    refuse_misconfigured(nodes, most=1)
    with pytest.raises(ConfigurationError, match="node-b:6379 is a replica") as caught:
        refuse_misconfigured(nodes)
    assert caught.value is not nodes[1].misconfigured, "each caller has its own traceback"
    nodes[2].misconfigured = ConfigurationError("node node-c:6379 is a replica")
    with pytest.raises(ConfigurationError, match="node-b:6379 is a replica"):
        refuse_misconfigured(nodes, most=1)


def test_nodes_that_are_down_are_not_misconfigured(nodes: list[Node]) -> None:
    nodes[0].failed("refused")
    refuse_misconfigured(nodes)


def test_no_quorum_tells_how_many_nodes_wait_for_their_guard(nodes: list[Node]) -> None:
    replies = [Failed("votes in 9 s", is_guarded=True), Failed("timed out"), None]
    assert unavailable("lock", "k", replies, nodes).guarded == 1
