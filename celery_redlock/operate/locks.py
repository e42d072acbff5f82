"""Locks on the nodes, found by SCAN, with the votes of each.

A lock is listed at the first node that has it, and read from all nodes at once. So nothing has to
be kept, however many locks there are.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from typing import NamedTuple, cast
from urllib.parse import unquote

from celery_redlock.messages.reservation import is_pending_slot_key
from celery_redlock.redlock.lease import host_of, is_reservation, task_of
from celery_redlock.redlock.protocol.quorum import majority
from celery_redlock.redlock.protocol.replies import Failed
from celery_redlock.redlock.protocol.scripts import HIGHEST_TOKEN
from celery_redlock.redlock.transport.direct import DirectConnection, ErrorReply

from .node_set import Command, NodeSet

BATCH = 1000
"""Keys that a node examines for one SCAN: a few tenths of a millisecond."""
_CLAIM = "%beat:"
_SPECIAL = re.compile(r"([*?\[\]^\\])")


class Kind(str, Enum):
    """Kind of what is stored under a key."""

    HELD = "held"
    RESERVED = "reserved"
    PENDING = "pending"
    CLAIM = "claim"
    DONE = "done"


class View(NamedTuple):
    """One node's view of a lock.

    Attributes:
        owner: Owner; '': the lock is free there.
        remaining: Time until it expires there, seconds.
        floor: Floor; 0: none.
    """

    owner: str
    remaining: float
    floor: int


@dataclass(slots=True, eq=False)  # not frozen: that triples the time to make one
class Lock:
    """A lock, or a done mark, over all nodes.

    Attributes:
        key: Key of the lock.
        kind: What it is.
        task_id: Id of the task, or label of the holder.
        host: Host of the holder; None for a done mark.
        owner: Owner; for a done mark its label.
        votes: Number of nodes that have it.
        nodes: Number of all nodes.
        remaining: Time until fewer than a quorum have it, unless it is renewed, seconds.
        token: Token of the lease; 0: none.
    """

    key: str
    kind: Kind
    task_id: str | None
    host: str | None
    owner: str = field(repr=False)
    votes: int
    nodes: int
    remaining: float
    token: int = 0

    @property
    def has_majority(self) -> bool:
        """Whether a quorum of the nodes has it."""
        return self.votes >= majority(self.nodes)

    @property
    def task(self) -> str:
        """Name of the task, if the key is a task's."""
        return task_in(self.key)

    @property
    def id(self) -> str:
        """Short digest of the owner: safe to show, while the owner is enough to release a lock."""
        return hashlib.sha256(self.owner.encode("utf-8", "replace")).hexdigest()[:12]

    @property
    def since(self) -> datetime | None:
        """Time at which it was acquired, as its token tells; None without a token."""
        return datetime.fromtimestamp(self.token / 1e6, timezone.utc) if self.token else None

    def age(self, now: float) -> float | None:
        """Return how long it has been held at `now`, both in seconds; None if that is unknown."""
        return max(0.0, now - self.token / 1e6) if self.token else None

    def as_json(self, now: float) -> dict[str, object]:
        """Return the lock as plain JSON values; times are in seconds."""
        age, since = self.age(now), self.since
        return {
            "key": self.key,
            "kind": self.kind.value,
            "task": self.task,
            "task_id": self.task_id,
            "host": self.host,
            "id": self.id,
            "since": since.isoformat() if since else None,
            "age": None if age is None else round(age, 3),
            "remaining": round(self.remaining, 3),
            "token": self.token or None,
            "votes": self.votes,
            "nodes": self.nodes,
        }


def each_lock(
    nodes: NodeSet, prefix: str, match: str = "*", on_scanned: Callable[[int], object] = id
) -> Iterator[Lock]:
    """Yield the locks whose key matches, in no order; one that changes meanwhile may come twice.

    Args:
        nodes: The nodes. One that fails is left out from then on.
        prefix: Start of every key.
        match: Pattern as for SCAN, of keys without prefix and braces.
        on_scanned: Called with the number of Redis keys that were examined since the last call.
    """
    start = f"{prefix}:{{"
    length = len(start.encode())
    batches = _each_batch(nodes, f"{escaped(start)}{match}}}", on_scanned)
    for names, answers in _each_viewed(nodes, batches):
        columns = [_nobodys(names) if isinstance(one, Failed) else one for one in answers]
        all_owners, all_floors, all_pttls = zip(*columns, strict=True)
        for name, owners, floors, pttls in zip(
            names, zip(*all_owners, strict=True), zip(*all_floors, strict=True),
            zip(*all_pttls, strict=True), strict=True,
        ):  # fmt: skip
            lock = _lock_of(name[length:-1].decode(errors="replace"), owners, floors, pttls)
            if lock:
                yield lock


def each_done_mark(
    nodes: NodeSet, prefix: str, match: str = "*", on_scanned: Callable[[int], object] = id
) -> Iterator[Lock]:
    """Yield the done marks of matching keys; the arguments are those of `each_lock`."""
    start, between = f"{prefix}:{{", "}:done:"
    for names in _each_batch(nodes, f"{escaped(start)}{match}{between}*", on_scanned):
        replies = nodes.ask([("PTTL", name) for name in names])
        for at, name in enumerate(names):
            left = [cast(int, one[at]) for one in replies if isinstance(one, list)]
            there = [pttl for pttl in left if pttl > 0]
            key, _, label = name.decode(errors="replace")[len(start) :].partition(between)
            if there:
                yield Lock(
                    key, Kind.DONE, label.partition("/")[0], None, label, len(there), len(nodes),
                    _quorums_remaining(there, len(nodes)),
                )  # fmt: skip


Column = tuple[Sequence[bytes | None], Sequence[bytes | None], Sequence[int]]
"""Owners, floors and remaining times of several lock keys on one node, raw."""


def ask(nodes: NodeSet, names: Sequence[bytes]) -> list[Column | Failed]:
    """Return the raw views of each node, of the lock keys `names`."""
    nodes.send(_viewing(names))
    return _received(nodes, names)


def _each_viewed(
    nodes: NodeSet, batches: Iterator[list[bytes]]
) -> Iterator[tuple[list[bytes], list[Column | Failed]]]:
    """Yield batches with the raw views of each node.

    The nodes look up the next batch while the caller works on this one.
    """
    names = next(batches, None)
    if names:
        nodes.send(_viewing(names))
    while names:
        answers = _received(nodes, names)
        following = next(batches, None)
        if following:
            nodes.send(_viewing(following))
        try:
            yield names, answers
        except GeneratorExit:
            # Nothing may be left of it when the nodes are asked for something else.
            if following:
                _received(nodes, following)
            raise
        names = following


def _viewing(names: Sequence[bytes]) -> list[Command]:
    """Return the commands that read the lock keys `names`."""
    floors = [name + b":floor" for name in names]
    return [("MGET", *names, *floors), *[("PTTL", name) for name in names]]


def _received(nodes: NodeSet, names: Sequence[bytes]) -> list[Column | Failed]:
    found: list[Column | Failed] = []
    for replies in nodes.receive(1 + len(names)):
        failed = replies if isinstance(replies, Failed) else _first_error(replies)
        if failed:
            found.append(failed)
            continue
        values, *pttls = cast("list[list[bytes | None]]", replies)
        found.append((values[: len(names)], values[len(names) :], cast("list[int]", pttls)))
    return found


def look(nodes: NodeSet, prefix: str, key: str) -> list[View | Failed]:
    """Return the view of each node of one lock."""
    found: list[View | Failed] = []
    for column in ask(nodes, [f"{prefix}:{{{key}}}".encode()]):
        if isinstance(column, Failed):
            found.append(column)
        else:
            [owner], [floor], [pttl] = column
            shown = owner.decode(errors="replace") if owner else ""
            found.append(View(shown, max(0, pttl) / 1000, _token(floor)))
    return found


def lock_of(key: str, views: Sequence[View | Failed]) -> Lock | None:
    """Return the lock under a key by the nodes' views of it; None: it is free on all of them.

    Of several owners the one with the most nodes counts.
    """
    seen = [one if isinstance(one, View) else View("", 0, 0) for one in views]
    return _lock_of(
        key,
        [view.owner.encode() or None for view in seen],
        [str(view.floor).encode() for view in seen],
        [round(view.remaining * 1000) for view in seen],
    )


def _lock_of(
    key: str,
    owners: Sequence[bytes | None],
    floors: Sequence[bytes | None],
    pttls: Sequence[int],
) -> Lock | None:
    raw = owners[0]
    votes = len(owners)
    if raw is None or owners.count(raw) < votes:
        held = [one for one in owners if one is not None]
        if not held:
            return None
        raw = max(held, key=held.count)
        votes = held.count(raw)
        floors = [floor for floor, one in zip(floors, owners, strict=True) if one == raw]
        pttls = [pttl for pttl, one in zip(pttls, owners, strict=True) if one == raw]
    owner = raw.decode(errors="replace")
    token = 0 if is_reservation(owner) else max(map(_token, {*floors}))
    return Lock(
        key, _kind(key, owner), task_of(owner), host_of(owner), owner, votes, len(owners),
        _quorums_remaining(pttls, len(owners)), token,
    )  # fmt: skip


def task_in(key: str) -> str:
    """Return the name of the task in a key: what is before its first colon."""
    return unquote(key.removeprefix(_CLAIM).partition(":")[0])


def escaped(text: str) -> str:
    """Return a pattern that matches just `text`."""
    return _SPECIAL.sub(r"\\\1", text)


def _kind(key: str, owner: str) -> Kind:
    if key.startswith(_CLAIM):
        return Kind.CLAIM
    if is_pending_slot_key(key):
        return Kind.PENDING
    return Kind.RESERVED if is_reservation(owner) else Kind.HELD


def _token(floor: bytes | None) -> int:
    """Return the token in a floor; 0 without a valid one."""
    token = int(floor) if floor and floor.isdigit() else 0
    return token if token <= HIGHEST_TOKEN else 0


def _quorums_remaining(pttls: Iterable[int], nodes: int) -> float:
    """Return how long a quorum has a lock, in s; without a quorum, how long any node has it."""
    longest_first = sorted(pttls, reverse=True)
    quorum = majority(nodes)
    left = longest_first[quorum - 1] if len(longest_first) >= quorum else longest_first[0]
    return max(0, left) / 1000


def _first_error(replies: Sequence[object]) -> Failed | None:
    if ErrorReply not in map(type, replies):
        return None
    return Failed(next(str(reply) for reply in replies if isinstance(reply, ErrorReply)))


def _nobodys(names: Sequence[bytes]) -> Column:
    """Return the column of a node that did not answer."""
    nobody = [None] * len(names)
    return nobody, nobody, [0] * len(names)


def _each_batch(
    nodes: NodeSet, pattern: str, on_scanned: Callable[[int], object]
) -> Iterator[list[bytes]]:
    """Yield the names of keys that match, each at the first node that has it."""
    for at, connection in enumerate(nodes.connections):
        for names in _scan(connection, pattern, on_scanned):
            left = names
            for earlier in nodes.connections[:at]:
                left = left and _not_on(earlier, left)
            if left:
                yield left


def _not_on(earlier: DirectConnection, names: list[bytes]) -> list[bytes]:
    """Return the keys that a node does not have, or can't be asked for."""
    counted = earlier.ask([("EXISTS", *names)])
    if isinstance(counted, list) and counted[0] == len(names):
        return []
    values = earlier.ask([("MGET", *names)])
    if isinstance(values, Failed) or not isinstance(values[0], list):
        return names
    return [name for name, value in zip(names, values[0], strict=True) if value is None]


def _scan(
    connection: DirectConnection, pattern: str, on_scanned: Callable[[int], object]
) -> Iterator[list[bytes]]:
    cursor: bytes | str = "0"
    while cursor != b"0":
        replies = connection.ask([("SCAN", cursor, "MATCH", pattern, "COUNT", BATCH)])
        if isinstance(replies, Failed):
            return
        if isinstance(replies[0], ErrorReply):
            connection.fail(str(replies[0]))
            return
        cursor, names = cast("tuple[bytes, list[bytes]]", replies[0])
        on_scanned(BATCH)
        # SCAN may return a key twice.
        yield list(dict.fromkeys(names))
