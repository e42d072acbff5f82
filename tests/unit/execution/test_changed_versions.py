"""Two versions of the package in one fleet, as while its processes are replaced one by one.

What the other one does with an owner is decided by how it reads it: its rules are kept here.
"""

from __future__ import annotations

import re

import pytest
from celery import Celery

from celery_redlock import DuplicateTask
from celery_redlock.config.options import Lifetime
from celery_redlock.redlock.lease import (
    is_period,
    is_reservation,
    new_owner,
    publication_of,
    reserved_since,
    task_of,
    without_nonces,
)
from tests.support.fakes.fleet import PERIOD, Fleet, Message
from tests.support.fakes.one_node import OneNode

EARLIER_NONCE = re.compile(r"\b[0-9a-f]{32}(\.[0-9a-f]+)?(?=~?:)")
"""What the version before the marks of a time and of a period takes for a nonce, and conceals."""
EARLIER_RESERVATION = re.compile(r"[0-9a-f]{32}(\.[0-9a-f]+)?~:")
"""What that version takes for a reservation; any other owner is a lease, or a period that began."""
NONCE = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
PUBLICATION = "0123456789abcdef"
SINCE_US = 1_795_365_753_594_200
LIFETIMES = [pytest.param(one, id=one.value) for one in Lifetime]
RESERVING = [pytest.param(one, id=one.value) for one in Lifetime if one.reserves_at_publish]


# ---- what this version writes, as the earlier one reads it


@pytest.mark.parametrize("publication", ["", PUBLICATION], ids=["no publication", "publication"])
@pytest.mark.parametrize(
    ("kind", "reserves"),
    [
        pytest.param({}, False, id="lease"),
        pytest.param({"is_period": True}, False, id="period begun"),
        pytest.param({"is_reservation": True}, True, id="reservation"),
        pytest.param({"is_reservation": True, "since_us": SINCE_US}, True, id="reservation, time"),
        pytest.param({"is_reservation": True, "is_period": True}, True, id="period reserved"),
        pytest.param(
            {"is_reservation": True, "is_period": True, "since_us": SINCE_US}, True,
            id="period reserved, time",
        ),
    ],
)  # fmt: skip
def test_an_earlier_version_reads_each_owner_right(
    kind: dict[str, bool], publication: str, reserves: bool
) -> None:
    owner = new_owner("task-1", "host-1", publication=publication, **kind)
    assert bool(EARLIER_RESERVATION.match(owner)) is reserves
    # In an error of a node, of which it tells the holder.
    mark = "~" if reserves else ""
    assert EARLIER_NONCE.sub("...", f"got '{owner}'") == f"got '...{mark}:task-1@host-1'"
    # As it does: it knows a message's own reservation by both.
    head, _, tail = owner.partition(":")
    assert head.partition(".")[2].removesuffix("~") == publication
    assert tail.rpartition("@")[::2] == ("task-1", "host-1")


# ---- what the earlier version writes, as this one reads it


@pytest.mark.parametrize("publication", ["", PUBLICATION], ids=["no publication", "publication"])
@pytest.mark.parametrize(
    "mark", [pytest.param("", id="lease"), pytest.param("~", id="reservation")]
)
def test_an_owner_of_an_earlier_version_is_read_right(mark: str, publication: str) -> None:
    owner = earlier(mark, publication)
    assert is_reservation(owner) is bool(mark)
    assert not is_period(owner)
    assert reserved_since(owner) is None
    assert (publication_of(owner), task_of(owner)) == (publication, "task-1")
    assert without_nonces(f"got '{owner}'") == f"got '...{mark}:task-1@earlier'"


@pytest.mark.parametrize("lifetime", RESERVING)
def test_a_message_of_an_earlier_version_runs_and_frees_its_key(
    fleet: Fleet, lifetime: Lifetime
) -> None:
    told = fleet.call(lifetime)
    reserve_as_earlier(fleet)
    fleet.take(lifetime)
    assert fleet.runs == [told]
    fleet.assert_free(lifetime)


@pytest.mark.parametrize("lifetime", LIFETIMES)
def test_a_call_is_the_duplicate_of_a_run_in_an_earlier_version(
    app: Celery, fleet: Fleet, lifetime: Lifetime
) -> None:
    hold_as_earlier(fleet, "t", "task-1", 20.0)
    told = fleet.call(lifetime)
    if fleet.queue:
        fleet.take(lifetime)
    if told != "task-1":  # it was published
        result = app.AsyncResult(told).result
        assert isinstance(result, DuplicateTask) or lifetime is Lifetime.UNTIL_AND_WHILE_EXECUTING
    assert fleet.runs == []


@pytest.mark.parametrize(
    "again",
    [
        pytest.param({"delivery_info": {"redelivered": True}}, id="delivered again"),
        pytest.param({"retries": 1}, id="retried"),
    ],
)
def test_a_period_that_an_earlier_version_began_blocks_no_message_of_its_own(
    fleet: Fleet, node: OneNode, again: Message
) -> None:
    """A message that comes back in the period is not sent round until the period is over."""
    told = fleet.call(Lifetime.UNTIL_EXPIRED)
    owner = hold_as_earlier(fleet, "t", told, PERIOD)
    fleet.queue[0].update(again)
    fleet.drain([Lifetime.UNTIL_EXPIRED])
    assert fleet.runs == [told]
    assert node.owner_of("t") == owner, "it came back after the period"


def test_a_period_that_an_earlier_version_began_stops_other_calls(fleet: Fleet) -> None:
    hold_as_earlier(fleet, "t", "task-1", PERIOD)
    assert fleet.call(Lifetime.UNTIL_EXPIRED) == "task-1"
    assert fleet.queue == []


@pytest.mark.parametrize("lifetime", [Lifetime.UNTIL_EXECUTED, Lifetime.UNTIL_EXPIRED], ids=str)
def test_a_copy_of_a_message_that_runs_in_an_earlier_version_does_not_run(
    fleet: Fleet, lifetime: Lifetime
) -> None:
    """Its lease may be that of an older lifetime."""
    told = fleet.call(lifetime)
    hold_as_earlier(fleet, "t", told, fleet.node.max_ttl)
    fleet.queue[0]["delivery_info"] = {"redelivered": True}
    fleet.take(lifetime)  # counts the deliveries
    fleet.take(lifetime)
    assert fleet.runs == []
    assert [message["id"] for message in fleet.queue] == [told]


def earlier(mark: str, publication: str, task_id: str = "task-1") -> str:
    """Return an owner as the earlier version writes it."""
    head = f"{NONCE}.{publication}" if publication else NONCE
    return f"{head}{mark}:{task_id}@earlier"


def reserve_as_earlier(fleet: Fleet) -> None:
    """Let the message in the queue, and its reservation, be those of the earlier version."""
    [message] = fleet.queue
    key, written = message["redlock_reservation"]
    owner = earlier("~", publication_of(written), message["id"])
    fleet.node.held[key] = owner, fleet.node.held[key][1]
    message["redlock_reservation"] = [key, owner]


def hold_as_earlier(fleet: Fleet, key: str, task_id: str, ttl: float) -> str:
    """Let a worker of the earlier version hold a lease, or a begun period; return its owner."""
    publication = next(
        (one["redlock_publication"] for one in fleet.queue if one["id"] == task_id), PUBLICATION
    )
    owner = earlier("", publication, task_id)
    fleet.node.held[key] = owner, fleet.node.clock.now() + ttl
    return owner
