"""Bugs in how connections are made, read, judged and replaced, that a simulation must find.

Each restores what the code once did. Not among them: that a guarded node makes a quorum of holders
while no unread reply makes a node suspect. A node that is suspect then is slow, or hangs, and
whether it would have answered in time is not certain.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from celery_redlock.redlock.release import ReleaseRound
from celery_redlock.redlock.transport import connection_set, redis_py, repeating
from celery_redlock.redlock.transport.channel import Channel
from celery_redlock.redlock.transport.connection import NodeConnection
from celery_redlock.redlock.transport.connection_set import ConnectionSet
from celery_redlock.redlock.transport.handshake import Handshake, Server
from celery_redlock.redlock.transport.node import Node

Bug = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, Bug] = {}
KNOWN_SEEDS = {
    "a_piece_is_known_as_the_batch": 1_000_003,
    "an_unread_reply_is_owed": 1_000_353,
    "dead_connections_fail_the_attempt": 1_000_168,
    "silent_connections_are_kept": 1_000_215,
    "one_address_is_waited_for": 1_000_324,
    "no_back_off_without_a_quorum": 1_000_265,
    "a_former_replica_votes": 1_000_000,
    "what_a_full_node_said_is_lost": 1_000_015,
    "a_refused_login_is_told_whole": 1_000_182,
    "an_end_calls_the_node_down": 1_000_015,
    "a_closed_request_is_not_repeated": 1_000_232,
    "a_request_is_repeated_once": 1_000_040,
    "a_broken_attempt_to_connect_is_final": 1_000_533,
    "the_keeper_does_not_connect_again": 1_000_335,
    "only_spares_are_waited_for": 1_000_433,
}
"""A schedule that was picked because it finds the bug."""
FOUND_WITHIN = {
    "a_piece_is_known_as_the_batch": 100,
    "an_unread_reply_is_owed": 1_000,
    "dead_connections_fail_the_attempt": 1_000,
    "silent_connections_are_kept": 5_000,
    "one_address_is_waited_for": 2_000,
    "no_back_off_without_a_quorum": 2_000,
    "a_former_replica_votes": 2_000,
    "what_a_full_node_said_is_lost": 2_000,
    "a_refused_login_is_told_whole": 2_000,
    "an_end_calls_the_node_down": 200,
    "a_closed_request_is_not_repeated": 2_000,
    "a_request_is_repeated_once": 4_000,
    "a_broken_attempt_to_connect_is_final": 5_000,
    "the_keeper_does_not_connect_again": 4_000,
    "only_spares_are_waited_for": 20_000,
}
"""As in `bugs`."""
_ordinary = re.compile(rb":\d\r\n|\$16\r\n\d{16}\r\n").fullmatch


def _bug(make: Bug) -> Bug:
    BUGS[make.__name__.removeprefix("_")] = make
    return make


@_bug
def _a_piece_is_known_as_the_batch(patch: pytest.MonkeyPatch) -> None:
    """The first bytes of a node's replies are remembered as all of them, for the other nodes."""
    read_from = Channel._read_from
    known: dict[bytes, Any] = {}
    rounds: list[Any] = [None]

    def read(self: Channel, index: int, connection: Any, now: float, in_flight: Any) -> None:
        if in_flight is not rounds[0]:
            known.clear()
            rounds[0] = in_flight
        data, first = connection._socket.inbox, connection.received
        is_first = in_flight is not None and first == in_flight.first[index]
        if is_first and data in known:
            connection._socket.recv(len(data))
            connection.received += in_flight.count
            in_flight.replies[index] = known[data]
            return
        read_from(self, index, connection, now, in_flight)
        is_all = connection.received == connection.sent or _ordinary(data)
        if is_first and connection.received > first and is_all:
            known[data] = in_flight.replies[index]

    patch.setattr(Channel, "_read_from", read)


@_bug
def _an_unread_reply_is_owed(patch: pytest.MonkeyPatch) -> None:
    """A node whose reply lies unread is suspect, and a guarded node makes a quorum without it."""

    def holders(self: Channel) -> Sequence[int]:
        trusted = self._trusted(self._clock.now())
        return trusted if len(trusted) >= self.quorum else self.everyone()

    patch.setattr(Channel, "_trusted", Channel._not_suspect)
    patch.setattr(Channel, "holders", holders)


@_bug
def _dead_connections_fail_the_attempt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Channel, "renew", lambda _: False)


@_bug
def _silent_connections_are_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConnectionSet, "try_spares", lambda *_, **__: False)


@_bug
def _one_address_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(connection_set, "_ADDRESSES", 1)
    renew = Channel.renew
    # Without any connection it would wait for the second one.
    patch.setattr(Channel, "renew", lambda self: bool(self.everyone()) and renew(self))


@_bug
def _no_back_off_without_a_quorum(patch: pytest.MonkeyPatch) -> None:
    start_due = ConnectionSet._start_due

    def start_all(self: ConnectionSet, now: float, *, is_short: bool) -> None:
        start_due(self, float("inf") if self._is_short(now) else now, is_short=is_short)

    patch.setattr(ConnectionSet, "_start_due", start_all)


@_bug
def _a_former_replica_votes(patch: pytest.MonkeyPatch) -> None:
    identify = Handshake.identify

    def without_history(self: Handshake, connection: Any) -> Server:
        return identify(self, connection)._replace(history="")

    patch.setattr(Handshake, "identify", without_history)


@_bug
def _what_a_full_node_said_is_lost(patch: pytest.MonkeyPatch) -> None:
    """Once a handshake's questions can't be written, nothing is read any more."""
    receive = NodeConnection.receive

    def receive_if_open(self: NodeConnection, now: float) -> list[object]:
        return [] if self.closed and self.run_id is None else receive(self, now)

    patch.setattr(NodeConnection, "receive", receive_if_open)


@_bug
def _a_refused_login_is_told_whole(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(redis_py, "_LONGEST_ERROR", 1 << 20)


@_bug
def _an_end_calls_the_node_down(patch: pytest.MonkeyPatch) -> None:
    """The end of any connection is taken for that of its node."""
    patch.setattr(Node, "_ended", lambda self, why, *, blames_node: self.failed(why))


@_bug
def _a_closed_request_is_not_repeated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(repeating, "_REPEATS", 0)


@_bug
def _a_request_is_repeated_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(repeating, "_REPEATS", 1)


@_bug
def _a_broken_attempt_to_connect_is_final(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConnectionSet, "_due", lambda *_, **__: [])


@_bug
def _the_keeper_does_not_connect_again(patch: pytest.MonkeyPatch) -> None:
    """Before its releases, to a node whose connection has just been found dead."""
    renew, releasing = Channel.renew, ReleaseRound.make_all.__code__

    def renew_unless_releasing(self: Channel) -> bool:
        return sys._getframe(1).f_code is not releasing and renew(self)

    patch.setattr(Channel, "renew", renew_unless_releasing)


@_bug
def _only_spares_are_waited_for(patch: pytest.MonkeyPatch) -> None:
    """Beside a server that hangs, a missing node is not waited for."""
    try_spares = ConnectionSet.try_spares

    def wait_for_spares(self: ConnectionSet, began: float, *, needs_votes: bool) -> bool:
        waits = try_spares(self, began, needs_votes=needs_votes)
        return waits and any(self.by_node[index] for index in self._connecting)

    patch.setattr(ConnectionSet, "try_spares", wait_for_spares)
