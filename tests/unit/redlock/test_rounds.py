"""What goes to which nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from celery_redlock.redlock.attempt import Attempt
from celery_redlock.redlock.errors import QuorumUnavailable
from celery_redlock.redlock.inspection import Inspection
from celery_redlock.redlock.lease import new_owner
from celery_redlock.redlock.protocol.replies import Busy, Done, Failed, Granted, GrantReply
from celery_redlock.redlock.release import ReleaseRound
from celery_redlock.redlock.unsettled import ReleaseRequest
from tests.support.fakes.lent_channel import HOUR_MS, access_over, acquisition_over

BUSY, LATE = Busy("somebody", 900, 3), Failed("timed out")


class Wire:
    """What a round asks of a channel to five nodes, all connected."""

    nodes = (SimpleNamespace(name="node"),) * 5

    def __init__(self) -> None:
        self.commands: list[Any] = []
        self.is_decided: Callable[..., bool] = bool
        self.asked: list[int] = []
        self.owners: list[str] = []
        self.names: list[str] = []

    def everyone(self) -> list[int]:
        return [0, 1, 2, 3, 4]

    def renew(self) -> bool:
        return False

    def ask(
        self, commands: Any, parse: object, is_decided: Callable[..., bool], among: Sequence[int],
        timeout: float | None = None,
    ) -> list[Any]:  # fmt: skip
        self.commands += commands
        self.is_decided = is_decided
        self.asked += among
        self.names += [command[0] for command in commands]
        self.owners += [command[5] for command in commands if command[0] == "EVALSHA"]
        return [None] * 5

    def voters(self) -> list[int]:
        return [0, 1, 2]

    def first_timeout(self, timeout: float) -> float:
        return timeout


@pytest.mark.parametrize(
    ("attempt", "names"),
    [
        (Attempt("key", "me", 1000), ["EVALSHA"]),
        (Attempt("key", "me", 1000, unless_done=("task",)), ["EVALSHA"]),
        (Attempt("key", "me", 1000, is_reservation=True), ["SET", "GET", "PTTL"]),
        (Attempt("key", "me", 1000, supersedes="you", is_reservation=True), ["EVALSHA"]),
        (Attempt("key", "me", 1000, highest_floor=7, is_reservation=True), ["EVALSHA"]),
    ],
)
def test_no_token_and_no_replacement_need_no_script(attempt: Attempt, names: list[str]) -> None:
    wire: Any = Wire()
    acquisition_over(wire)._grant(wire, attempt, 1)
    assert (wire.names, wire.asked) == (names, [0, 1, 2])


def release(wire: Any, request: ReleaseRequest) -> None:
    ReleaseRound(*access_over(wire))._ask_one(wire, request)


def released(owner: str) -> Wire:
    wire = Wire()
    release(wire, ReleaseRequest("key", owner, 0.0, 9.0))
    return wire


def test_many_releases_are_made_as_each_by_itself() -> None:
    requests = [
        ReleaseRequest("a", "me", 0.0, 9.0, 7, "you", keep_until=2.0, done="d", done_ttl_ms=50),
        ReleaseRequest("b", "me", 0.0, 9.0, 8, done="e", done_ttl_ms=60),
        ReleaseRequest("c", new_owner(is_reservation=True), 0.0, 9.0),
    ]
    together, alone = Wire(), Wire()
    ReleaseRound(*access_over(together)).make_all(requests, 1.0)
    for request in requests:
        release(alone, request)
    assert together.commands == alone.commands
    assert not together.is_decided([LATE, None])
    assert together.is_decided([LATE, LATE])


def test_what_is_undone_raises_no_floor_and_renews_it() -> None:
    """As the release of a reservation."""
    left = reserved()
    undone: Any = Wire()
    acquisition = acquisition_over(undone)
    acquisition._abandon(undone, LEASE, ())
    acquisition._clear(undone, LEASE, [Granted(7), left, Granted(7), Granted(7), None])
    assert undone.commands == released(LEASE.owner).commands + released(left.holder).commands


@pytest.mark.parametrize("labels", [(), ("task-1/0",), ("task-1/0", "task-1/1")])
def test_done_marks_are_asked_for_only_if_one_would_end_the_attempt(
    labels: tuple[str, ...],
) -> None:
    look, look_before = Wire(), Wire()
    with pytest.raises(QuorumUnavailable):
        Inspection(*access_over(look)).read_holder("key")
    attempt = Attempt("key", "me", 1000, unless_done=labels, looks_first=True)
    channel: Any = look_before
    acquisition_over(channel)._look(channel, attempt)
    assert look_before.names == look.names + ["PTTL"] * len(labels)


def told_to_undo(grants: Sequence[GrantReply | None]) -> list[int]:
    wire = Wire()
    channel: Any = wire
    acquisition_over(channel)._abandon(channel, Attempt("key", "owner", 1000), grants)
    return wire.asked


def test_a_failed_attempt_is_released_wherever_it_may_stand() -> None:
    """Now or later: also where its grant is still under way."""
    assert told_to_undo([Granted(7), None, LATE, BUSY, BUSY]) == [0, 1, 2]


@pytest.mark.parametrize(
    ("owner", "names"),
    [(new_owner(), ["EVALSHA"]), (new_owner(is_reservation=True), ["SCRIPT", "EVALSHA"])],
    ids=["lease", "reservation"],
)
def test_a_lock_granted_without_a_script_loads_that_of_release(
    owner: str, names: list[str]
) -> None:
    abandoned: Any = Wire()
    acquisition_over(abandoned)._abandon(abandoned, Attempt("key", owner, 1000), ())
    for wire in (abandoned, released(owner)):
        assert (wire.names, wire.owners) == (names, [owner])


def test_a_node_that_refused_is_told_nothing_more() -> None:
    assert told_to_undo([BUSY, Done(10_000), BUSY, BUSY, BUSY]) == []


def test_an_attempt_that_was_struck_down_is_undone_everywhere() -> None:
    assert told_to_undo(()) == [0, 1, 2, 3, 4]


def told_to_clear(grants: Sequence[GrantReply | None], attempt: Attempt) -> dict[int, str]:
    wire: Any = Wire()
    acquisition_over(wire)._clear(wire, attempt, grants)
    return dict(zip(wire.asked, wire.owners, strict=True))


def reserved(remaining_ms: int = HOUR_MS) -> Busy:
    return Busy(new_owner(is_reservation=True), remaining_ms, 3)


LEASE = Attempt("key", new_owner(), 30_000)
RESERVATION = Attempt("key", new_owner(is_reservation=True), HOUR_MS, is_reservation=True)


def test_a_reservation_that_may_have_a_majority_is_not_released() -> None:
    holder, left = reserved(), reserved()
    assert told_to_clear([holder, holder, holder, Granted(7), None], LEASE) == {}
    assert told_to_clear([holder, holder, LATE, left, Granted(7)], LEASE) == {3: left.holder}
    assert told_to_clear([holder, LATE, None, left, Granted(7)], LEASE) == {}


def test_a_reservation_releases_one_too_old_to_be_under_way() -> None:
    fresh, old = reserved(HOUR_MS - 50_000), reserved(HOUR_MS - 70_000)
    assert told_to_clear([fresh, old, Granted(7), Granted(7), None], RESERVATION) == {1: old.holder}
