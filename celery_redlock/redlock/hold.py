"""Hold a lock for the length of a block, even if an exception strikes at its edges."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Concatenate, ParamSpec

from .errors import RedlockError
from .keeper import Keeper
from .lease import Lease

logger = logging.getLogger(__name__)
P = ParamSpec("P")


def release_or_warn(
    release: Callable[Concatenate[Lease, P], object],
    lease: Lease,
    *args: P.args,
    **kwargs: P.kwargs,
) -> None:
    """Release a lease whose work is done; log a warning if that fails, and raise nothing.

    Args:
        release: Releases the lease, as `Redlock.release` does; a lock key that is left on a node
            expires with its ttl.
        lease: Lease to release.
        *args: Further arguments of `release`.
        **kwargs: Further arguments of `release`.
    """
    try:
        release(lease, *args, **kwargs)
    except RedlockError as error:
        logger.warning("lock not released key=%s error=%s", lease.key, error)


class Hold(AbstractContextManager[Lease]):
    """A lease for the length of a ``with`` block: renewed inside, released on leaving.

    A signal handler can raise at any line below, and between the block and these methods. So at
    each line somebody is responsible for the lease: the keeper until the end of `__enter__`, then
    this object, and the keeper again from the first line of the release. If nothing refers to this
    object any more, not even a traceback, the keeper releases the lease.

    Args:
        acquire: Returns a lease for which the keeper is responsible.
        settle: Ends that; raises if the keeper has released the lease.
        release: Releases the lease.
        keeper: Renews the lease.
        max_hold: Time after which the lease is not renewed any more, seconds.
    """

    # Not a generator's context manager: an interrupted one stays suspended until it is collected.
    def __init__(
        self,
        acquire: Callable[[], Lease],
        settle: Callable[[Lease], None],
        release: Callable[[Lease], None],
        keeper: Keeper,
        max_hold: float,
    ) -> None:
        self._acquire = acquire
        self._settle = settle
        self._release = release
        self._keeper = keeper
        self._max_hold = max_hold
        self._lease: Lease | None = None
        self._holder = os.getpid()

    def __enter__(self) -> Lease:
        """Return the lease.

        Raises:
            LockHeld, QuorumUnavailable, ConfigurationError: As in `Redlock.acquire`.
        """
        self._holder = os.getpid()
        try:
            self._lease = lease = self._acquire()
            lease.hold_until = lease.acquired_at + self._max_hold
            self._keeper.keep(lease, weakref.ref(self))
            self._settle(lease)
            return lease
        except BaseException:
            self._abandon()
            raise

    def __exit__(self, *_: object) -> None:
        """Release the lease. A failure is logged, not raised: the keeper retries the release."""
        lease = self._lease
        # A child that was forked inside the block leaves it as well; the lock is its parent's.
        if lease is None or os.getpid() != self._holder:
            return
        try:
            release_or_warn(self._release, lease)
        except BaseException:
            self._abandon()
            raise
        self._lease = None

    def _abandon(self) -> None:
        if self._lease:
            self._keeper.take_over(self._lease)
        self._lease = None
