"""Locks as the nodes' views of them add up: who holds which, with how many votes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from itertools import compress
from typing import NamedTuple
from urllib.parse import unquote

from celery_redlock.beat.ticks import CLAIM_S, MISSED
from celery_redlock.messages.reservation import is_pending_slot_key
from celery_redlock.redlock.lease import (
    host_of,
    is_period,
    is_reservation,
    owner_id,
    reserved_since,
    task_of,
)
from celery_redlock.redlock.protocol.quorum import majority
from celery_redlock.redlock.protocol.replies import Busy, Failed
from celery_redlock.redlock.protocol.scripts import HIGHEST_TOKEN
from celery_redlock.units import seconds

LONGEST_OWNER = 1024
"""Bytes of the longest owner, and offset of the last byte that is read of a value."""
_SHOWN = 100
_NO_EXPIRY = -1
"""Reply to PTTL of a key that has none."""
_CLAIM = "%beat:"
_SPECIAL = re.compile(r"([*?\[\]^\\])")


class Kind(str, Enum):
    """Kind of what is stored under a key."""

    HELD = "held"
    RESERVED = "reserved"
    PENDING = "pending"
    CLAIM = "claim"
    """Of a replica of beat that is about to publish a tick, or died."""
    PUBLISHED = "published"
    """The same, kept as the mark that the tick was published."""
    MISSED = "missed"
    DONE = "done"


class Execution(NamedTuple):
    """Execution of a task, as its worker tells.

    Attributes:
        worker: Name of the worker.
        pid: Id of the process that runs it; None: not told.
        arguments: Arguments as their publisher lets them be shown, shortened; None: not to be
            shown.
    """

    worker: str
    pid: int | None
    arguments: str | None

    def __str__(self) -> str:
        return self.worker if self.pid is None else f"{self.worker} (pid {self.pid})"


class LockRow(NamedTuple):
    """A lock as text, for tables."""

    kind: str
    held: str
    expires_in: str
    votes: str
    holder: str
    worker: str
    key: str
    arguments: str


@dataclass(slots=True, eq=False)  # not frozen: that triples the time to make one
class Lock:
    """A lock, or a done mark, over all nodes.

    Attributes:
        key: Key of the lock.
        kind: What it is.
        owner: Owner; for a done mark its label.
        votes: Number of nodes that have it.
        nodes: Number of all nodes.
        remaining: Time until fewer than a quorum have it, unless it is renewed, seconds; infinite
            if their keys have no expiry, as another program may have set them.
        token: Token of the lease; 0: none.
        execution: Execution that holds it, if a worker has told; see `running.Running`.
    """

    key: str
    kind: Kind
    owner: str = field(repr=False)
    votes: int
    nodes: int
    remaining: float
    token: int = 0
    execution: Execution | None = None

    @property
    def is_run(self) -> bool:
        """Whether something runs under it: not a message that waits, or a throttle's period."""
        return self.kind is Kind.HELD and not is_period(self.owner)

    @property
    def task_id(self) -> str | None:
        """Id of the task, or label of the holder."""
        return self.owner.partition("/")[0] if self.kind is Kind.DONE else task_of(self.owner)

    @property
    def host(self) -> str | None:
        """Host of the holder; None for a done mark."""
        return None if self.kind is Kind.DONE else host_of(self.owner)

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
        return owner_id(self.owner)

    @property
    def began(self) -> float | None:
        """Time at which it was acquired, as its token or, for a reservation, its owner tells.

        Seconds since the epoch. None: neither tells.
        """
        return self.token / 1e6 if self.token else reserved_since(self.owner)

    def age(self, now: float) -> float | None:
        """Return how long it has been held at `now`, both in seconds; None if that is unknown."""
        return None if self.began is None else max(0.0, now - self.began)

    def holder(self, unknown: str = "-") -> str:
        """Return the holder, ``<task id>@<host>``, as far as the owner names it."""
        task_id = self.task_id or unknown
        return f"{task_id}@{self.host}" if self.host else task_id

    @property
    def expires_in(self) -> str:
        """Time until fewer than a quorum have it as text; 'never' without an expiry."""
        return time_left(self.remaining)

    def row(self, now: float) -> LockRow:
        """Return the lock as text."""
        run = self.execution
        return LockRow(
            self.kind.value, seconds(self.age(now)), self.expires_in,
            f"{self.votes}/{self.nodes}", self.holder(), str(run) if run else "-", self.key,
            (run and run.arguments) or "-",
        )  # fmt: skip

    def as_json(self, now: float) -> dict[str, object]:
        """Return the lock as plain JSON values; times are in seconds."""
        age, run = self.age(now), self.execution
        since = None if self.began is None else datetime.fromtimestamp(self.began, timezone.utc)
        return {
            "key": self.key,
            "kind": self.kind.value,
            "task": self.task,
            "task_id": self.task_id,
            "host": self.host,
            "worker": run and run.worker,
            "pid": run and run.pid,
            "arguments": run and run.arguments,
            "id": self.id,
            "since": since.isoformat() if since else None,
            "age": None if age is None else round(age, 3),
            "remaining": None if math.isinf(self.remaining) else self.remaining,
            "token": self.token or None,
            "votes": self.votes,
            "nodes": self.nodes,
        }


def by_age(lock: Lock) -> tuple[bool, float]:
    """Return a key for sorting: leases before reservations, the longest held first of each."""
    return not lock.token, math.inf if lock.began is None else lock.began


def lock_of(key: str, views: Sequence[Busy | Failed]) -> Lock | None:
    """Return the lock under a key by the nodes' views of it; None: it is free on all of them.

    Of several owners the one with the most nodes counts. A view has '' as holder if it is free.
    """
    seen = [view for view in views if isinstance(view, Busy)]
    return lock_in(
        key,
        [view.holder.encode() or None for view in seen],
        [str(view.floor).encode() for view in seen],
        [view.remaining_ms for view in seen],
        len(views),
    )


def lock_in(
    key: str,
    owners: Sequence[bytes | None],
    floors: Sequence[bytes | None],
    pttls: Sequence[int],
    nodes: int,
) -> Lock | None:
    """Return the lock under a key as `lock_of` does, from what the nodes that answered replied.

    Args:
        key: Key of the lock.
        owners: Reply to GET of the lock key, by node.
        floors: Reply to GET of its floor, by node.
        pttls: Reply to PTTL of the lock key, by node.
        nodes: Number of all nodes.
    """
    raw = owners[0] if owners else None
    votes = len(owners)
    if raw is None or owners.count(raw) < votes:
        held = [one for one in owners if one is not None]
        if not held:
            return None
        raw = max(held, key=held.count)
        votes = held.count(raw)
        is_its = [one == raw for one in owners]
        floors, pttls = list(compress(floors, is_its)), list(compress(pttls, is_its))
    owner = owner_in(raw)
    is_reserved = is_reservation(owner)
    if is_reserved:
        token = 0
    elif floors.count(floors[0]) == votes:  # as it mostly is
        token = token_in(floors[0])
    else:
        token = max(map(token_in, floors))
    remaining = quorums_remaining(pttls, nodes)
    kind = _kind(key, remaining, is_reserved=is_reserved)
    return Lock(key, kind, owner, votes, nodes, remaining, token)


def owner_in(raw: bytes) -> str:
    """Return the owner in a value; what is too long for one is shown as such, in part."""
    owner = raw.decode(errors="replace")
    if len(raw) <= LONGEST_OWNER:
        return owner
    return f"{owner[:_SHOWN]}… (more than {LONGEST_OWNER} bytes: no owner)"


def task_in(key: str) -> str:
    """Return the name of the task in a key: what is before its first colon."""
    name = key.removeprefix(_CLAIM).partition(":")[0]
    return unquote(name) if "%" in name else name


def escaped(text: str) -> str:
    """Return a pattern that matches just `text`."""
    return _SPECIAL.sub(r"\\\1", text)


def token_in(floor: bytes | None) -> int:
    """Return the token in a floor; 0 without a valid one."""
    token = int(floor) if floor and floor.isdigit() else 0
    return token if token <= HIGHEST_TOKEN else 0


def time_left(remaining: float) -> str:
    """Return the time until a key expires, in seconds, as text; 'never' if it is infinite."""
    return "never" if math.isinf(remaining) else seconds(remaining)


def quorums_remaining(pttls: Sequence[int], nodes: int) -> float:
    """Return how long a quorum has a lock, in s; without a quorum, how long any node has it.

    Infinite, if the keys have no expiry.
    """
    longest_first = sorted(map(seconds_left, pttls), reverse=True)
    quorum = majority(nodes)
    return longest_first[quorum - 1] if len(longest_first) >= quorum else longest_first[0]


def seconds_left(pttl: int) -> float:
    """Return the seconds that a reply to PTTL tells; infinite, if the key has no expiry."""
    return math.inf if pttl == _NO_EXPIRY else max(0, pttl) / 1000


def _kind(key: str, remaining: float, *, is_reserved: bool) -> Kind:
    if key.startswith(_CLAIM):
        if key.endswith(MISSED):
            return Kind.MISSED
        return Kind.PUBLISHED if CLAIM_S < remaining < math.inf else Kind.CLAIM
    if is_pending_slot_key(key):
        return Kind.PENDING
    return Kind.RESERVED if is_reserved else Kind.HELD
