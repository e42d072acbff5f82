"""Listing of all locks, found by SCAN on all nodes at once.

No command keeps a node for long, whatever the number of locks: each examines at most `BATCH` keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import compress
from typing import Any, TypeVar

from celery_redlock.redlock.protocol.replies import Failed
from celery_redlock.redlock.transport.direct import DirectConnection, ErrorReply

from .locks import Kind, Lock, escaped, lock_in, quorums_remaining
from .node_set import Command, NodeSet, Replies, refusal_in
from .views import Column, column_in, reads_in_part, viewing

BATCH = 500
"""Most keys that a node examines for one command: some tenths of a millisecond."""
_REMEMBERED = 200_000
"""Keys that are remembered, in some 25 MB; of a further one the nodes are asked who has it."""

_ENOUGH = 100 * BATCH
"""Names that may wait for being viewed; with more the scan waits."""

T = TypeVar("T")
OnScanned = Callable[[int], object]


def each_lock(
    nodes: NodeSet,
    prefix: str,
    match: str = "*",
    on_scanned: OnScanned = id,
) -> Iterator[Lock]:
    """Yield the locks whose key matches, in no order.

    Of more than `_REMEMBERED`, one that changes meanwhile may come twice.

    Args:
        nodes: The nodes. One that fails or refuses is left out from then on.
        prefix: Start of every key.
        match: Pattern as for SCAN, of keys without prefix and braces.
        on_scanned: Called with the number of Redis keys that were examined since the last call.
    """
    start = f"{prefix}:{{"
    length, count = len(start.encode()), len(nodes)
    scan = _Scan(nodes, f"{escaped(start)}{match}}}", on_scanned)
    for names, columns in scan.each_viewed():
        views = map(_turned, _turned(columns))
        for name, owners, floors, pttls in _turned((names, *views)):
            lock = lock_in(name[length:-1].decode(errors="replace"), owners, floors, pttls, count)
            if lock:
                yield lock


def each_done_mark(
    nodes: NodeSet, prefix: str, match: str, on_scanned: OnScanned = id
) -> Iterator[Lock]:
    """Yield the done marks of matching keys; the arguments are those of `each_lock`."""
    start, between = f"{prefix}:{{", "}:done:"
    pattern = f"{escaped(start)}{match}{between}*"
    for names in iter(_Scan(nodes, pattern, on_scanned).next_names, []):
        replies: list[Any] = _heard(
            nodes, map(_accepted, nodes.ask([("PTTL", name) for name in names]))
        )
        for at, name in enumerate(names):
            there = [one[at] for one in replies if one[at] > 0]
            key, _, label = name.decode(errors="replace")[len(start) :].partition(between)
            if there:
                remaining = quorums_remaining(there, len(nodes))
                yield Lock(key, Kind.DONE, label, len(there), len(nodes), remaining)


def each_of(
    nodes: NodeSet,
    prefix: str,
    kinds: Collection[str],
    match: str = "*",
    on_scanned: OnScanned = id,
) -> Iterator[Lock]:
    """Yield the locks and done marks of these kinds; other arguments are those of `each_lock`."""
    if {*kinds} != {Kind.DONE.value}:
        locks = each_lock(nodes, prefix, match, on_scanned)
        yield from (lock for lock in locks if lock.kind.value in kinds)
    if Kind.DONE.value in kinds:
        yield from each_done_mark(nodes, prefix, match, on_scanned)


class _Scan:
    """SCAN of all nodes at once for the names that match, each of which is found once."""

    def __init__(self, nodes: NodeSet, pattern: str, on_scanned: OnScanned) -> None:
        self._nodes = nodes
        self._pattern = pattern
        self._on_scanned = on_scanned
        self._cursors: list[bytes | None] = [b"0"] * len(nodes)  # None: to its end
        self._seen: set[bytes] = set()
        self._found: list[bytes] = []
        self._in_part = reads_in_part(nodes, pattern.encode())

    def each_viewed(self) -> Iterator[tuple[list[bytes], list[Column]]]:
        """Yield the names with the views of each node that answers.

        The nodes work on the next ones, and on the next SCAN, while the caller works on these.
        """
        names = self.next_names()
        ready: tuple[list[bytes], list[Column]] | None = None
        while names:
            commands = viewing(names, in_part=self._in_part)
            scanned = self._send(commands)
            try:
                if ready:
                    yield ready
            finally:
                # Nothing may be left of it when the nodes are asked for something else.
                replies = self._receive(len(commands), scanned)
            columns = _heard(self._nodes, map(column_in, replies))
            ready = (names, columns) if columns else None
            names = self.next_names()
        if ready:
            yield ready

    def next_names(self) -> list[bytes]:
        """Return up to `BATCH` names, after a SCAN if there are none; [] at the end."""
        while not self._found and any(cursor is not None for cursor in self._cursors):
            self._receive(0, self._send([]))
        names = self._found[-BATCH:]
        del self._found[-BATCH:]
        return names

    def _send(self, commands: list[Command]) -> list[bool]:
        """Send commands to all nodes, and the next SCAN; return which nodes scan."""
        self._nodes.send(commands)
        is_enough = len(self._found) > _ENOUGH
        scanning = [cursor is not None and not is_enough for cursor in self._cursors]
        for at, cursor in enumerate(self._cursors):
            if cursor is not None and scanning[at]:
                self._nodes.send_to(at, [("SCAN", cursor, "MATCH", self._pattern, "COUNT", BATCH)])
        return scanning

    def _receive(self, count: int, scanning: list[bool]) -> list[Replies]:
        """Return the replies to `count` commands of each node, and note the names that came."""
        views: list[Replies] = []
        for at, connection in enumerate(self._nodes.connections):
            replies = connection.receive(count + scanning[at])
            if scanning[at]:
                self._note(at, replies)
            views.append(replies if isinstance(replies, Failed) else replies[:count])
        return views

    def _note(self, at: int, replies: Replies) -> None:
        """Note the names that a SCAN, the last of the replies of a node, returned."""
        self._cursors[at] = None
        if isinstance(replies, Failed):
            return
        reply: Any = replies[-1]
        if isinstance(reply, ErrorReply):
            self._nodes.connections[at].fail(str(reply))
            return
        cursor, names = reply
        self._on_scanned(BATCH)
        if cursor != b"0":
            self._cursors[at] = cursor
        # SCAN may return a key twice.
        new = [name for name in dict.fromkeys(names) if name not in self._seen]
        room = _REMEMBERED - len(self._seen)
        self._seen.update(new[:room])
        # Those that can't be remembered are found at the first node that has them.
        left = new[room:]
        for earlier in self._nodes.connections[:at]:
            left = left and _not_on(earlier, left)
        self._found += new[:room] + left


def _turned(rows: Iterable[Iterable[Any]]) -> Iterator[tuple[Any, ...]]:
    """Yield the columns of a table."""
    return zip(*rows, strict=True)


def _heard(nodes: NodeSet, answers: Iterable[T | Failed]) -> list[T]:
    """Return the answers of the nodes; one that fails or refuses is left out from then on."""
    heard = []
    for at, answer in enumerate(answers):
        if isinstance(answer, Failed):
            nodes.connections[at].fail(answer.error)
        else:
            heard.append(answer)
    return heard


def _accepted(replies: Replies) -> Replies:
    """Return the replies of a node, or its first error."""
    why = refusal_in(replies)
    return replies if why is None else Failed(why)


def _not_on(earlier: DirectConnection, names: list[bytes]) -> list[bytes]:
    """Return the keys that a node does not have, or can't be asked for."""
    counted = earlier.ask([("EXISTS", *names)])
    if counted == [len(names)]:
        return []
    # Their values are not asked for: one may be too long for a reply.
    each = earlier.ask([("EXISTS", name) for name in names])
    if isinstance(each, Failed):
        return names
    return list(compress(names, (there != 1 for there in each)))
