"""What goes to which nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from celery_redlock.redlock.channel import Channel
from celery_redlock.redlock.lease import new_owner
from celery_redlock.redlock.quorum import Busy, Done, Failed, Granted, GrantReply
from celery_redlock.redlock.rounds import Attempt, Rounds

BUSY, LATE = Busy("somebody", 900, 3), Failed("timed out")


class Wire:
    """What a round asks of a channel to five nodes, all connected."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.owners: list[str] = []

    def everyone(self) -> list[int]:
        return [0, 1, 2, 3, 4]

    def ask(
        self, command: Any, parse: object, is_decided: Callable[..., bool], among: Sequence[int]
    ) -> list[Any]:
        self.asked += among
        self.owners.append(command[5])
        return [None] * 5


def told_to_undo(grants: Sequence[GrantReply | None]) -> list[int]:
    wire = Wire()
    Rounds("redlock", 0, 0).abandon(cast(Channel, wire), Attempt("key", "owner", 1000), grants)
    return wire.asked


def test_a_failed_attempt_is_undone_wherever_it_may_stand_now_or_later() -> None:
    assert told_to_undo([Granted(7), None, LATE, BUSY, BUSY]) == [0, 1, 2]


def test_a_node_that_refused_is_told_nothing_more() -> None:
    assert told_to_undo([BUSY, Done(10_000), BUSY, BUSY, BUSY]) == []


def test_an_attempt_that_was_struck_down_is_undone_everywhere() -> None:
    assert told_to_undo(()) == [0, 1, 2, 3, 4]


def test_what_is_left_over_of_reservations_is_freed_and_nothing_else() -> None:
    wire, left, other = Wire(), *(Busy(new_owner(is_reservation=True), 900, 3) for _ in range(2))
    grants = [Granted(7), left, BUSY, other, None]
    Rounds("redlock", 0, 0).clear(cast(Channel, wire), Attempt("key", "owner", 1000), grants)
    assert (wire.asked, wire.owners) == ([1, 3], [left.holder, other.holder])
