"""The lock: acquire, extend, release. Start reading here.

Next comes `acquisition`, the algorithm, then `extension` and `release`: each makes its own requests
to the nodes. `protocol.quorum` decides, `transport.channel` carries. `parts` connects them all.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from operator import methodcaller
from typing import Any

from .attempt import Attempt
from .defaults import TTL_S
from .errors import ConfigurationError, QuorumUnavailable, shown
from .hold import Hold
from .keeper import OnLease
from .lease import Holder, Lease, is_reservation, this_process
from .parts import Parts
from .protocol.scripts import lock_keys
from .validation import (
    check_callback,
    check_flag,
    check_key,
    check_label,
    check_seconds,
    lease_times_ms,
)

DAY_S = 86_400.0
_UNDECODED = "\ufffd"
"""Stands in the text of an owner for bytes that are not UTF-8, or for itself."""


class Redlock(Parts):
    """A lock on a quorum of independent Redis masters, with a fencing token.

    Usable from any number of threads, and after a fork. Pickled or copied, it is made again from
    its arguments, with connections and leases of its own: the pickle contains the nodes' URLs with
    their passwords.

    Times are at most ten years; only `idle_timeout` may be longer.

    Args:
        nodes: URLs of 1, 3, 5 … masters without replication between them.
        node_timeout: Longest wait for a node in one round, seconds > 0.
        max_ttl: Longest ttl of a lease, with its lock delay, seconds > 0; the restart guard lasts
            at least as long.
        max_clock_skew: Largest error or step of a wall clock that does no harm to tokens, seconds
            >= 0. A lock still ends early on a node whose clock is stepped forward.
        restart_guard: Whether a restarted node waits before it votes. None: only with 3 nodes or
            more.
        key_prefix: Start of every key on the nodes, at most 256 bytes long.
        floor_ttl: Time for which a node remembers a lock's highest token after its last lease,
            seconds > 0; at least `max_clock_skew`.
        idle_timeout: Time after which unused connections are closed, seconds > 0; `math.inf`:
            never. The thread that renews does it: it runs from the first lock on, and a process
            that only asks (`locked`, `holder`, `check`) keeps its connections.
        max_connections: Most connections of this process to each node, for any number of threads,
            >= 1. One more renews leases, and one listens while threads wait for a lock. When all
            are in use, a thread waits for one, up to a second or the rest of its own wait.
        observers: Called with every event: see `events`.
        clock: Source of time; None: the machine's clocks.

    Raises:
        ConfigurationError: The number of nodes is even, a node is named twice, or a URL or a value
            is out of range.
    """

    def __repr__(self) -> str:
        return f"Redlock({[node.name for node in self.nodes]!r}, key_prefix={self.key_prefix!r})"

    # ---- acquire

    def acquire(
        self,
        key: str,
        ttl: float = TTL_S,
        *,
        wait: float | None = None,
        label: str | None = None,
        renew: bool = False,
        max_hold: float = DAY_S,
        on_lost: OnLease | None = None,
        lock_delay: float = 0.0,
    ) -> Lease:
        """Return a lease on `key`, held by a majority of the nodes.

        An exception that interrupts this call, as a time limit does, leaves no lock behind. The one
        exception to that: if it strikes as the call returns, the lock stays until its ttl is over,
        or with `renew` until `max_hold` is. `lock` has no such gap.

        Args:
            key: Key of the lock, at most 1,024 bytes long.
            ttl: Time after which the lock expires unless it is extended, seconds, <= `max_ttl`.
            wait: Longest time to try while others hold the lock or nodes are down, seconds. None
                or 0: one attempt; `math.inf`: no limit.
            label: Holder, as people and tools see it, for instance a task's id, at most 512 bytes
                long. None: this process.
            renew: Whether a thread renews the lease until it is released, or lost, or `max_hold` is
                over. Release it: nothing else does while this process lives.
            max_hold: With `renew`, the time after which the lease is not renewed any more, seconds.
            on_lost: With `renew`, called with the lease if it is lost: see `lock`.
            lock_delay: Time for which nobody gets the lock after the lease has ended without being
                released, seconds >= 0; with the ttl at most `max_ttl`. For a resource that can't
                check a token: what a holder has sent before its deadline arrives in that time.

        Raises:
            LockHeld: Others hold the lock on so many nodes that no majority is left.
            QuorumUnavailable: Fewer nodes than a quorum could answer.
            ConfigurationError: An argument is not valid, or a node is not an independent master.
        """
        check_seconds("max_hold", max_hold, endless=True)
        check_label(label)
        if on_lost is not None:
            check_callback("on_lost", on_lost)
        check_flag("renew", renew)
        if on_lost and not renew:
            raise ConfigurationError("on_lost is called by the renewal; add renew=True")
        attempt = self._attempt(key, ttl, wait, lock_delay)
        lease = self._acquisition.acquire(attempt, label, wait or 0.0)
        lease.backing.lock = self
        if renew:
            lease.hold_until = lease.acquired_at + max_hold
            self.keeper.keep(lease, on_lost=on_lost)
        self._settle(lease)
        return lease

    def _attempt(
        self, key: str, ttl: float, wait: float | None, lock_delay: float, **more: Any
    ) -> Attempt:
        """Return an attempt, without an owner yet, of a valid request.

        Raises:
            ConfigurationError: An argument is not valid.
        """
        key = check_key(key)
        ttl_ms, lock_delay_ms = lease_times_ms(key, ttl, lock_delay, self.max_ttl)
        if wait is not None:
            check_seconds("wait", wait, endless=True)
        return Attempt(key, "", ttl_ms, lock_delay_ms=lock_delay_ms, **more)

    def _settle(self, lease: Lease) -> None:
        try:
            self._acquisition.settle(lease)
        except QuorumUnavailable:
            # The keeper's releases may overtake a grant that a slow node has not read yet: one more
            # follows the grant on the same connection.
            with suppress(QuorumUnavailable):
                self.release(lease)
            raise

    def lock(
        self,
        key: str,
        ttl: float = TTL_S,
        *,
        wait: float | None = None,
        max_hold: float = DAY_S,
        label: str | None = None,
        on_lost: OnLease | None = None,
        lock_delay: float = 0.0,
    ) -> Hold:
        """Hold `key` for the length of a ``with`` block: renewed inside, released on leaving.

        Args:
            key: Key of the lock.
            ttl: Time for which the lock outlives a process that dies, seconds, <= `max_ttl`.
            wait: Longest time to try, seconds: see `acquire`.
            max_hold: Time after which the lease is not renewed any more, seconds.
            label: Holder, as people and tools see it.
            on_lost: Called once with the lease, on the thread that renews it, as soon as this
                process knows that it is lost; after the block, if only its end shows that. Return
                quickly: other leases are not renewed meanwhile. Whatever it raises is logged,
                SystemExit included: that would end the thread.
            lock_delay: Time for which nobody gets the lock after a lease that was not released,
                seconds: see `acquire`.

        Returns:
            A context manager for any number of blocks, each of which acquires the lock anew, also
            for several threads at a time; ``as`` gives the `Lease`. An exception may strike
            anywhere: the keeper then releases the lock in the background. Pickled or copied with
            its `Redlock`, it is made again from its arguments.

        Raises:
            LockHeld, QuorumUnavailable, ConfigurationError: As in `acquire`, on entering the block.
            LeaseLost: The lease was lost inside the block, which ended without an exception.
        """
        check_seconds("max_hold", max_hold, endless=True)
        check_label(label)
        if on_lost is not None:
            check_callback("on_lost", on_lost)
        attempt = self._attempt(key, ttl, wait, lock_delay)
        acquire = partial(self._acquisition.acquire, attempt, label, wait or 0.0)
        again = methodcaller(
            "lock", key, ttl, wait=wait, max_hold=max_hold, label=label, on_lost=on_lost,
            lock_delay=lock_delay,
        )  # fmt: skip
        return Hold(acquire, self._settle, self, self.keeper, max_hold, on_lost, again)

    # ---- extend and release

    def extend(self, lease: Lease) -> None:
        """Renew `lease` for its whole ttl from now; past its `hold_until` only confirm it.

        The nodes have a quarter of its remaining time to answer.

        Raises:
            LeaseLost: The deadline has passed, or a majority has granted the lock to others since.
            QuorumUnavailable: No majority answered. The lease is valid until its deadline.
            ConfigurationError: The lease is a reservation.
        """
        if self._is_of_another(lease):
            lease.extend()
        else:
            self._extension.extend(lease)

    def release(self, lease: Lease) -> None:
        """Release `lease`: others can acquire the lock as soon as this returns. May be repeated.

        If the lease was lost, its successor is not touched; `lease.lost` is True then, unless so
        many nodes were down or late that no majority told. A forked child leaves the lease to the
        process that acquired it: there this does nothing.

        Raises:
            QuorumUnavailable: No majority confirmed. The keeper retries until a majority confirms
                or the lease's ttl is over.
        """
        if self._is_of_another(lease):
            lease.release()
        else:
            self._release.release(lease)

    def _is_of_another(self, lease: Lease) -> bool:
        """Return whether another `Redlock`, perhaps of other nodes, has granted `lease`."""
        return lease.backing.lock is not None and lease.backing.lock is not self

    # ---- locks of any holder

    def locked(self, key: str) -> bool:
        """Return whether anybody holds `key`, or has reserved it: no majority of the nodes is free.

        Raises:
            QuorumUnavailable: Fewer nodes than a quorum could answer.
            ConfigurationError: `key` is not valid.
        """
        return self._inspection.is_locked(check_key(key))

    def holder(self, key: str) -> Holder | None:
        """Return who holds `key`, or has reserved it; None: it is free, as `locked` says.

        The answer may be out of date when it arrives: to act on a free lock, acquire it.

        Raises:
            QuorumUnavailable: Fewer nodes than a quorum could answer.
            ConfigurationError: `key` is not valid.
        """
        key = check_key(key)
        held = self._inspection.read_holder(key)
        # The key may be left on a node that was slow, of a lock that a majority has released.
        if held is None or (held.contended and not self._inspection.is_locked(key)):
            return None
        return Holder(held.task_id, held.hostname, held.remaining, held.held_since, held.contended)

    def drop(self, key: str) -> bool:
        """Release the lock `key` of any holder, which then finds its lease lost.

        Until it does, at its next renewal or `ensure`, two holders may work at once: see to it that
        the first one has ended. Only a resource that checks the token refuses it. A task learns at
        its end that this process released its lock, and when.

        Returns:
            Whether anybody held it.

        Raises:
            QuorumUnavailable: Fewer nodes than a quorum answered, or confirmed.
            ConfigurationError: `key` is not valid; or another program has the lock, under a name
                that is not UTF-8.
        """
        key = check_key(key, may_exist=True)
        held = self._inspection.read_holder(key)
        return (
            held is not None
            and held.owner is not None
            and self._drop(key, held.owner, this_process())
        )

    def _drop(self, key: str, owner: str, author: str) -> bool:
        """Release `key` if `owner` holds it, by the one rule for releases by others.

        The floors are raised above the highest one under that owner's lock, so that no renewal
        revives it. This process's own clock has no part in that.
        """
        token = 0
        # A reservation is never renewed, and the floor under it is that of an earlier lease.
        if not is_reservation(owner):
            token = self._inspection.floor_under(key, owner)
            # The note comes first, so that the holder finds it when it finds its lease lost.
            self._release.note_drop(key, owner, author)
        is_released = self._release.drop(key, owner, token)
        if not is_released and _UNDECODED in owner:
            self._refuse_if_undecodable(key, owner)
        return is_released

    def _refuse_if_undecodable(self, key: str, owner: str) -> None:
        """Raise an error if a lock that could not be released still reads as `owner`'s."""
        held = self._inspection.read_holder(key)
        if held and held.owner == owner:
            lock, _ = lock_keys(self.key_prefix, key)
            raise ConfigurationError(
                f"cannot release '{shown(key)}': another program has set '{shown(lock)}', to bytes "
                "that are not UTF-8; delete it on each node with redis-cli once its holder has "
                "ended"
            )

    # ---- the nodes

    def check(self) -> dict[str, str]:
        """Connect to every node and write to it; return, by node, the reason why one does not vote.

        A lock is written under this prefix, and released at once. Nodes that don't vote are down,
        or refuse to write (memory, replicas or access rights), or answer later than `node_timeout`,
        or wait for their restart guard.

        Raises:
            ConfigurationError: A node is not an independent master.
        """
        return self._inspection.check()

    def close(self) -> None:
        """Stop renewing and close the connections.

        Leases that are held end with their ttl, and no `on_lost` is called for them.
        """
        self._close()
