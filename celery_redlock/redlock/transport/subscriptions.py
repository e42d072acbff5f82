"""Subscriptions to channels of the nodes, over one connection to each that does nothing else."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from celery_redlock.redlock.clock import Clock
from celery_redlock.redlock.protocol.quorum import majority
from celery_redlock.redlock.threads import callbacks
from celery_redlock.redlock.threads.wakeup import Wakeup

from .connection import ErrorReply, NodeConnection, pack
from .connection_set import ConnectionSet
from .node import Node

logger = logging.getLogger(__name__)
_CHECK_S = 5.0
"""Silence after which a connection is checked; after as much again it is replaced."""
_REFUSED_S = 60.0
"""Time after which a node that refused a subscription is asked again."""
_BATCH = 500


class Message(NamedTuple):
    """A message from a node.

    Attributes:
        node: Index of the node.
        channel: Channel on which it was published.
        payload: Its text.
    """

    node: int
    channel: str
    payload: bytes


@dataclass(slots=True)
class _Listening:
    """What one connection is subscribed to.

    Attributes:
        connection: Connection to the node.
        heard_at: Time of its last sign of life, seconds on the clock.
        asked: Channels that it was asked for.
        confirmed: Channels of which the node has confirmed the subscription.
        checked_at: Time of the last check whether it is alive.
        refused_until: Time until which it is not asked again; 0.0: it has refused nothing.
    """

    connection: NodeConnection
    heard_at: float
    asked: set[str] = field(default_factory=set)
    confirmed: set[str] = field(default_factory=set)
    checked_at: float = 0.0
    refused_until: float = 0.0


class Subscriptions:
    """Subscriptions on all `nodes`. For one thread, except `wake`.

    Args:
        nodes: The servers.
        clock: Time.
        node_timeout: Longest wait for a node while a quorum is connected, seconds.
        connect_timeout: Longest wait for a quorum of connections, seconds.
    """

    def __init__(
        self, nodes: Sequence[Node], clock: Clock, node_timeout: float, connect_timeout: float
    ) -> None:
        self._nodes = nodes
        self._quorum = majority(len(nodes))
        self._clock = clock
        self._connect_timeout = connect_timeout
        self._connections = ConnectionSet(nodes, clock, node_timeout, connect_timeout)
        self._listening: list[_Listening | None] = [None] * len(nodes)
        self._wakeup = Wakeup()
        self._connections.poller.register(self._wakeup.fd, writing=False)

    def wake(self) -> None:
        """End the current or the next `hear`, from any thread."""
        self._wakeup.wake()

    def follow(self, channels: AbstractSet[str]) -> None:
        """Subscribe to exactly these channels, on each node that can be reached."""
        now = self._clock.now()
        self._reconnect(now)
        for index, connection in enumerate(self._connections.by_node):
            listening = self._listening[index]
            if connection is None:
                self._listening[index] = None
                continue
            if listening is None or listening.connection is not connection:
                self._listening[index] = listening = _Listening(connection, now)
            if now >= listening.refused_until:
                if listening.refused_until:
                    # Of what it was asked before, it may have refused only a part.
                    listening.refused_until = 0.0
                    connection.send(pack(("UNSUBSCRIBE",)), 0, now)
                self._send(listening, channels, now)
            self._check(listening, now)
            self._tend(index, connection)

    def hear(self, seconds: float) -> list[Message]:
        """Return the messages that arrive within `seconds`, as soon as there is any."""
        messages: list[Message] = []
        for fd in self._connections.poller.wait(seconds):
            if fd == self._wakeup.fd:
                self._wakeup.clear()
                continue
            index = self._connections.index_of[fd]
            if listening := self._listening[index]:
                listening.connection.flush()
                for raw in listening.connection.hear():
                    self._take(index, listening, raw, messages)
                self._tend(index, listening.connection)
        return messages

    def reaches_quorum(self, channel: str) -> bool:
        """Return whether every release that a majority of the nodes makes known is heard."""
        confirmed = sum(
            listening is not None and channel in listening.confirmed
            for listening in self._listening
        )
        return confirmed >= self._quorum

    @property
    def lost(self) -> int:
        """Number of connections lost so far; releases may have gone unheard with each."""
        return self._connections.dropped

    def disown(self) -> None:
        """In a child: close this process's copy of the wakeup; it is the parent's."""
        self._wakeup.close()

    def close(self) -> None:
        """Close every connection."""
        self._connections.close()

    def _reconnect(self, now: float) -> None:
        self._connections.adopt()
        if any(
            connection is None and self._nodes[index].retry_at <= now
            for index, connection in enumerate(self._connections.by_node)
        ):
            # A release is heard from nodes inside their restart guard as well.
            self._connections.reconnect(now, self._connect_timeout, needs_votes=False)

    def _send(self, listening: _Listening, channels: AbstractSet[str], now: float) -> None:
        new, old = channels - listening.asked, listening.asked - channels
        listening.asked |= new
        listening.asked -= old
        listening.confirmed -= old
        for command, changed in (("SUBSCRIBE", sorted(new)), ("UNSUBSCRIBE", sorted(old))):
            for start in range(0, len(changed), _BATCH):
                payload = pack((command, *changed[start : start + _BATCH]))
                # Replies to it are messages: none is counted.
                listening.connection.send(payload, 0, now)

    def _check(self, listening: _Listening, now: float) -> None:
        """Have a silent node confirm a subscription again; a half-open connection says nothing."""
        if now - listening.heard_at < _CHECK_S or not listening.asked:
            return
        if listening.checked_at <= listening.heard_at:
            listening.checked_at = now
            again = next(iter(listening.asked))
            listening.connection.send(pack(("SUBSCRIBE", again)), 0, now)
        elif now - listening.checked_at >= _CHECK_S:
            listening.connection.fail(f"it has not answered for {_CHECK_S:.0f} s")

    def _take(
        self, index: int, listening: _Listening, raw: object, messages: list[Message]
    ) -> None:
        listening.heard_at = now = self._clock.now()
        match raw:
            case [b"message", bytes(channel), bytes(payload)]:
                messages.append(Message(index, channel.decode(errors="replace"), payload))
            case [b"subscribe", bytes(channel), int()]:
                listening.confirmed.add(channel.decode(errors="replace"))
                listening.confirmed &= listening.asked
            case ErrorReply():
                listening.refused_until = now + _REFUSED_S
                listening.asked.clear()
                listening.confirmed.clear()
                callbacks.tell(_log_refusal, self._nodes[index].name, raw)

    def _tend(self, index: int, connection: NodeConnection) -> None:
        """Drop a broken connection; wait for a blocked one to be writable."""
        if connection.closed:
            self._connections.drop(index)
            self._listening[index] = None
        else:
            self._connections.poller.register(connection.fd, writing=connection.is_blocked)


def _log_refusal(name: str, error: object) -> None:
    logger.info("wakeups refused, polling node=%s error=%.200s", name, error)
