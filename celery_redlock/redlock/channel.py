"""One connection to every node: write all, poll, read until it is decided, owe the rest.

A reply that nobody waits for is *owed*: it is read off before the next round's replies count. A
connection that owes for longer than the node timeout is *suspect*: rounds that can reach a quorum
without it skip it, and only its releases still go out.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from . import home
from .clock import Clock
from .errors import ConfigurationError
from .exchange import Exchange, Replies, Reply
from .link import ErrorReply, Link, is_error, pack
from .node import Node
from .poller import Poller, new_poller
from .quorum import Failed, majority
from .scripts import Argument

logger = logging.getLogger(__name__)
Command = tuple[Argument, ...]
_GIVE_UP_S = 5.0
"""A connection that has owed for this long is replaced: not the node, the path may have died."""
_FRESH_S = 0.1
_LOOK_S = 1.0
"""A channel used so lately, and looked at so lately, is taken as it is."""


class Channel:
    """One connection to each of `nodes`, made and mended in the background. For one thread.

    Args:
        nodes: The servers; replies are reported in this order.
        clock: Time for time-outs.
        node_timeout: Longest wait for a node in one round, seconds.
        connect_timeout: Longest wait for a connection when fewer than a quorum are up, seconds.
    """

    def __init__(
        self, nodes: Sequence[Node], clock: Clock, node_timeout: float, connect_timeout: float
    ) -> None:
        self.nodes = nodes
        self.quorum = majority(len(nodes))
        self._clock = clock
        self._node_timeout = node_timeout
        self._connect_timeout = connect_timeout
        self._links: list[Link | None] = [None] * len(nodes)
        self._index: dict[int, int] = {}
        self._poller: Poller = new_poller()
        self._arrivals: deque[tuple[int, Link | None]] = deque()
        self._arrived = threading.Event()
        self._connecting: set[int] = set()
        self._is_new = True
        self._used_at = self._looked_at = 0.0

    # ---- what a round goes through

    def ask(
        self,
        command: Command,
        parse: Callable[[object], Reply],
        is_decided: Callable[[Replies[Reply]], bool],
        among: Sequence[int],
    ) -> Replies[Reply]:
        """Send one command to the nodes `among` and return their replies, one entry a node.

        It returns as soon as `is_decided` says so of the replies so far (None: none yet), or when
        the node timeout has passed; then whoever has not answered is Failed.
        """
        return self.ask_batch([command], lambda raws: parse(raws[0]), is_decided, among)

    def ask_batch(
        self,
        commands: Sequence[Command],
        parse: Callable[[list[object]], Reply],
        is_decided: Callable[[Replies[Reply]], bool],
        among: Sequence[int],
    ) -> Replies[Reply]:
        """Send several commands in one write a node; `parse` is given all that a node answers."""
        payload = b"".join(map(pack, commands))
        exchange = Exchange(payload, len(commands), len(self.nodes), parse)
        self._run(exchange, is_decided, among)
        return exchange.replies

    def _run(
        self,
        exchange: Exchange[Reply],
        is_decided: Callable[[Replies[Reply]], bool],
        among: Sequence[int],
    ) -> None:
        now = self._clock.now()
        deadline = now + self._node_timeout
        payload, count, first, replies = (
            exchange.payload, exchange.count, exchange.first, exchange.replies
        )  # fmt: skip
        for index, link in enumerate(self._links):
            if link is None or index not in among:
                replies[index] = Failed(self._why_not(index, now))
                continue
            first[index] = link.sent
            if link.send(payload, count, now):
                continue
            # It is blocked, or is not any more.
            self._poller.register(link.fd, writing=link.is_blocked)
            if link.closed:
                replies[index] = Failed(link.closed)
                self._drop(index)
        is_last_look = False
        while not is_decided(replies):
            if is_last_look:
                late = Failed(f"timed out after {self._node_timeout * 1000:.0f} ms")
                replies[:] = [late if reply is None else reply for reply in replies]
                break
            # This thread may have been kept from running for longer than the time-out, with the
            # replies in its sockets: a last look before anybody is called late.
            is_last_look = now >= deadline
            self._read(max(0.0, deadline - now), exchange)
            now = self._clock.now()
        self._used_at = now

    def _read(self, seconds: float, exchange: Exchange[Reply] | None = None) -> bool:
        """Read what comes within `seconds`, and keep what belongs to `exchange`.

        Returns:
            Whether there was anything; then there may be more.
        """
        ready = self._poller.wait(seconds)
        now = self._clock.now()
        for fd in ready:
            index = self._index[fd]
            if link := self._links[index]:
                self._read_link(index, link, now, exchange)
        return bool(ready)

    def _read_link(
        self, index: int, link: Link, now: float, exchange: Exchange[Reply] | None
    ) -> None:
        was_blocked = link.is_blocked
        if was_blocked:
            link.flush()
        first = link.received
        raws = link.receive(now)
        if ErrorReply in map(type, raws):
            self._heed_errors(index, link, first, raws, now, exchange)
        if exchange:
            exchange.take(index, first, raws)
        if link.closed:
            self._drop(index)
            if exchange and exchange.replies[index] is None:
                exchange.replies[index] = Failed(link.closed)
        elif was_blocked or link.is_blocked:  # by a request that was repeated
            self._poller.register(link.fd, writing=link.is_blocked)

    @staticmethod
    def _heed_errors(
        index: int, link: Link, first: int, raws: list[object], now: float,
        exchange: Exchange[Reply] | None,
    ) -> None:  # fmt: skip
        """Do what error replies call for: load the scripts again, or give up a replica."""
        for number, raw in enumerate(raws, first):
            if is_error(raw, "NOSCRIPT"):
                link.reload_scripts(number, now)
                if exchange:
                    exchange.repeat(index, number, link, now)
            elif is_error(raw, "READONLY"):
                link.fail("it became a replica", blames_node=True)

    # ---- who can be asked

    def voters(self) -> Sequence[int]:
        """Return the nodes that may grant.

        Those that are connected and past the restart guard; suspects only when no quorum can be
        had without them.
        """
        now = self._clock.now()
        return self._without_suspects(
            [i for i, link in enumerate(self._links) if link and link.votes_from <= now], now
        )

    def holders(self) -> Sequence[int]:
        """Return the nodes to extend on: as voters, and those that the restart guard silences."""
        return self._without_suspects(self.everyone(), self._clock.now())

    def everyone(self) -> list[int]:
        """Return all connected nodes: a release goes to the suspects, too."""
        return [index for index, link in enumerate(self._links) if link]

    def debt(self) -> Callable[[], bool] | None:
        """Return what tells whether a reply that is owed now still is; None if none is owed."""
        owing = [(link, link.sent) for link in self._links if link and link.sent > link.received]
        if not owing:
            return None
        return lambda: any(not link.closed and link.received < sent for link, sent in owing)

    def _without_suspects(self, indices: list[int], now: float) -> list[int]:
        lately = now - self._node_timeout
        trusted = [
            index
            for index in indices
            if (link := self._links[index])
            and not link.is_blocked
            and (link.sent == link.received or link.owed_since >= lately)
        ]
        return trusted if len(trusted) >= self.quorum else indices

    def _why_not(self, index: int, now: float) -> str:
        link = self._links[index]
        if link is None:
            return self.nodes[index].error or "not connected yet"
        if link.closed:
            return link.closed
        if link.votes_from > now:
            return f"restarted lately, votes in {link.votes_from - now:.1f} s"
        return "skipped: it owes replies"

    # ---- making and mending connections

    def prepare(self) -> None:
        """Replace what is broken; wait for it only when fewer than a quorum are up."""
        now = self._clock.now()
        is_fresh = now - self._used_at < _FRESH_S and now - self._looked_at < _LOOK_S
        if is_fresh and None not in self._links:
            return
        self._looked_at = now
        # First, for they may have come long ago, and have broken since.
        self._adopt()
        # The end of a connection comes behind the replies that it still owed.
        while self._read(0.0):
            pass
        for index, link in enumerate(self._links):
            if link and link.sent > link.received and now - link.owed_since > _GIVE_UP_S:
                link.fail(f"it has not answered for {_GIVE_UP_S:.0f} s", blames_node=True)
                self._drop(index)
        if None in self._links:
            self._mend(now)

    def _mend(self, now: float) -> None:
        is_short = len(self.everyone()) < self.quorum
        for index, link in enumerate(self._links):
            is_free = link is None and index not in self._connecting
            if is_free and (is_short or self.nodes[index].retry_at <= now):
                self._start_connecting(index)
        if is_short or self._is_new:
            self._wait_for_connections(now)

    def _wait_for_connections(self, began: float) -> None:
        """Wait for a quorum; a new channel waits a little longer, to start with all nodes."""
        while self._connecting:
            is_short = len(self.everyone()) < self.quorum
            patience = self._connect_timeout if is_short else self._node_timeout
            left = began + patience - self._clock.now()
            if left <= 0 or not (is_short or self._is_new):
                break
            self._arrived.wait(left)
            self._arrived.clear()
            self._adopt()
        self._is_new = False

    def introduce(self) -> None:
        """Wait until every node has been tried."""
        self._is_new = True
        self._adopt()
        for index, link in enumerate(self._links):
            if link is None and index not in self._connecting:
                self._start_connecting(index)
        deadline = self._clock.now() + 2 * self._connect_timeout
        while self._connecting and self._clock.now() < deadline:
            self._arrived.wait(self._connect_timeout)
            self._arrived.clear()
            self._adopt()
        self._mend(self._clock.now())

    def _start_connecting(self, index: int) -> None:
        self._connecting.add(index)
        self.nodes[index].attempt_begins(self._clock.now())
        name = f"redlock-connect-{self.nodes[index].name}"
        home.start_beside(lambda: self._connect(index), name)

    def _connect(self, index: int) -> None:
        link = None
        try:
            link = self.nodes[index].connect()
        except (ConnectionError, ConfigurationError):
            pass  # Kept in node.error, and told to the observers there.
        except Exception as error:  # noqa: BLE001  # it is logged
            name = self.nodes[index].name
            home.call(logger.error, "connecting failed unexpectedly node=%s", name, exc_info=error)
            self.nodes[index].failed(f"unexpectedly, {error!r}")
        self._arrivals.append((index, link))
        self._arrived.set()

    def _adopt(self) -> None:
        while self._arrivals:
            index, link = self._arrivals.popleft()
            self._connecting.discard(index)
            if link:
                self._links[index] = link
                self._index[link.fd] = index
                self._poller.register(link.fd, writing=False)

    def _drop(self, index: int) -> None:
        link = self._links[index]
        if link:
            self._links[index] = None
            # Before the descriptor is closed: its number is the next connection's.
            del self._index[link.fd]
            self._poller.unregister(link.fd)
            link.disconnect()

    def disown(self) -> None:
        """In a child: close this process's copies of the connections; they are the parent's."""
        for link in self._links:
            if link:
                link.disown()

    def close(self) -> None:
        """Close every connection. The channel may be used again: it makes new ones."""
        self._adopt()
        for index in self.everyone():
            self._drop(index)
