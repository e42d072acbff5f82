"""The lock of tasks: reservations for their messages, done marks, locks that are handed over."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .acquisition import OnAttempt
from .attempt import Attempt
from .defaults import TTL_S
from .errors import LockHeld, RedlockError
from .inspection import Judgement
from .lease import Lease
from .lock import Redlock
from .placement import Placement
from .release import DONE_S
from .validation import check_key, check_seconds
from .waiting import OnWait


class TaskLock(Redlock):
    """A `Redlock` with what the messages and runs of tasks need besides. Not for users."""

    _placed: tuple[list[tuple[str, ...]], Placement] | None = None

    # ---- acquire and reserve

    def acquire_for_task(  # noqa: PLR0913  # all but the first are optional
        self,
        key: str,
        ttl: float = TTL_S,
        *,
        wait: float | None = None,
        label: str | None = None,
        publication: str = "",
        supersedes: str | None = None,
        is_successor: bool = False,
        unless_done: tuple[str, ...] = (),
        on_attempt: OnAttempt | None = None,
        on_wait: OnWait | None = None,
        lock_delay: float = 0.0,
    ) -> Lease:
        """Return a lease on `key`, as `acquire` does. The run of a task renews and releases it.

        Args:
            key: As in `acquire`.
            ttl: As in `acquire`.
            wait: As in `acquire`.
            label: As in `acquire`.
            publication: Distinguishes holders with the same label: see `new_owner`.
            supersedes: Owner of a lock that may be replaced, for instance a reservation.
            is_successor: Whether the lock may be in the middle of being handed over to
                `supersedes`. The nodes are asked first, which costs one more round trip.
            unless_done: Labels of which any done mark ends the attempt.
            on_attempt: Called with the owner of each attempt before it is sent to any node. An
                exception that it raises ends the wait; earlier attempts leave nothing behind.
            on_wait: Called about once a second between attempts. An exception that it raises ends
                the wait.
            lock_delay: As in `acquire`.

        Raises:
            LockHeld, QuorumUnavailable, ConfigurationError: As in `acquire`.
            AlreadyDone: There is a done mark for one of `unless_done`.
        """
        attempt = self._attempt(
            key, ttl, wait, lock_delay, supersedes=supersedes or "", unless_done=unless_done,
            publication=publication, looks_first=is_successor or bool(wait and supersedes),
        )  # fmt: skip
        lease = self._acquisition.acquire(attempt, label, wait or 0.0, on_attempt, on_wait)
        self._settle(lease)
        return lease

    def reserve(
        self,
        key: str,
        ttl: float,
        *,
        label: str | None = None,
        publication: str = "",
        supersedes: str | None = None,
        owner: str | None = None,
        highest_floor: int = 0,
        is_period: bool = False,
        on_attempt: OnAttempt | None = None,
    ) -> Lease:
        """Return a reservation: a lease for a message that waits, never renewed.

        Nothing runs under it, so its ttl may exceed `max_ttl`. Its token is 0 unless it supersedes
        another owner.

        Args:
            key: Key of the lock.
            ttl: Time after which the reservation expires, seconds > 0.
            label: As in `acquire`.
            publication: As in `acquire_for_task`.
            supersedes: As in `acquire_for_task`.
            owner: Owner to use, for one attempt only. None: a fresh one.
            highest_floor: Token of the lease that hands over. A node with a higher floor has served
                another owner since, and refuses. 0: no node refuses.
            is_period: Whether it is the period of a throttle, as the fresh owner will say.
            on_attempt: As in `acquire_for_task`.

        Raises:
            LockHeld, QuorumUnavailable, ConfigurationError: As in `acquire`.
        """
        key = check_key(key)
        check_seconds("ttl", ttl, above_zero=True)
        ttl_ms = math.ceil(ttl * 1000)
        attempt = Attempt(
            key, owner or "", ttl_ms, supersedes or "", highest_floor=highest_floor,
            is_reservation=True, is_period=is_period, publication=publication,
        )  # fmt: skip
        lease = self._acquisition.acquire(attempt, label, on_attempt=on_attempt)
        self._settle(lease)
        return lease

    # ---- extend and release

    def extend_all(self, leases: Sequence[Lease]) -> list[RedlockError | None]:
        """Renew leases with one write per node; return None or the error of each."""
        return self._extension.extend_all(leases)

    def release(
        self,
        lease: Lease,
        *,
        keep: float = 0.0,
        done: str | None = None,
        done_ttl: float = DONE_S,
        is_delayed: bool = True,
    ) -> None:
        """Release `lease`: others can acquire the lock as soon as this returns. May be repeated.

        Args:
            lease: The lease. If it was lost, its successor is not touched.
            keep: Time for which the key stays on the nodes, seconds >= 0.
            done: Label to write a done mark for.
            done_ttl: Expiry of that mark, seconds.
            is_delayed: Whether a release after the deadline leaves the lock for its lock delay.
                False: only for `keep`, with which the caller has reckoned the delay.

        Raises:
            QuorumUnavailable: No majority confirmed. The keeper retries until a majority confirms
                or the lease's ttl is over.
        """
        check_seconds("keep", keep)
        self._release.release(lease, keep, done, done_ttl, is_delayed=is_delayed)

    def mark_done(self, key: str, label: str) -> None:
        """Write a done mark for `label` under `key`, or renew the one that is there.

        Raises:
            QuorumUnavailable: No majority confirmed.
            ConfigurationError: `key` is not valid.
        """
        self._release.mark_done(check_key(key), label)

    def read_holder(self, key: str) -> LockHeld | None:
        """Return the holder of `key`, as the error that an attempt would get; None: it is free.

        `contended` is True if the holder has no majority of the nodes.

        Raises:
            QuorumUnavailable: Fewer nodes than a quorum could answer.
        """
        return self._inspection.read_holder(key)

    def release_owner(self, key: str, owner: str) -> bool:
        """Release `key` if `owner` holds it; the lock of another owner is not touched.

        For reservations, and grants that no lease represents: it raises no floor.

        Returns:
            Whether `owner` held it on any node that answered in time.

        Raises:
            QuorumUnavailable: No majority confirmed.
            ConfigurationError: `key` is not valid.
        """
        return self._release.drop(check_key(key, may_exist=True), owner)

    def drop_owner(self, key: str, owner: str, author: str) -> bool:
        """Release `key` as `drop` does, if `owner` holds it: the holder finds its lease lost.

        Args:
            key: Key of the lock.
            owner: Its holder.
            author: Who releases it, for the holder to tell.

        Returns:
            Whether `owner` held it on any node that answered in time.

        Raises:
            QuorumUnavailable: Fewer nodes than a quorum answered, or confirmed.
            ConfigurationError: As in `drop`.
        """
        return self._drop(check_key(key, may_exist=True), owner, author)

    def why_dropped(self, lease: Lease) -> str | None:
        """Return by whom, and when, a lost lease was released; None: it is not known that it was.

        The longest wait is the node timeout.
        """
        return self._inspection.why_dropped(lease.key, lease.owner)

    # ---- the nodes

    def judge(self) -> list[Judgement]:
        """Connect to every node and write to it, as `check` does; return the judgement of each.

        A node that is late gets a second, in a second round: it is slow, or hangs. One that is not
        an independent master is unfit; if it was one for this process before, it is down.
        """
        return self._inspection.judge()

    @property
    def placement(self) -> Placement:
        """Placement of its locks, with the servers that were seen at the nodes so far."""
        seen = [node.run_ids for node in self.nodes]
        placed = self._placed
        # It is made anew only when a server is seen for the first time, since each reserved
        # message carries it.
        if placed is None or placed[0] != seen:
            nodes = [(node.name, node.database, node.run_ids) for node in self.nodes]
            placed = self._placed = seen, Placement.of(self.key_prefix, nodes)
        return placed[1]

    def clock_offsets(self) -> dict[str, float]:
        """Return, by node, how far this process's wall clock is ahead of it, in seconds.

        Nodes that don't answer are left out.
        """
        return self._inspection.clock_offsets()
