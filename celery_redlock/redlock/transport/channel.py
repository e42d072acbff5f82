"""Channel: one round at a time over one connection per node.

Write to all, poll, read until the outcome is certain, leave the rest owed. A reply that no round
waits for is *owed*: it is read before the replies of the next round count. A connection that owes
replies for longer than the node timeout is *suspect*: rounds that can reach a quorum without it
skip it, and only releases are still written to it. What has arrived is read before that is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from celery_redlock.redlock.clock import Clock
from celery_redlock.redlock.protocol.quorum import majority
from celery_redlock.redlock.protocol.replies import Failed, says_refused, says_replica
from celery_redlock.redlock.protocol.scripts import Argument

from .connection import ErrorReply, NodeConnection, pack
from .connection_set import GIVE_UP_S, ConnectionSet
from .in_flight import NOT_ASKED, InFlightRound, Replies, Reply
from .lingering import close_lingering
from .node import Node

Command = tuple[Argument, ...]
_LONGEST_ERROR = 200
_FRESH_S = 0.1
_LOOKS = 4
"""Reads of unsolicited data before the rest is left for later."""
_IDLE_S = 4.5
"""A connection that was idle for so long may be dead without a sign: firewalls forget it."""
_LOOK_FOR_SPARE_S = 0.005
_LOOK_S = 1.0
"""A channel that was used and examined this recently is not examined again."""


class Channel:
    """Rounds over one connection to each of `nodes`. For one thread at a time.

    Args:
        nodes: The servers; replies are in this order.
        clock: Time for time-outs.
        node_timeout: Longest wait for a node in one round, seconds.
        connect_timeout: Longest time for one address of a node, seconds.
    """

    def __init__(
        self, nodes: Sequence[Node], clock: Clock, node_timeout: float, connect_timeout: float
    ) -> None:
        self.nodes = nodes
        self.quorum = majority(len(nodes))
        self._clock = clock
        self._node_timeout = node_timeout
        self._connections = ConnectionSet(nodes, clock, node_timeout, connect_timeout)
        self._used_at = self._looked_at = self._prepared_at = 0.0
        self._patience: float | None = None
        self._needs_votes = True
        self._changes = 0
        self._unconnected = ""

    def dropped(self) -> int:
        """Return how many connections have been given up so far."""
        return self._connections.dropped

    # ---- what a round goes through

    def ask(
        self,
        commands: Sequence[Command],
        parse: Callable[[list[object]], Reply],
        is_decided: Callable[[Replies[Reply]], bool],
        among: Sequence[int],
        timeout: float | None = None,
    ) -> Replies[Reply]:
        """Send commands to the nodes `among`, in one write to each; return one entry per node.

        Returns as soon as `is_decided` is true for the replies so far (None: no reply yet), or when
        the timeout has passed; a node that has not answered by then is Failed.

        Args:
            commands: The same commands for all nodes.
            parse: Turns the raw replies of a node into one reply.
            is_decided: Returns whether the replies so far are enough.
            among: The nodes to ask.
            timeout: Longest wait, seconds; None: the node timeout.
        """
        payload, count = b"".join(map(pack, commands)), len(commands)
        in_flight = InFlightRound(payload, count, len(self.nodes), parse)
        timeout = self._node_timeout if timeout is None else timeout
        now = self._clock.now()
        deadline = now + timeout
        first, replies, by_node = in_flight.first, in_flight.replies, self._connections.by_node
        for index in among:
            if connection := by_node[index]:
                first[index] = connection.sent
                if not connection.send(payload, count, now):
                    self._check_blocked(index, connection, in_flight)
        if NOT_ASKED in first:
            in_flight.fail_the_rest(lambda index: self._why_not(index, now))
        is_last_look = False
        while not is_decided(replies):
            if is_last_look:
                late = Failed(f"timed out after {timeout * 1000:.0f} ms")
                replies[:] = [late if reply is None else reply for reply in replies]
                break
            # This thread may have been suspended for longer than the timeout, with the replies in
            # its sockets: read once more before any node counts as late.
            is_last_look = now >= deadline
            now = self._read(max(0.0, deadline - now), in_flight)
        self._used_at = now
        return replies

    def _check_blocked(
        self, index: int, connection: NodeConnection, in_flight: InFlightRound[Reply]
    ) -> None:
        """Note that a socket became blocked, or is not blocked any more, or broke."""
        self._connections.poller.register(connection.fd, writing=connection.is_blocked)
        if connection.closed:
            in_flight.replies[index] = Failed(connection.closed)
            self._connections.drop(index)

    def _read(self, seconds: float, in_flight: InFlightRound[Reply] | None) -> float:
        """Read what comes within `seconds`; keep what belongs to `in_flight`; return the time."""
        ready = self._connections.poller.wait(seconds)
        now = self._clock.now()
        index_of, by_node = self._connections.index_of, self._connections.by_node
        for fd in ready:
            index = index_of[fd]
            if connection := by_node[index]:
                self._read_from(index, connection, now, in_flight)
        return now

    def _read_owed(self, now: float) -> bool:
        """Read what has arrived; return whether there may be more."""
        ready = self._connections.poller.wait(0.0)
        for fd in ready:
            index = self._connections.index_of[fd]
            if connection := self._connections.by_node[index]:
                self._read_from(index, connection, now, None)
        return bool(ready)

    def _read_from(
        self,
        index: int,
        connection: NodeConnection,
        now: float,
        in_flight: InFlightRound[Reply] | None,
    ) -> None:
        was_blocked = connection.is_blocked
        if was_blocked:
            connection.flush()
        first = connection.received
        raws = connection.receive(now)
        if ErrorReply in map(type, raws):
            self._handle_errors(index, connection, first, raws, now, in_flight)
        if in_flight and connection.received > in_flight.first[index]:
            in_flight.take(index, first, raws)
        is_babbling = connection.received > connection.sent and connection.refuse_surplus()
        if connection.closed:
            self._connections.drop(index)
            if in_flight and (is_babbling or in_flight.replies[index] is None):
                in_flight.replies[index] = Failed(connection.closed)
        elif was_blocked or connection.is_blocked:  # by a request that was repeated
            self._connections.poller.register(connection.fd, writing=connection.is_blocked)

    def _handle_errors(
        self, index: int, connection: NodeConnection, first: int, raws: list[object], now: float,
        in_flight: InFlightRound[Reply] | None,
    ) -> None:  # fmt: skip
        """Handle error replies: reload the scripts, drop a replica, report a refusal."""
        for number, raw in enumerate(raws, first):
            if not isinstance(raw, ErrorReply):
                continue
            said = str(raw)[:_LONGEST_ERROR]
            if said.startswith("NOSCRIPT"):
                connection.reload_scripts(number, now)
                if in_flight:
                    in_flight.repeat(index, number, connection, now)
            elif says_replica(said):
                connection.fail("it became a replica", blames_node=True)
            elif says_refused(said):
                self.nodes[index].refuses(said)

    # ---- who can be asked

    def voters(self) -> Sequence[int]:
        """Return the nodes that may grant: connected, and past the restart guard.

        Suspects are among them only if there is no quorum without them.
        """
        now = self._clock.now()
        voters = self._voting(self._trusted(now), now)
        return voters if len(voters) >= self.quorum else self._voting(self.everyone(), now)

    def holders(self) -> Sequence[int]:
        """Return the nodes to extend on: the voters, and those inside their restart guard.

        The latter make no quorum: they may have lost the lease, or forgotten a rival's grant.
        """
        now = self._clock.now()
        trusted = self._trusted(now)
        return trusted if len(self._voting(trusted, now)) >= self.quorum else self.everyone()

    def _voting(self, among: Sequence[int], now: float) -> list[int]:
        by_node = self._connections.by_node
        return [index for index in among if (one := by_node[index]) and one.votes_from <= now]

    def _trusted(self, now: float) -> list[int]:
        """Return the connected nodes that are not suspect."""
        trusted = self._not_suspect(now)
        if len(trusted) < len(self._connections.index_of):
            # A reply that lies unread in a socket is not owed: this thread was busy elsewhere.
            self._read_owed(now)
            trusted = self._not_suspect(now)
        return trusted

    def _not_suspect(self, now: float) -> list[int]:
        lately = now - self._node_timeout
        return [
            index
            for index, connection in enumerate(self._connections.by_node)
            if connection
            and not connection.is_blocked
            and (connection.sent == connection.received or connection.owed_since >= lately)
        ]

    def everyone(self) -> list[int]:
        """Return all connected nodes: releases go to suspects as well."""
        return self._connections.connected()

    def votes_in(self, index: int) -> float:
        """Return the rest of a node's restart guard, seconds; 0.0: over, or not connected."""
        connection = self._connections.by_node[index]
        return max(0.0, connection.votes_from - self._clock.now()) if connection else 0.0

    def pending_replies(self) -> Callable[[], bool] | None:
        """Return a check whether replies that are owed now still are; None: none are owed."""
        owing = [
            (connection, connection.sent)
            for connection in self._connections.by_node
            if connection and connection.sent > connection.received
        ]
        if not owing:
            return None
        return lambda: any(
            not connection.closed and connection.received < sent for connection, sent in owing
        )

    def _why_not(self, index: int, now: float) -> Failed:
        connection = self._connections.by_node[index]
        if self._unconnected:
            return Failed(self._unconnected)
        if connection is None:
            return Failed(self.nodes[index].error or "not connected yet")
        if connection.votes_from > now:
            return Failed(why_guarded(connection.votes_from - now), is_guarded=True)
        return Failed("skipped: it owes replies")

    # ---- making and mending connections

    def prepare(self, patience: float | None = None, *, needs_votes: bool = True) -> None:
        """Replace broken connections; wait for that only while fewer than a quorum are up.

        Args:
            patience: Longest wait then, seconds; None: as long as several addresses of a name take.
            needs_votes: Whether a node inside its restart guard is none of a quorum.
        """
        now = self._prepared_at = self._clock.now()
        self._patience, self._needs_votes = patience, needs_votes
        is_fresh = now - self._used_at < _FRESH_S and now - self._looked_at < _LOOK_S
        if self._unconnected or (is_fresh and None not in self._connections.by_node):
            return
        self._looked_at = now
        close_lingering()
        self._look(now)
        self._reconnect(now)

    def _look(self, now: float) -> None:
        """Drop the connections that are broken, as far as that can be seen."""
        # A connection that was made long ago may have broken since.
        self._connections.adopt()
        # The end of a connection comes after the replies that it still owed.
        for _ in range(_LOOKS):
            if not self._read_owed(now):
                break
        self._connections.drop_stale(now)

    def _reconnect(self, now: float, least: float = 0.0, *, for_all: bool = False) -> None:
        if None in self._connections.by_node:
            self._connections.reconnect(
                now, self._time_left(now, least), for_all=for_all, needs_votes=self._needs_votes
            )
        self._changes = self._connections.dropped + self._connections.adopted

    def _time_left(self, now: float, least: float) -> float:
        """Return how long to wait for connections yet, at least `least`, in seconds."""
        longest = self._connections.patience
        if self._patience is not None:
            longest = min(self._patience, longest)
        return max(least, self._prepared_at + longest - now)

    def renew(self) -> bool:
        """Replace the connections that a round without a quorum has found dead, or has missed.

        They broke since `prepare`, or had not been made by then. Those that have not answered are
        replaced by spares, if these can be made soon. What was written to them is not lost: if
        their server hangs, it reads all of it in order.

        Returns:
            Whether that, or a late reply, brought a quorum without suspects: the round is worth
            repeating.
        """
        if self._unconnected:
            return False
        now, changes = self._clock.now(), self._changes
        self._look(now)
        is_silent = self._wait_for_spares(now)
        self._reconnect(now, least=self._node_timeout, for_all=True)
        if self._changes != changes:
            self._hear_from_a_quorum()
            if not is_silent:
                # Who has not answered by now is silent, too.
                self._wait_for_spares(self._clock.now())
        elif not is_silent:
            return False
        return len(self._trusted(self._clock.now())) >= self.quorum

    def _wait_for_spares(self, began: float) -> bool:
        """Wait for new connections that a quorum needs beside silent ones; return whether it has.

        Args:
            began: Time since which it waits, seconds on the clock.
        """
        ends_at = began + self._time_left(began, self._node_timeout)
        has_waited = False
        while self._clock.now() < ends_at and self._connections.try_spares(
            began, needs_votes=self._needs_votes
        ):
            has_waited = True
            self._read(_LOOK_FOR_SPARE_S, None)
            self._connections.adopt()
        # One arrives before it is noted that it has ended.
        self._connections.adopt()
        return has_waited

    def _hear_from_a_quorum(self) -> None:
        """Wait until a quorum owes nothing: of connections that break together, one shows it first.

        Those that break meanwhile are replaced. With fewer connected, there is nothing to wait for.
        """
        now = self._clock.now()
        deadline = now + self._node_timeout
        while now < deadline:
            nodes = self._voting(self.everyone(), now) if self._needs_votes else self.everyone()
            if not self._settled(nodes) < self.quorum <= len(nodes):
                return
            dropped = self._connections.dropped
            now = self._read(deadline - now, None)
            self._connections.adopt()
            if self._connections.dropped > dropped:
                self._reconnect(now, least=self._node_timeout, for_all=True)

    def _settled(self, nodes: Sequence[int]) -> int:
        """Return how many of the connected `nodes` owe nothing."""
        connected = filter(None, map(self._connections.by_node.__getitem__, nodes))
        return sum(one.sent == one.received for one in connected)

    def first_timeout(self, timeout: float) -> float:
        """Return how long to wait for a round that is repeated if connections are dead, seconds."""
        lately = self._clock.now() - _IDLE_S
        connections = filter(None, self._connections.by_node)
        if any(one.sent == one.received and one.owed_since <= lately for one in connections):
            return max(self._node_timeout, min(timeout / 4, GIVE_UP_S))
        return timeout

    def connect_all(self) -> None:
        """Wait until every node has been tried."""
        if not self._unconnected:
            self._connections.connect_all()

    def stay_unconnected(self, why: str) -> None:
        """Make no connection: in each round every node has failed, for the reason given."""
        self._unconnected = why

    def is_unused(self, seconds: float) -> bool:
        """Return whether the channel has not been used for so long."""
        return self._clock.now() - max(self._used_at, self._looked_at) >= seconds

    def close(self) -> None:
        """Close every connection, in whatever state an interrupt has left the channel.

        The channel may be used again: it makes new connections.
        """
        self._connections.close()


def why_guarded(votes_in: float) -> str:
    """Return the reason why a node inside its restart guard does not vote."""
    return f"restarted or replaced lately, votes in {votes_in:.1f} s"
