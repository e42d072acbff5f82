"""Which of the replies that come on a connection are those to a round's requests."""

from __future__ import annotations

import itertools
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from celery_redlock.redlock.exchange import Exchange
from celery_redlock.redlock.link import Link


class Line:
    """A connection on which so many requests were sent."""

    def __init__(self, sent: int) -> None:
        self.sent = sent

    def send(self, payload: bytes, requests: int, now: float) -> None:
        self.sent += requests


def exchange_of(count: int, first: int) -> Exchange[list[object]]:
    exchange: Exchange[list[object]] = Exchange(b"", count, 1, list)
    exchange.first[0] = first
    return exchange


@given(
    owed=st.integers(0, 4), count=st.integers(1, 5), more=st.integers(0, 4),
    cuts=st.sets(st.integers(1, 12)),
)  # fmt: skip
def test_however_replies_are_split_a_round_gets_its_own(
    owed: int, count: int, more: int, cuts: set[int]
) -> None:
    exchange = exchange_of(count, first=owed)
    end = owed + count + more
    bounds = sorted({0, end} | {cut for cut in cuts if cut < end})
    for begin, until in itertools.pairwise(bounds):
        is_complete = begin >= owed + count
        assert (exchange.replies[0] is not None) == is_complete
        exchange.take(0, begin, list(range(begin, until)))
    assert exchange.replies == [list(range(owed, owed + count))]


def test_what_came_before_a_request_was_repeated_is_no_part_of_the_answer() -> None:
    exchange, line = exchange_of(count=2, first=0), Line(sent=2)
    exchange.take(0, 0, ["before"])
    exchange.repeat(0, 1, cast(Link, line), now=0.0)
    exchange.take(0, 1, ["forgotten"])
    exchange.take(0, 2, ["one"])
    exchange.take(0, 3, ["two"])
    assert exchange.replies == [["one", "two"]]
