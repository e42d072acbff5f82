"""A lease: one lock, held by one owner, until a deadline."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Concatenate, NoReturn, ParamSpec, Protocol

from .clock import Clock
from .errors import (
    HELD_TOO_LONG,
    NEVER_RENEWED,
    NOT_RENEWED,
    ConfigurationError,
    LeaseLost,
    RedlockError,
    shown,
)
from .labels import bounded, label_of, looks_shortened

logger = logging.getLogger(__name__)
P = ParamSpec("P")
_HOST_BYTES = 255
# A host's name may be any bytes, and is then not text.
_HOSTNAME = bounded(socket.gethostname(), _HOST_BYTES)
_RESERVES = "~"
_LASTS = "decade00"
"""End of the nonce of a period's owner: hexadecimal, so that versions before it read the owner."""
_PUBLICATION = r"(\.[0-9a-f]+)?"
_HEAD = rf"[0-9a-f]{{32}}{_PUBLICATION}"
_NONCE = re.compile(rf"\b{_HEAD}(?={_RESERVES}?:)")
_TELLS_TIME = "7"
_SINCE = re.compile(rf"([0-9a-f]{{12}}){_TELLS_TIME}[0-9a-f]{{19}}{_PUBLICATION}{_RESERVES}:")
_TIMES_S = range(1_700_000_000, 4_102_444_800)  # the end of 2023 to that of 2099
"""Times that a reservation can tell; others are random bits, of an owner that tells none."""
_RESERVING = re.compile(rf"{_HEAD}{_RESERVES}:")
_LASTING = re.compile(rf"[0-9a-f]{{24}}{_LASTS}{_PUBLICATION}{_RESERVES}?:")
_OF_PROCESS = re.compile(r"pid-\d+\Z")


def new_owner(
    label: str | None = None,
    hostname: str | None = None,
    *,
    publication: str = "",
    is_reservation: bool = False,
    since_us: int = 0,
    is_period: bool = False,
) -> str:
    """Return a fresh owner: 128 random bits, then the holder's name for people and tools.

    52 of a reservation's bits may tell its time instead, as in a UUID of version 7, and the last 32
    of a period's bits say that it is one.

    Args:
        label: Holder of the lock, for instance a task's id. None: this process. Stored as
            `labels.label_of` returns it.
        hostname: Host of the holder. None: this machine's name.
        publication: Hex digits that distinguish holders with the same label, the same for all
            copies of one message. '': there is only one.
        is_reservation: Whether the owner is that of a reservation.
        since_us: Time at which the reservation begins, µs since the epoch; 0: it does not tell.
        is_period: Whether the owner is that of a throttle's period, reserved or begun: nothing runs
            under it, and it ends by its ttl alone.

    A nonce is never used twice, not even for the next attempt of the same caller: two attempts
    could get the same token otherwise.
    """
    nonce = _random_bits()
    if is_period:
        nonce = nonce[: -len(_LASTS)] + _LASTS
    if since_us:
        nonce = f"{since_us // 1000:012x}{_TELLS_TIME}{nonce[13:]}"
    head = f"{nonce}.{publication}" if publication else nonce
    mark = _RESERVES if is_reservation else ""
    who = label_of(label) if label else f"pid-{os.getpid()}"
    host = bounded(hostname, _HOST_BYTES) if hostname else _HOSTNAME
    return f"{head}{mark}:{who}@{host}"


def _random_bits() -> str:
    """Return 32 hexadecimal digits that are no period's."""
    bits = secrets.token_hex(16)
    return _random_bits() if bits.endswith(_LASTS) else bits


def task_of(owner: str | None) -> str | None:
    """Return the label in an owner (a task's id), or None if there is none."""
    if owner is None:
        return None
    tail = owner.partition(":")[2]
    return tail.rpartition("@")[0] or None


def is_of_process(label: str) -> bool:
    """Return whether a label is that of a process which named no other holder."""
    return _OF_PROCESS.match(label) is not None


def task_id_of(owner: str | None) -> str | None:
    """Return the id of the task that an owner names.

    None: the holder is a process, or a client of another kind; or the id is too long, and only its
    beginning is stored. A lock without Celery that was given a label counts as a task's.
    """
    label = task_of(owner)
    if owner is None or label is None or not _NONCE.match(owner):
        return None
    return None if is_of_process(label) or looks_shortened(label) else label


def publication_of(owner: str | None) -> str:
    """Return the publication in an owner, or '' if there is none."""
    head = (owner or "").partition(":")[0]
    return head.partition(".")[2].removesuffix(_RESERVES)


def holder_of(owner: str) -> str:
    """Return an owner without its nonce, ``<label>@<hostname>``: safe to show.

    The whole owner is enough to release its lock.
    """
    return owner.partition(":")[2]


def owner_id(owner: str) -> str:
    """Return a short digest of an owner: safe to show, while it releases no lock."""
    return hashlib.sha256(owner.encode("utf-8", "replace")).hexdigest()[:12]


def this_process() -> str:
    """Return the name of this process as a holder, ``pid-<number>@<hostname>``."""
    return holder_of(new_owner())


def without_nonces(text: str) -> str:
    """Return a text of a node without the nonces of the owners in it."""
    return _NONCE.sub("...", text)


def is_reservation(owner: str | None) -> bool:
    """Return whether an owner is that of a reservation."""
    # The first test is quick: few labels have it.
    return owner is not None and _RESERVES in owner and _RESERVING.match(owner) is not None


def reserved_since(owner: str | None) -> float | None:
    """Return when a reservation began, seconds since the epoch on its publisher's clock.

    None: the owner is not a reservation's, or does not tell.
    """
    told = _SINCE.match(owner) if owner else None
    if told is None:
        return None
    since = int(told[1], 16) / 1000
    return since if int(since) in _TIMES_S else None


def is_period(owner: str | None) -> bool:
    """Return whether an owner is that of a throttle's period, which outlasts message and run."""
    return owner is not None and _LASTING.match(owner) is not None


def host_of(owner: str | None) -> str | None:
    """Return the host in an owner, or None if there is none.

    No part of another client's value is a host: the whole value is enough to release its lock.
    """
    if owner is None:
        return None
    _, at, host = holder_of(owner).rpartition("@")
    return host or None if at else None


@dataclass(frozen=True, slots=True)
class Holder:
    """Holder of a lock, as the nodes name it.

    Attributes:
        label: Label that it was acquired with, for instance a task's id. None: not readable.
        hostname: Host of the holder. None: not readable.
        remaining: Seconds until the lock expires if it is not renewed.
        held_since: When it was acquired, seconds since the epoch on this host's clock. None:
            unknown, as with a reservation.
        contended: Whether this holder is not known to have a majority: attempts that started at the
            same moment have split the nodes between them.
    """

    label: str | None
    hostname: str | None
    remaining: float
    held_since: float | None = None
    contended: bool = False


class Grantor(Protocol):
    """Lock that grants leases, and by which their holders extend and release them."""

    def extend(self, lease: Lease) -> None:
        """Renew `lease`."""

    def release(self, lease: Lease) -> None:
        """Release `lease`."""


@dataclass(slots=True, eq=False)
class Backing:
    """References from a lease to the objects that granted and renew it. Not for users.

    Attributes:
        verify: Asks a quorum whether the lease is still held; raises LeaseLost if not.
        refresh: Updates the lease if another process renews it; None: no other process does.
        channel: Channel over which the lease was granted.
        is_granted_late: Returns whether nodes have not answered the grant yet; None: all have.
        took: How long it took to acquire the lease, seconds, and in how many rounds.
        lock: Lock by which the holder extends and releases the lease; None: a task's run does.
        is_lost: Whether the lease is known to be lost; `Lease.lost` says whether it is.
        lost_because: Reason why the lease is lost; '': its deadline, see `why_lost`.
        acquired_in: Id of the process that acquired the lease, and alone releases it.
        entered_in: Id of the process of each of the lease's ``with`` blocks that was not left.
        closing: An entry for each thread that has left what may be the last block.
        releases: An entry for each release that was begun.
    """

    verify: Callable[[Lease], None] | None = None
    refresh: Callable[[Lease], None] | None = None
    channel: object = None
    is_granted_late: Callable[[], bool] | None = None
    took: tuple[float, int] = (0.0, 1)
    lock: Grantor | None = None
    is_lost: bool = False
    lost_because: str = ""
    acquired_in: int = field(default_factory=lambda: os.getpid())  # noqa: PLW0108  # patched by tests
    entered_in: list[int] = field(default_factory=list)
    closing: list[None] = field(default_factory=list)
    releases: list[None] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Lease:
    """A held lock, for a single use: after it is lost or released, acquire another.

    A ``with`` block releases it on leaving, and raises LeaseLost if it was lost by then. Acquired
    without ``renew=True``, it is not renewed inside. Of several blocks at a time, nested or in
    threads, the last to be left releases it. One that was lost or released enters no block.

    Attributes:
        key: Key of the lock.
        owner: Value of the lock key on the nodes.
        token: Fencing token, larger than that of every lease on this key that was acquired before.
            Roughly µs since the epoch. 0: a reservation without a token.
        ttl_ms: Time from each renewal to the deadline, ms, with the allowance for drift.
        deadline: Time at which the lease ends unless it is extended, seconds on the boot-time
            clock; the allowance for drift is subtracted.
        superseded: The owner that it was to replace; '' for nobody. A node that was slow may take
            that one's grant later than ours: released, it leaves neither.
        took_over: Whether it did replace it, on any node that answered in time.
        hold_until: When its renewal ends, seconds on the boot-time clock; None for never.
        lock_delay_ms: Time for which the lock stays on the nodes after the deadline, ms.
        backing: References for the lock and the pools. Not for users.
    """

    key: str
    owner: str = field(repr=False)
    token: int
    ttl_ms: int
    deadline: float
    clock: Clock = field(repr=False)
    acquired_at: float = 0.0
    superseded: str = field(default="", repr=False)
    took_over: bool = False
    hold_until: float | None = None
    lock_delay_ms: int = 0
    is_released: bool = False
    backing: Backing = field(default_factory=Backing, repr=False)

    @property
    def expiry_ms(self) -> int:
        """Expiry that a renewal sets on every node, ms."""
        return self.ttl_ms + self.lock_delay_ms

    def delayed_until(self, now: float) -> float:
        """Return until when a release made at `now` leaves the lock, seconds on the clock.

        0.0: a release before the deadline frees the lock. One after it does not end the lock delay.
        """
        # The deadline is read once: the keeper may move it.
        return end + self.lock_delay_ms / 1000 if (end := self.deadline) <= now else 0.0

    def remaining(self) -> float:
        """Return the seconds until the deadline; 0.0 if the lease is lost or released."""
        if self.lost or self.is_released:
            return 0.0
        return max(0.0, self.deadline - self.clock.now())

    @property
    def lost(self) -> bool:
        """True once the lease has ended without being released."""
        backing = self.backing
        if backing.refresh and not backing.is_lost:
            backing.refresh(self)
        return backing.is_lost or (not self.is_released and self.deadline <= self.clock.now())

    def is_past_hold(self, now: float) -> bool:
        """Return whether the lease is not renewed any more; it is valid until its deadline."""
        return self.hold_until is not None and self.hold_until <= now

    def ensure(self) -> None:
        """Ask a quorum of the nodes whether this lease is still held; return only if it is.

        Costs one round trip, and renews the lease unless `hold_until` has passed.

        Raises:
            LeaseLost: The lease was lost or released, or no quorum answered: do not write.
            ConfigurationError: The lease is a reservation, under which nothing may be written.
        """
        if self.is_released:
            raise LeaseLost(self.key, "it was released")
        if self.backing.verify is None:
            raise LeaseLost(self.key, why_lost(self))
        self.backing.verify(self)

    def extend(self) -> None:
        """Renew this lease for its whole ttl from now; past its `hold_until` only confirm it.

        The nodes have a quarter of its remaining time to answer.

        Raises:
            LeaseLost: The deadline has passed, or a majority has granted the lock to others since.
            QuorumUnavailable: No majority answered. The lease is valid until its deadline.
            ConfigurationError: A task's run renews the lease.
        """
        self._lock("extend").extend(self)

    def release(self) -> None:
        """Release this lease: others can acquire the lock as soon as this returns.

        May be repeated. If the lease was lost, its successor is not touched. A forked child leaves
        the lease to the process that acquired it: there this does nothing.

        Raises:
            QuorumUnavailable: No majority confirmed. It is retried in the background until a
                majority confirms or the lease's ttl is over.
            ConfigurationError: A task's run releases the lease.
        """
        self._lock("release").release(self)

    def _lock(self, action: str) -> Grantor:
        lock = self.backing.lock
        if lock is None:
            raise ConfigurationError(
                f"cannot {action} '{shown(self.key)}' by hand: the run of its task does that"
            )
        return lock

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"cannot copy or pickle the lease on '{shown(self.key)}': its holder alone renews and "
            "releases it; pass its key and its token, or have the other side acquire its own lease"
        )

    def __enter__(self) -> Lease:  # noqa: PYI034  # Python 3.10 has no Self
        if self.is_released:
            raise LeaseLost(self.key, "it was released")
        if self.lost:
            raise LeaseLost(self.key, why_lost(self))
        self.backing.entered_in.append(os.getpid())
        # In this order: of a thread that enters and one that leaves the last block, at least one
        # sees the other.
        if self.backing.closing:
            self._leave_block()
            raise LeaseLost(self.key, "it was released")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A child that was forked inside the block leaves it as well; the lock is its parent's.
        if os.getpid() in self.backing.entered_in and self._leave_block() and kind is None:
            raise lost_in_block(self)

    def _leave_block(self) -> bool:
        """Leave a block, and release the lease after the last; return whether it was lost by then.

        No mutex: a signal handler may enter a block, too, at any line. The lease may be released
        twice, but never under a block.
        """
        blocks, closing = self.backing.entered_in, self.backing.closing
        blocks.remove(os.getpid())
        while not blocks:
            release = self._lock("release").release
            closing.append(None)
            if not blocks:
                return release_at_end(self, release)
            # Another thread has entered, perhaps without having seen that.
            closing.pop()
        return self.lost


def why_lost(lease: Lease) -> str:
    """Return the reason why `lease` is lost, for people."""
    if lease.backing.lost_because:
        return lease.backing.lost_because
    if lease.is_past_hold(lease.deadline):
        return HELD_TOO_LONG
    is_renewed = lease.hold_until is not None or lease.backing.lock is None
    return NOT_RENEWED if is_renewed else NEVER_RENEWED


def release_at_end(lease: Lease, release: Callable[[Lease], object]) -> bool:
    """Release `lease` at the end of its block; return whether it was lost by then.

    A failure is logged, not raised: the release is retried in the background.
    """
    was_lost = lease.lost
    if not lease.is_released:
        release_or_warn(release, lease)
    return was_lost or lease.backing.is_lost


def lost_in_block(lease: Lease) -> LeaseLost:
    """Return the error for a block whose lease was lost before its end."""
    return LeaseLost(lease.key, "others may have had the lock before its block ended")


def release_or_warn(
    release: Callable[Concatenate[Lease, P], object],
    lease: Lease,
    *args: P.args,
    **kwargs: P.kwargs,
) -> bool:
    """Release a lease whose work is done; log a warning if that fails, and raise nothing.

    Args:
        release: Releases the lease, as `Redlock.release` does; a lock key that is left on a node
            expires with its ttl.
        lease: Lease to release.
        *args: Further arguments of `release`.
        **kwargs: Further arguments of `release`.

    Returns:
        Whether a quorum has confirmed the release.
    """
    try:
        release(lease, *args, **kwargs)
    except RedlockError as error:
        logger.warning("lock not released key=%s error=%s", shown(lease.key), error)
        return False
    return True
