"""Which of the replies that come on a connection are those to a round's requests."""

from __future__ import annotations

import itertools
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from celery_redlock.redlock.protocol.replies import Failed
from celery_redlock.redlock.transport.connection import NodeConnection
from celery_redlock.redlock.transport.in_flight import NOT_ASKED, InFlightRound


class FakeConnection:
    """A connection on which so many requests were sent."""

    def __init__(self, sent: int) -> None:
        self.sent = sent
        self.repeated: list[tuple[bytes, int, float]] = []

    def send(self, payload: bytes, requests: int, now: float) -> None:
        self.sent += requests
        self.repeated.append((payload, requests, now))


def round_of(count: int, first: int) -> InFlightRound[list[object]]:
    in_flight: InFlightRound[list[object]] = InFlightRound(b"ask", count, 1, list)
    in_flight.first[0] = first
    return in_flight


@given(
    owed=st.integers(0, 4), count=st.integers(1, 5), more=st.integers(0, 4),
    cuts=st.sets(st.integers(1, 12)),
)  # fmt: skip
def test_however_replies_are_split_a_round_gets_its_own(
    owed: int, count: int, more: int, cuts: set[int]
) -> None:
    in_flight = round_of(count, first=owed)
    end = owed + count + more
    bounds = sorted({0, end} | {cut for cut in cuts if cut < end})
    for begin, until in itertools.pairwise(bounds):
        is_complete = begin >= owed + count
        assert (in_flight.replies[0] is not None) == is_complete
        in_flight.take(0, begin, list(range(begin, until)))
    assert in_flight.replies == [list(range(owed, owed + count))]


def test_replies_before_a_request_was_repeated_do_not_count() -> None:
    in_flight, connection = round_of(count=2, first=0), FakeConnection(sent=2)
    in_flight.take(0, 0, ["before"])
    in_flight.repeat(0, 1, cast(NodeConnection, connection), now=0.0)
    in_flight.take(0, 1, ["forgotten"])
    in_flight.take(0, 2, ["one"])
    in_flight.take(0, 3, ["two"])
    assert in_flight.replies == [["one", "two"]]


def test_replies_that_are_alike_are_parsed_once() -> None:
    parsed: list[list[object]] = []

    def parse(raws: list[object]) -> str:
        parsed.append(raws)
        return f"parsed {raws}"

    in_flight = InFlightRound(b"", 1, 4, parse)
    in_flight.first = [0, 5, 0, 0]
    for index, number, raw in ((0, 0, b"7"), (1, 5, b"7"), (2, 0, b"8"), (3, 0, b"7")):
        in_flight.take(index, number, [raw])
    assert in_flight.replies == ["parsed [b'7']"] * 2 + ["parsed [b'8']", "parsed [b'7']"]
    assert parsed == [[b"7"], [b"8"], [b"7"]]


def test_a_request_whose_scripts_were_lost_is_repeated_once() -> None:
    in_flight, connection = round_of(count=1, first=3), FakeConnection(sent=4)
    in_flight.repeat(0, 3, cast(NodeConnection, connection), now=7.0)
    assert connection.repeated == [(b"ask", 1, 7.0)]
    in_flight.repeat(0, 4, cast(NodeConnection, connection), now=8.0)
    assert len(connection.repeated) == 1
    assert in_flight.replies == [Failed("it keeps forgetting its scripts")]
    in_flight.take(0, 4, ["late"])
    assert in_flight.replies == [Failed("it keeps forgetting its scripts")]
    assert in_flight.first == [NOT_ASKED]


def test_a_lost_script_of_an_earlier_request_repeats_nothing() -> None:
    in_flight, connection = round_of(count=1, first=3), FakeConnection(sent=4)
    in_flight.repeat(0, 2, cast(NodeConnection, connection), now=7.0)
    assert connection.repeated == []
