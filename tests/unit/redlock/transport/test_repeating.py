"""Rounds that are repeated, on new connections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from celery_redlock.redlock.protocol.replies import Failed
from celery_redlock.redlock.transport.channel import Channel
from celery_redlock.redlock.transport.repeating import ask_repeatably

LATE = Failed("timed out")


class Rounds:
    """A channel that answers its rounds as it is told, and may be renewed."""

    def __init__(self, *replies: list[Any], can_renew: bool = True) -> None:
        self.replies = list(replies)
        self.timeouts: list[float | None] = []
        self.asked: list[list[int]] = []
        self.can_renew = can_renew

    def first_timeout(self, timeout: float) -> float:
        return timeout / 4

    def renew(self) -> bool:
        return self.can_renew

    def ask(
        self, commands: Any, parse: Callable[[Any], Any], is_decided: Any, among: Sequence[int],
        timeout: float | None = None,
    ) -> list[Any]:  # fmt: skip
        self.timeouts.append(timeout)
        self.asked.append(list(among))
        return [reply if reply is LATE else parse([reply]) for reply in self.replies.pop(0)]

    def run(self, timeout: float | None = None, **options: Any) -> list[Any]:
        whom = iter([[0, 1], [1, 2], [0, 2], [0, 1]])
        return ask_repeatably(
            cast(Channel, self), [("TIME",)], lambda raws: raws[0], bool, lambda: next(whom),
            timeout, **options,
        )  # fmt: skip


def test_a_round_that_reached_a_quorum_is_not_repeated() -> None:
    rounds = Rounds([1, LATE, 1])
    assert rounds.run() == [1, LATE, 1]


@pytest.mark.parametrize("first", [[LATE, 1, LATE], [LATE, LATE, None]])
def test_a_round_without_a_quorum_is_repeated(first: list[Any]) -> None:
    rounds = Rounds(first, [LATE, 2, 2])
    assert rounds.run(timeout=8.0) == [LATE, 2, 2]
    assert rounds.timeouts == [2.0, 8.0]
    assert rounds.asked == [[0, 1], [1, 2]], "those that are connected then"


def test_a_round_is_repeated_three_times_at_most() -> None:
    rounds = Rounds(*[[LATE, LATE, number] for number in range(5)])
    assert rounds.run() == [LATE, LATE, 3]


def test_a_failed_node_is_asked_again_if_another_does_not_count() -> None:
    rounds = Rounds([1, LATE, -1], [1, 1, -1])
    assert rounds.run(is_short=lambda replies: replies.count(1) < 2) == [1, 1, -1]


@pytest.mark.parametrize("only", [[1, LATE, 1], [1, -1, -1]])
def test_no_round_is_repeated_where_that_can_not_help(only: list[Any]) -> None:
    rounds = Rounds(only)
    assert rounds.run(is_short=lambda replies: replies.count(1) < 2) == only


def test_without_new_connections_no_round_is_repeated() -> None:
    rounds = Rounds([LATE, LATE, 1], can_renew=False)
    assert rounds.run() == [LATE, LATE, 1]
    assert rounds.timeouts == [None]


def test_replies_to_a_repeated_request_have_a_parser_of_their_own() -> None:
    rounds = Rounds([LATE, LATE, 1], [1, 1, LATE])
    assert rounds.run(parse_again=lambda raws: -raws[0]) == [-1, -1, LATE]
