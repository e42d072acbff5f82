"""What goes to which nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from celery_redlock.redlock.attempt import Attempt
from celery_redlock.redlock.lease import new_owner
from celery_redlock.redlock.protocol.replies import Busy, Done, Failed, Granted, GrantReply
from celery_redlock.redlock.rounds import Rounds
from celery_redlock.redlock.transport.channel import Channel
from celery_redlock.redlock.unsettled import ReleaseRequest

BUSY, LATE = Busy("somebody", 900, 3), Failed("timed out")


class Wire:
    """What a round asks of a channel to five nodes, all connected."""

    def __init__(self) -> None:
        self.commands: list[Any] = []
        self.is_decided: Callable[..., bool] = bool
        self.asked: list[int] = []
        self.owners: list[str] = []
        self.names: list[str] = []

    def everyone(self) -> list[int]:
        return [0, 1, 2, 3, 4]

    def ask(
        self, command: Any, parse: object, is_decided: Callable[..., bool], among: Sequence[int]
    ) -> list[Any]:
        return self.ask_batch([command], parse, is_decided, among)

    def ask_batch(
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


@pytest.mark.parametrize(
    ("attempt", "names"),
    [
        (Attempt("key", "me", 1000), ["EVALSHA"]),
        (Attempt("key", "me", 1000, unless_done="task"), ["EVALSHA"]),
        (Attempt("key", "me", 1000, is_reservation=True), ["SET", "GET", "PTTL"]),
        (Attempt("key", "me", 1000, supersedes="you", is_reservation=True), ["EVALSHA"]),
        (Attempt("key", "me", 1000, highest_floor=7, is_reservation=True), ["EVALSHA"]),
    ],
)
def test_no_token_and_no_replacement_need_no_script(attempt: Attempt, names: list[str]) -> None:
    wire = Wire()
    Rounds("redlock", 0, 0).grant(cast(Channel, wire), attempt, proposed_us=1)
    assert (wire.names, wire.asked) == (names, [0, 1, 2])


def release(rounds: Rounds, channel: Channel, owner: str, key: str = "key") -> None:
    rounds.release(channel, key, owner, 0, superseded="", keep_ms=0, done=None, done_ttl_ms=0)


def test_many_releases_are_made_as_each_by_itself() -> None:
    requests = [
        ReleaseRequest("a", "me", 0.0, 9.0, 7, "you", keep_until=2.0, done="d", done_ttl_ms=50),
        ReleaseRequest("b", "me", 0.0, 9.0, 8, done="e", done_ttl_ms=60),
        ReleaseRequest("c", new_owner(is_reservation=True), 0.0, 9.0),
    ]
    rounds, together, alone = Rounds("redlock", 0, HOUR_MS), Wire(), Wire()
    rounds.release_all(cast(Channel, together), requests, now=1.0, timeout=1.0)
    for one, keep_ms in zip(requests, (1000, 0, 0), strict=True):
        rounds.release(
            cast(Channel, alone), one.key, one.owner, one.token, superseded=one.superseded,
            keep_ms=keep_ms, done=one.done, done_ttl_ms=one.done_ttl_ms,
        )  # fmt: skip
    assert together.commands == alone.commands
    assert not together.is_decided([LATE, None])
    assert together.is_decided([LATE, LATE])


def test_what_is_undone_raises_no_floor_and_renews_it() -> None:
    """As the release of a reservation."""
    left = reserved()
    rounds, undone, released = Rounds("redlock", 0, HOUR_MS), Wire(), Wire()
    rounds.abandon(cast(Channel, undone), LEASE, ())
    rounds.clear(cast(Channel, undone), LEASE, [Granted(7), left, Granted(7), Granted(7), None])
    release(rounds, cast(Channel, released), LEASE.owner)
    release(rounds, cast(Channel, released), left.holder)
    assert undone.commands == released.commands


@pytest.mark.parametrize(("label", "more"), [("", []), ("task-1/0", ["PTTL"])])
def test_a_done_mark_is_asked_for_only_if_one_would_end_the_attempt(
    label: str, more: list[str]
) -> None:
    rounds, look, look_before = Rounds("redlock", 0, 0), Wire(), Wire()
    rounds.look(cast(Channel, look), "key")
    rounds.look_before(cast(Channel, look_before), Attempt("key", "me", 1000, unless_done=label))
    assert look_before.names == look.names + more


def test_only_nodes_that_are_behind_are_asked_to_confirm() -> None:
    wire = Wire()
    attempt = Attempt("key", "me", 1000)
    Rounds("redlock", 0, 0).confirm(cast(Channel, wire), attempt, 7, behind=[1, 4], already=1)
    assert (wire.names, wire.asked) == (["EVALSHA"], [1, 4])


def told_to_undo(grants: Sequence[GrantReply | None]) -> list[int]:
    wire = Wire()
    Rounds("redlock", 0, 0).abandon(cast(Channel, wire), Attempt("key", "owner", 1000), grants)
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
    rounds = Rounds("redlock", 0, 0)
    abandoned, released = Wire(), Wire()
    rounds.abandon(cast(Channel, abandoned), Attempt("key", owner, 1000), ())
    release(rounds, cast(Channel, released), owner)
    for wire in (abandoned, released):
        assert (wire.names, wire.owners) == (names, [owner])


def test_a_node_that_refused_is_told_nothing_more() -> None:
    assert told_to_undo([BUSY, Done(10_000), BUSY, BUSY, BUSY]) == []


def test_an_attempt_that_was_struck_down_is_undone_everywhere() -> None:
    assert told_to_undo(()) == [0, 1, 2, 3, 4]


HOUR_MS = 3_600_000


def told_to_clear(grants: Sequence[GrantReply | None], attempt: Attempt) -> dict[int, str]:
    wire = Wire()
    Rounds("redlock", 0, 0).clear(cast(Channel, wire), attempt, grants)
    return dict(zip(wire.asked, wire.owners, strict=True))


def reserved(remaining_ms: int = HOUR_MS) -> Busy:
    return Busy(new_owner(is_reservation=True), remaining_ms, 3)


LEASE = Attempt("key", new_owner(), 30_000)
RESERVATION = Attempt("key", new_owner(is_reservation=True), HOUR_MS, is_reservation=True)


def test_a_lease_discards_leftover_reservations_and_no_more() -> None:
    left, other = reserved(), reserved()
    freed = {1: left.holder, 3: other.holder}
    assert told_to_clear([Granted(7), left, BUSY, other, Granted(7)], LEASE) == freed


def test_a_reservation_that_may_have_a_majority_is_not_released() -> None:
    holder, left = reserved(), reserved()
    assert told_to_clear([holder, holder, holder, Granted(7), None], LEASE) == {}
    assert told_to_clear([holder, holder, LATE, left, Granted(7)], LEASE) == {3: left.holder}
    assert told_to_clear([holder, LATE, None, left, Granted(7)], LEASE) == {}


def test_a_reservation_releases_one_too_old_to_be_under_way() -> None:
    fresh, old = reserved(HOUR_MS - 50_000), reserved(HOUR_MS - 70_000)
    assert told_to_clear([fresh, old, Granted(7), Granted(7), None], RESERVATION) == {1: old.holder}
