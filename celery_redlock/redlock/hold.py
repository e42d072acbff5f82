"""Hold a lock for the length of a block, even if an exception strikes at its edges."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any

from .keeper import Keeper, OnLease
from .lease import Grantor, Lease, lost_in_block, release_at_end

_NOWHERE = (0, 0)


class _Block:
    """One block under a `Hold`. It is the ``__exit__`` of that block, and of no other.

    Python looks ``__exit__`` up before it calls ``__enter__``, and drops what it has found when the
    block has been left, or can't be left any more. So the keeper knows a block that was struck by
    the end of this object, also if the `Hold` itself lives as long as the process.

    Args:
        hold: The `Hold`; None: not known yet.

    Attributes:
        lease: Lease that this block is responsible for; None: none yet, or none any more.
        entered_in: Process and thread that have entered the block; `_NOWHERE`: it was not entered.
        is_spent: Whether it was called: it is nobody's next block.
    """

    __slots__ = ("__weakref__", "entered_in", "hold", "is_spent", "lease")

    def __init__(self, hold: Hold | None) -> None:
        self.hold = hold
        self.lease: Lease | None = None
        self.entered_in = _NOWHERE
        self.is_spent = False

    def __call__(self, *how: Any) -> None:
        self.is_spent = True
        # Looked up on the class, as `ExitStack` does, it is called with the hold.
        if isinstance(how[0], Hold):
            hold, kind = how[:2]
            hold.leave(self if self.hold is hold else None, kind)
        elif self.hold:
            self.hold.leave_own(self, how[0])


class _Exit:
    """Descriptor that gives each lookup of ``__exit__`` a block of its own."""

    def __get__(self, hold: Hold | None, owner: type[Hold]) -> _Block:
        block = _Block(hold)
        _looked_up.block = weakref.ref(block)
        return block


class _Enter:
    """Descriptor for ``__enter__``, which tells from where it was looked up.

    One that was looked up on the class, as `ExitStack` does, enters only a block whose ``__exit__``
    was looked up there as well: `ExitStack.push` looks up one that enters nothing.
    """

    def __get__(self, hold: Hold | None, owner: type[Hold]) -> Callable[..., Lease]:
        return hold.enter if hold is not None else owner.enter_from_class


class _LookedUp(threading.local):
    """Block that this thread has looked up and not entered yet."""

    block: weakref.ref[_Block] | None = None

    def take(self, hold: Hold | None) -> _Block | None:
        """Return the block that is to be entered; None: it is entered by hand.

        Args:
            hold: The `Hold` on which it was looked up; None: on the class.
        """
        reference, self.block = self.block, None
        block = reference() if reference else None
        return block if block and block.hold is hold and not block.is_spent else None


_looked_up = _LookedUp()


class Hold(AbstractContextManager[Lease]):
    """A lease for the length of a ``with`` block: renewed inside, released on leaving.

    May be kept and used for any number of blocks, one after the other, nested, or in several
    threads, greenlets and forked children: each block makes its own attempt, so others that hold
    the lock refuse it, blocks of the same `Hold` included. A block releases its own lease, in
    whatever order and thread blocks are left, and never that of another block.

    ``__enter__`` and ``__exit__`` may be called by hand, also as methods that were kept. Then
    ``__exit__`` leaves the newest block that was entered so in this thread, or else the oldest of
    this process. A block whose ``__exit__`` was looked up before it was entered, as by ``with``, is
    left by that one alone.

    A signal handler can raise at any line below, and between the block and these methods. So at
    each line somebody is responsible for the lease: the keeper until the end of `__enter__`, then
    the block, and the keeper again from the first line of the release. If the block can't be left
    any more, because nothing refers to its ``__exit__``, not even a traceback, the keeper releases
    the lease and marks it as lost. A block that was entered by hand can be left as long as anything
    refers to this object.

    Args:
        acquire: Returns a lease for which the keeper is responsible.
        settle: Ends that; raises if the keeper has released the lease.
        lock: Lock by which the lease is extended and released.
        keeper: Renews the lease.
        max_hold: Time after which the lease is not renewed any more, seconds.
        on_lost: Called once with the lease if it is lost before the block is left.
        again: Makes another `Hold` like this from a lock: for copies and other processes.
    """

    # A generator's context manager would stay suspended, once interrupted, until it is collected.
    def __init__(
        self,
        acquire: Callable[[], Lease],
        settle: Callable[[Lease], None],
        lock: Grantor,
        keeper: Keeper,
        max_hold: float,
        on_lost: OnLease | None,
        again: Callable[[Grantor], Hold],
    ) -> None:
        self._acquire = acquire
        self._settle = settle
        self._lock = lock
        self._keeper = keeper
        self._max_hold = max_hold
        self._on_lost = on_lost
        self._again = again
        self._by_hand: list[_Block] = []

    def __reduce__(self) -> tuple[Callable[[Grantor], Hold], tuple[Grantor]]:
        return self._again, (self._lock,)

    def enter(self) -> Lease:
        """Return the lease: see ``__enter__``. Not for users."""
        return self._enter(_looked_up.take(self))

    def enter_from_class(self) -> Lease:
        """Return the lease of a block that was looked up on the class. Not for users."""
        return self._enter(_looked_up.take(None))

    def _enter(self, looked_up: _Block | None) -> Lease:
        block = looked_up or _Block(None)
        block.entered_in = _here()
        try:
            block.lease = lease = self._acquire()
            lease.hold_until = lease.acquired_at + self._max_hold
            lease.backing.lock = self._lock
            self._keeper.keep(lease, weakref.ref(block), on_lost=self._on_lost)
            self._settle(lease)
            if looked_up:
                block.hold = self
            else:
                self._by_hand.append(block)
            return lease
        except BaseException:
            # An interrupt strikes at any line: the block is not entered, and will not be left.
            self._abandon(block)
            raise

    if TYPE_CHECKING:

        def __enter__(self) -> Lease:
            """Return the lease.

            Raises:
                LockHeld, QuorumUnavailable, ConfigurationError: As in `Redlock.acquire`.
            """

        def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
            """Release the lease. A failure is logged, not raised: the keeper retries the release.

            Raises:
                LeaseLost: The lease was lost inside a block that ends without an exception.
            """
    else:
        __enter__ = _Enter()
        __exit__ = _Exit()

    def leave(self, block: _Block | None, kind: type[BaseException] | None) -> None:
        """Leave a block: see ``__exit__``. Not for users.

        Args:
            block: The block; None, or one that was not entered: another was, by hand.
            kind: Type of the exception with which the block ends; None: it ends without.
        """
        if not block or block.entered_in == _NOWHERE:
            block = self._entered_by_hand()
        # A child that was forked inside the block leaves it as well; the lock is its parent's.
        if not block or block.entered_in[0] != os.getpid():
            return
        lease = block.lease
        if not lease:
            return
        try:
            is_lost = release_at_end(lease, self._lock.release)
        except BaseException:
            # An interrupt: the keeper makes the release that may not have been sent.
            self._abandon(block)
            raise
        block.lease = None
        if is_lost and kind is None:
            raise lost_in_block(lease)

    def leave_own(self, block: _Block, kind: type[BaseException] | None) -> None:
        """Leave a block by its own ``__exit__``. Not for users.

        If that has nothing to leave, since the block was refused, or was left, or is the parent's,
        it is a method that was kept, and is used for what this thread has entered by hand since.

        Args:
            block: The block.
            kind: As in `leave`.
        """
        has_lease = block.lease and block.entered_in[0] == os.getpid()
        self.leave(block if has_lease else self._take(self._own()) or block, kind)

    def _entered_by_hand(self) -> _Block | None:
        """Remove the block to leave from those that were entered by hand; None: there is none.

        The newest of this thread, where they are nested. Those of other threads may end in any
        order, and only the newest of them all can have the lock: the oldest of them.
        """
        here = _here()
        others = [block for block in self._by_hand if block.entered_in[0] == here[0]]
        return self._take([*self._own(), *others])

    def _own(self) -> list[_Block]:
        """Return the blocks that this thread has entered by hand, the newest first."""
        here = _here()
        return [block for block in reversed(self._by_hand.copy()) if block.entered_in == here]

    def _take(self, blocks: list[_Block]) -> _Block | None:
        """Remove the first of the blocks from those that were entered by hand; return it."""
        for block in blocks:
            with suppress(ValueError):  # a signal handler has left it meanwhile
                self._by_hand.remove(block)
                return block
        return None

    def _abandon(self, block: _Block) -> None:
        if block.lease:
            self._keeper.take_over(block.lease)
            block.lease.is_released = True
        block.lease = None
        with suppress(ValueError):
            self._by_hand.remove(block)


def _here() -> tuple[int, int]:
    return os.getpid(), threading.get_ident()
