"""What a client may rely on while a majority of the nodes is well and soon answers.

Each promise is judged only where it is certain. A node is well for a client in some time if no
fault has struck it, or the way to it, in that time or so shortly before that connections may still
suffer from it. Cut and merged bytes are no fault, nor is the end of connections while they idle.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from celery_redlock.redlock.errors import QuorumUnavailable, RedlockError
from celery_redlock.redlock.events import Event, Lost, NodeDown
from celery_redlock.redlock.keeper import Keeper
from celery_redlock.redlock.keeper_thread import LOOK_S
from celery_redlock.redlock.lease import Lease, task_of
from celery_redlock.redlock.protocol.quorum import majority
from celery_redlock.redlock.unsettled import ReleaseRequest

from .link import Link
from .process import Process
from .schedule import (
    ALL_NODES,
    BLACK_HOLE,
    CLOSINGS,
    LOSE_CONFIRM,
    NODE_TIMEOUT_S,
    ON_IDLE,
    ON_LINKS,
    ON_STREAMS,
    SLOW_CONNECT,
    Fault,
    Schedule,
)
from .servers import Server, short

_QUICK_S = 0.012
"""In one direction. So a node answers in far less than the node timeout."""
_SWIFT_S = 0.005
"""In one direction. So a connection is made within the node timeout."""
_AFTERMATH_S = 12.0
"""A connection may be silent for 5 s before it is replaced, and the next one be 5 s away."""
_SHORTEST_TTL_S = 0.2
_UNDISTURBED_S = 0.1
_NOTICED_S = 0.005
"""Time after which a client has received that a connection was reset."""
_TWO_ADDRESSES_S = 2.5
"""Time to try two addresses of a name, of which the first does not answer."""
_VIOLATIONS = ("more replies than", "no Redis reply")
_LONGEST_REASON = 500
_UNREAD = "Broken pipe"
"""Only a node that hangs up makes it, and what that said has arrived by then."""
_SENT_AGAIN_S = 1.0
"""After which the kernel sends a lost SYN again."""
_WINDOW_S = 1.0
"""In which attempts to connect are counted."""
_OF_OTHERS = ("its grant came", "granted, and", "it had lost", "all ")
"""Reasons that nodes are given which did answer, or which were not asked."""
_WHILE_IDLE = (*ON_IDLE, BLACK_HOLE, SLOW_CONNECT, "reset", "half_open")
"""Faults that an acquisition gets over if they strike before it begins."""
_DOWN = ("restart", "forget", "power_loss")
"""Faults that end all connections to a node at once."""
_SILENT = (*ON_LINKS, BLACK_HOLE, "hang", "power_loss")
"""Faults beside which a client may wait for a node to connect."""
_ENDS_CONNECTIONS = ("reset", "closing")
"""Faults that end connections, and of which the client hears."""
_LONGEST_PAUSE_S = 0.5
"""Longest time after a failed attempt to connect in which there is no other: the first has none."""
_MADE_AGAIN, _REPEATED = 1, 3
"""How often an attempt to acquire, and any other request, is repeated on new connections."""
_TOLD_WITHIN_S = 0.5
"""Time after a deadline in which the holder is told: that of an extension without a quorum."""
_HEALS_S = 0.1
"""Time after which no grant or extension is on its way any more."""
_MARGIN_S = 0.01


class Promises:
    """What one client was promised.

    Args:
        schedule: What strikes when.
        number: Number of the client.
        process: The client.
        servers: The nodes.
        links: Its ways to them.
        fail: Called with the kind and the text of a violation.
    """

    def __init__(
        self, schedule: Schedule, number: int, process: Process, servers: list[Server],
        links: list[Link], fail: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        self._process = process
        self._world = process.world
        self._servers = servers
        self._links_of = dict(zip(servers, links, strict=True))
        self._fail = fail
        self._quorum = majority(len(servers))
        self._left: set[str] = set()
        self._delayed: set[str] = set()
        self._is_quick = schedule.longest_s <= _QUICK_S
        self._is_swift = schedule.longest_s <= _SWIFT_S
        # Each channel connects, and the keeper's, and that of the waiters.
        self._most_attempts = 4 * (2 + schedule.clients[number].threads)
        self._faults = [
            [one for one in schedule.faults if _concerns(one, node, number)]
            for node in range(len(servers))
        ]
        # A connection that is closed sooner may be closed while an attempt waits for a node to
        # connect: for all, and if one does not, once more for those that have ended meanwhile.
        waits = 1 + any(one.kind in _SILENT for faults in self._faults for one in faults)
        self._least_idle_s = waits * NODE_TIMEOUT_S + _MARGIN_S

    # ---- what is heard of

    def note_event(self, event: Event) -> None:
        """Judge an event of the lock."""
        if isinstance(event, Lost):
            self._judge_loss(event.lease)
            self._judge_lateness(event.lease)
        elif isinstance(event, NodeDown):
            self._judge_blame(event.node, event.error)
            self._judge_down(event)

    def note_refused(self, began: float, wait: float, error: RedlockError) -> None:
        """Judge that an attempt to acquire, which began then and may have waited, failed."""
        if not isinstance(error, QuorumUnavailable):
            return
        for node, why in error.errors.items():
            self._judge_blame(node, why)
        if not self._is_quick or self._process.last_struck >= began:
            return
        failed = {
            node.partition(":")[0]
            for node, why in error.errors.items()
            if not why.startswith(_OF_OTHERS)
        }
        outlasts = _MADE_AGAIN - self._awaits_late_link(began)
        well = self._well(began, began - _UNDISTURBED_S, outlasts)
        if 0 < wait < _TWO_ADDRESSES_S:
            well = [server for server in well if not _is_late(self._links_of[server])]
        answered = [server.name for server in well if server.name not in failed]
        if len(well) >= self._quorum > len(answered):
            names = [server.name for server in well]
            self._fail(
                "refused", f"{self._process.name} is refused, though {names} are well: {error}"
            )

    def note_not_extended(self, began: float, lease: Lease, error: RedlockError) -> None:
        """Judge that an extension by hand, which began then, failed before the deadline."""
        if isinstance(error, QuorumUnavailable):
            for node, why in error.errors.items():
                self._judge_blame(node, why)
        deadline = self._process.true_time(lease.deadline)
        if deadline > self._world.time:
            idle_until = began - _NOTICED_S
            self._judge_holders("extension", lease, began, began, str(error), idle_until)

    def note_not_released(self, began: float, lease: Lease, error: QuorumUnavailable) -> None:
        """Judge that a release, which began then, was not confirmed."""
        for node, why in error.errors.items():
            self._judge_blame(node, why)
        if not self._is_quick or self._process.last_struck >= began:
            return
        well = self._well(began, began - _NOTICED_S, _REPEATED)
        if len(well) >= self._quorum:
            names = [server.name for server in well]
            self._fail(
                "unreleased",
                f"{self._process.name} does not release {lease.key[:9]!r} of "
                f"{short(lease.owner)}, though {names} are well: {error}",
            )

    def note_left(self, lease: Lease) -> None:
        """Note that the client does not release a lease."""
        self._left.add(lease.owner)

    def note_acquired(self, lease: Lease) -> None:
        """Note a lease whose key may stay after its release, for the lock delay."""
        if lease.lock_delay_ms:
            self._delayed.add(lease.owner)

    def judge_exit(self, began: float) -> None:
        """Judge what the client leaves locked: it has ended now, and has begun to do so then."""
        if self._is_swift and self._process.last_struck <= began:
            # What it has written arrives yet.
            self._world.at(self._world.time + _HEALS_S, self._judge_left, began)

    def _judge_left(self, began: float) -> None:
        process = self._process
        having = Counter(
            owner
            # The exit does not wait for as long as dead connections may take.
            for server in self._well(began, 0.0, _REPEATED)
            for owner in {*server.owners()} - self._left - self._delayed
            if task_of(owner) == process.name
        )
        for owner, count in having.items():
            if count >= self._quorum:
                self._fail("left", f"{process.name} has ended, and {short(owner)} stays")

    def judge_keeper(self, keeper: Keeper) -> None:
        """Judge the releases that a keeper makes, from now on."""
        releases = keeper._releases
        make = releases._make

        def make_judged(requests: Sequence[ReleaseRequest], patience: float) -> Sequence[bool]:
            began = self._world.time
            confirmed = make(requests, patience)
            for request, is_confirmed in zip(requests, confirmed, strict=True):
                if is_confirmed and not request.keep_ms(self._process.now()):
                    self._judge_freed(request, began)
            return confirmed

        releases._make = make_judged

    # ---- what is promised

    def _judge_loss(self, lease: Lease) -> None:
        ttl_s = lease.ttl_ms / 1000
        if ttl_s >= _SHORTEST_TTL_S:
            now = self._world.time
            self._judge_holders("loss", lease, now - ttl_s, now - ttl_s / 2, "it is lost")

    def _judge_lateness(self, lease: Lease) -> None:
        """Judge when the holder of a lease that the keeper renews is told that it is lost."""
        acquired_at = self._process.true_time(lease.acquired_at)
        due_at = max(self._process.true_time(lease.deadline), acquired_at + LOOK_S)
        late_s = self._world.time - due_at
        # Who is releasing it by then is told when that has an outcome.
        is_held = lease.backing.lock and not lease.backing.releases
        if is_held and late_s > _TOLD_WITHIN_S and self._process.last_struck < due_at:
            self._fail(
                "late", f"{self._process.name} is told {late_s:.3f} s late that it has lost "
                f"{lease.key[:9]!r}",
            )  # fmt: skip

    def _judge_holders(
        self, kind: str, lease: Lease, since: float, held_by: float, why: str,
        idle_until: float = 0.0,
    ) -> None:  # fmt: skip
        """Fail if a majority that was well since then had the lease at a time, and still has."""
        acquired_at = self._process.true_time(lease.acquired_at)
        if not self._is_quick or self._process.last_struck >= acquired_at:
            return
        holding = [
            server.name
            for server in self._well(since, idle_until, _REPEATED)
            if server.held_since(lease.key, lease.owner, lease.token) <= held_by
        ]
        if len(holding) >= self._quorum:
            self._fail(kind, f"{holding} hold {lease.key[:9]!r} of {short(lease.owner)}: {why}")

    def _judge_freed(self, request: ReleaseRequest, began: float) -> None:
        """Fail if a node that is well has a key that the keeper has released everywhere."""
        if not self._is_swift or self._process.last_struck >= began - _HEALS_S:
            return
        held = [
            server.name
            for server in self._well(began, began - _NOTICED_S, _REPEATED)
            if server.set_at(request.key, request.owner) <= began - _HEALS_S
            and not _is_late(self._links_of[server])
            and not _is_broken(self._links_of[server])
        ]
        if held:
            self._fail(
                "kept", f"{held} keep {request.key[:9]!r} of {short(request.owner)}, "
                f"though the keeper of {self._process.name} has released it",
            )  # fmt: skip

    def _judge_blame(self, node: str, why: str) -> None:
        if any(words in why for words in _VIOLATIONS):
            self._fail("blame", f"{self._process.name} blames {node}, which did nothing: {why}")
        if len(why) > _LONGEST_REASON or why == _UNREAD:
            self._fail(
                "reason", f"{self._process.name} does not say in short why {node} fails: {why[:99]}"
            )

    def _judge_down(self, event: NodeDown) -> None:
        """Fail if a node is called down of which at most connections have ended, not attempts."""
        now = self._world.time
        if not self._is_quick or self._process.last_struck >= now - _AFTERMATH_S:
            return
        for (server, link), faults in zip(self._links_of.items(), self._faults, strict=True):
            harmful = [
                fault
                for fault in faults
                if fault.kind not in _ENDS_CONNECTIONS or _strikes_attempt(fault, link)
            ]
            is_well = not any(self._harms(one, link, now - _AFTERMATH_S) for one in harmful)
            if event.node.partition(":")[0] == server.name and is_well:
                self._fail(
                    "down", f"{self._process.name} calls {event.node} down, which is well: {event}"
                )

    def judge_attempts(self) -> None:
        """Judge how often the client has tried to connect to each node."""
        for (server, link), faults in zip(self._links_of.items(), self._faults, strict=True):
            if any(fault.kind in ON_STREAMS + ON_LINKS + CLOSINGS for fault in faults):
                continue  # a connection that has ended is replaced
            # Each end of all connections is followed by new ones, at once.
            ends = sum(fault.kind in _DOWN for fault in faults)
            attempts, most = link.attempts, self._most_attempts * max(1, ends)
            for first, last in zip(attempts, attempts[most:], strict=False):
                if last - first < _WINDOW_S:
                    self._fail(
                        "attempts",
                        f"{self._process.name} connects to {server.name} {most + 1} times within "
                        f"{last - first:.3f} s",
                    )
                    return

    def _awaits_late_link(self, began: float) -> bool:
        """Return whether an attempt to acquire has waited for a connection that took long.

        Then it may have been made again for that, before a connection was closed in use.
        """
        links = self._links_of.values()
        first = min((at for link in links for at in link.closed_at if at >= began), default=began)
        return any(
            began - link.connects_in <= at < first
            for link in links
            if link.connects_in
            for at in link.attempts
        )

    def _well(self, since: float, idle_until: float, outlasts: int) -> list[Server]:
        """Return the nodes that were well from then on.

        Args:
            since: Time, seconds.
            idle_until: Faults that end idle connections count only if they began after this time,
                seconds; 0.0: they count.
            outlasts: How often connections may have been closed in use since then.
        """
        links = self._links_of.values()
        closed_at = {at for link in links for at in link.closed_at if at >= since - _NOTICED_S}
        if len(closed_at) > outlasts:
            return []  # whichever nodes they led to
        return [
            server
            for (server, link), faults in zip(self._links_of.items(), self._faults, strict=True)
            if not any(
                self._harms(fault, link, since, idle_until)
                for fault in faults
                if fault.kind not in CLOSINGS
            )
            and not self._is_paused(link, faults)
        ]

    def _is_paused(self, link: Link, faults: Iterable[Fault]) -> bool:
        """Return whether the client may not try to connect again yet, as it has failed twice."""
        broken = [
            fault
            for fault in faults
            if fault.kind == "reset"
            and 0 <= self._world.time - 1000.0 - fault.at <= _LONGEST_PAUSE_S
            and _strikes_attempt(fault, link)
        ]
        return len(broken) > 1

    def _harms(self, fault: Fault, link: Link, since: float, idle_until: float = 0.0) -> bool:
        if fault.kind in CLOSINGS:
            return any(at >= since - _NOTICED_S for at in link.closed_at)
        begins_at = 1000.0 + fault.at
        if fault.kind in _WHILE_IDLE and begins_at < idle_until:
            is_early = fault.kind in ON_IDLE and fault.size < self._least_idle_s
            # The client waits for its end, and makes no other connection before.
            strikes_attempt = fault.kind != "reset" and _strikes_attempt(fault, link)
            # What a black hole has swallowed, the kernel sends again a second later.
            is_awaited = fault.kind == BLACK_HOLE and any(
                0 <= one - begins_at <= fault.lasts and self._world.time - one <= _SENT_AGAIN_S
                for one in link.attempts
            )
            if not (is_early or strikes_attempt or is_awaited):
                return False
        return begins_at <= self._world.time and begins_at + fault.lasts + _AFTERMATH_S > since


def _is_late(link: Link) -> bool:
    """Return whether it takes long to connect through a link."""
    return bool(link.dead_addresses or link.connects_in)


def _is_broken(link: Link) -> bool:
    """Return whether a proxy has closed the connection of the last attempt as it was made."""
    last = max(link.attempts, default=-math.inf)
    return any(0 <= at - last <= NODE_TIMEOUT_S for at in link.closed_at)


def _strikes_attempt(fault: Fault, link: Link) -> bool:
    """Return whether a fault begins while the client may be connecting."""
    return any(0 <= 1000.0 + fault.at - one <= NODE_TIMEOUT_S for one in link.attempts)


def _concerns(fault: Fault, node: int, client: int) -> bool:
    is_of_link = fault.kind in (*ON_LINKS, *ON_STREAMS, *CLOSINGS, LOSE_CONFIRM)
    return fault.node in (node, ALL_NODES) and (not is_of_link or fault.client in (-1, client))


def judge_all(promises: Iterable[Promises]) -> None:
    """Judge what can only be judged in the end."""
    for one in promises:
        one.judge_attempts()
