"""Hold a lock for the length of a block, even if an exception strikes at its edges."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager

from .keeper import Keeper, OnLease
from .lease import Grantor, Lease, lost_in_block, release_at_end


class Hold(AbstractContextManager[Lease]):
    """A lease for the length of a ``with`` block: renewed inside, released on leaving.

    A signal handler can raise at any line below, and between the block and these methods. So at
    each line somebody is responsible for the lease: the keeper until the end of `__enter__`, then
    this object, and the keeper again from the first line of the release. If nothing refers to this
    object any more, not even a traceback, the keeper releases the lease.

    Args:
        acquire: Returns a lease for which the keeper is responsible.
        settle: Ends that; raises if the keeper has released the lease.
        lock: Lock by which the lease is extended and released.
        keeper: Renews the lease.
        max_hold: Time after which the lease is not renewed any more, seconds.
        on_lost: Called with the lease if it is lost inside the block.
    """

    # Not a generator's context manager: an interrupted one stays suspended until it is collected.
    def __init__(
        self,
        acquire: Callable[[], Lease],
        settle: Callable[[Lease], None],
        lock: Grantor,
        keeper: Keeper,
        max_hold: float,
        on_lost: OnLease | None = None,
    ) -> None:
        self._acquire = acquire
        self._settle = settle
        self._lock = lock
        self._keeper = keeper
        self._max_hold = max_hold
        self._on_lost = on_lost
        self._lease: Lease | None = None

    def __enter__(self) -> Lease:
        """Return the lease.

        Raises:
            LockHeld, QuorumUnavailable, ConfigurationError: As in `Redlock.acquire`.
        """
        self._holder = os.getpid()
        try:
            self._lease = lease = self._acquire()
            lease.hold_until = lease.acquired_at + self._max_hold
            lease.backing.lock = self._lock
            self._keeper.keep(lease, weakref.ref(self), on_lost=self._on_lost)
            self._settle(lease)
            return lease
        except BaseException:
            # An interrupt strikes at any line: the block is not entered, and will not be left.
            self._abandon()
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Release the lease. A failure is logged, not raised: the keeper retries the release.

        Raises:
            LeaseLost: The lease was lost inside a block that ends without an exception.
        """
        lease = self._lease
        # A child that was forked inside the block leaves it as well; the lock is its parent's.
        if lease is None or os.getpid() != self._holder:
            return
        try:
            is_lost = release_at_end(lease, self._lock.release)
        except BaseException:
            # An interrupt: the keeper makes the release that may not have been sent.
            self._abandon()
            raise
        self._lease = None
        if is_lost and kind is None:
            raise lost_in_block(lease)

    def _abandon(self) -> None:
        if self._lease:
            self._keeper.take_over(self._lease)
        self._lease = None
