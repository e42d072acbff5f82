"""Client of a prefork pool process, which has the keeper in the main process keep its leases."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from functools import partial

from celery_redlock.redlock import Lease
from celery_redlock.redlock.keeper import due_at
from celery_redlock.redlock.task_lock import TaskLock

from .lease_record import LeaseRecord
from .lease_table import LEASES_PER_PROCESS, ROWS, SharedLeaseTable

CALL = struct.Struct("=QQ")
"""Call to the keeper: pid of the pool process, and the first of its rows in the lease table."""
_OVERDUE_S = 1.0
"""Delay of the keeper's look after which a pool process checks if there is a main process."""


class KeeperClient:
    """Client of a pool process, which registers its leases with the keeper.

    There is no mutex here: a signal handler may interrupt any line. A row is in use as long as it
    is in one of three dicts, and each of them is changed by a single operation.

    Args:
        fd: Writing end of the keeper's pipe.
        table: Lease table that the keeper shares with the pool's processes.
        index: Index of this process in the pool; no two running processes have the same.
        redlock: Lock of the worker's app, whose leases the keeper renews.
        on_expired: Called on another thread when a lease ends that a running main process would
            have renewed or reported as lost: it stands still.
    """

    def __init__(
        self,
        fd: int,
        table: SharedLeaseTable,
        index: int,
        redlock: TaskLock,
        on_expired: Callable[[], object],
    ) -> None:
        self.redlock = redlock
        self._fd = fd
        self._table = table
        first = index * LEASES_PER_PROCESS
        self._rows = range(first, min(first + LEASES_PER_PROCESS, ROWS))
        self._attempts: dict[int, str] = {}
        self._leases: dict[Lease, int] = {}
        self._left: dict[int, str] = {}
        self._on_expired = on_expired
        self._pid = os.getpid()
        self._is_known = False
        # The keeper knows whose rows these are and watches this process from now on.
        self._call_keeper()

    def announcer(self, key: str, ttl: float) -> Callable[[str], None]:
        """Return a function that announces the owner of each attempt to acquire `key`.

        It is called before the attempt. If this process is killed after that, the keeper releases
        what the attempt was granted.

        Args:
            key: Key of the lock.
            ttl: Expiry that the attempts ask for, seconds.
        """
        row: int | None = None

        def announce(owner: str) -> None:
            nonlocal row
            if row is None:
                row = self._take_row(owner)
            # Without a row, or with a key too long for it, a granted lock ends with its ttl.
            if row is not None:
                self._attempts[row] = owner
                self._table.announce(row, LeaseRecord(self._pid, owner, key, 0, round(ttl * 1000)))

        return announce

    def withdraw_attempts(self) -> None:
        """Withdraw the announced attempts that did not become registered leases: they are over."""
        self._free_released()
        for row in list(self._attempts):
            if row not in self._leases.values():
                self._table.free(row)
            self._attempts.pop(row, None)

    def announce_wait(self) -> None:
        """Have the keeper look, while an announced attempt waits, whether its task is revoked."""
        self._call_keeper()

    def is_wait_revoked(self) -> bool:
        """Tell whether the keeper has noted that the task of an announced attempt is revoked."""
        return any(
            self._table.is_revoked(row, owner) for row, owner in list(self._attempts.items())
        )

    def register(
        self,
        lease: Lease,
        min_hold_until: float,
        done: str | None,
        *,
        will_be_redelivered: bool,
        successor: str = "",
    ) -> bool:
        """Register `lease` with the keeper, which renews it, and releases it if this process dies.

        Args:
            lease: Lease to register.
            min_hold_until: Time until which the lock key stays in any case, seconds on the
                boot-time clock.
            done: Done mark for other copies of the message if this process dies; None if there are
                no copies.
            will_be_redelivered: Whether the message comes again if this process is killed.
            successor: As in `LeaseRecord`.

        Returns:
            Whether the keeper has the lease. False if it is too long for a row, all rows of this
            process are in use, or there is no keeper any more: the caller has to renew it.
        """
        record = LeaseRecord.of(
            lease,
            pid=self._pid,
            min_hold_until=min_hold_until,
            done=done,
            # Otherwise Celery decides after the process has died.
            will_be_redelivered=will_be_redelivered or None,
            successor=successor,
        )
        row = next((at for at, one in list(self._attempts.items()) if one == lease.owner), None)
        if row is None:
            row = self._take_row(lease.owner)
        if row is None:
            return False
        # The row is freed at the release even if an interrupt comes in between.
        self._leases[lease] = row
        if not (self._table.hold(row, record) and self._is_looked_for(lease)):
            del self._leases[lease]
            return False
        self._attempts.pop(row, None)
        lease.backing.refresh = partial(self._table.update_lease, row)
        # If no thread can be started, the next one watches; the main process watches as well.
        try:  # noqa: SIM105  # `suppress` costs half as much as the rest
            self.redlock.keeper.watch(lease, lambda _: self._on_expired())
        except RuntimeError:
            pass
        return True

    def is_shutting_down(self) -> bool:
        """Tell whether the worker is being shut down."""
        return self._table.is_shutting_down()

    def begin_release(self, lease: Lease) -> None:
        """Note that `lease` is being released: a failed extension is no loss from now on."""
        row = self._leases.get(lease)
        if row is not None:
            self._table.begin_release(row)

    def end_release(self, lease: Lease) -> None:
        """Note that `lease` is released, and free its row."""
        row = self._leases.get(lease)
        if row is not None:
            lease.backing.refresh = None
            self._table.free(row)
            self._left.pop(row, None)
            del self._leases[lease]

    def leave_release(self, lease: Lease, min_hold_until: float, done: str | None) -> None:
        """Leave the release of `lease`, which has failed, to the keeper if this process ends.

        Until then it is made by this process, whose lock tries it again.

        Args:
            lease: Lease to release.
            min_hold_until: As in `register`, or until the end of a lock delay that has begun.
            done: Done mark to leave for other copies of the message; None for none.
        """
        row = self._leases.get(lease)
        if row is not None:
            lease.backing.refresh = None
            record = LeaseRecord.of(
                lease,
                pid=self._pid,
                min_hold_until=min_hold_until,
                done=done,
                will_be_redelivered=None,
            )
            # The run has ended: the death of its process begins no lock delay.
            record = record._replace(lock_delay_ms=0)
            self._table.leave_release(row, record)
            self._left[row] = lease.owner
            del self._leases[lease]

    def _free_released(self) -> None:
        """Free the rows of leases whose release was left, and is made by now."""
        for row, owner in list(self._left.items()):
            if not self.redlock.keeper.is_releasing(owner):
                self._table.free(row)
                self._left.pop(row, None)

    def _take_row(self, owner: str) -> int | None:
        if not (self._is_known or self._call_keeper()):
            return None
        self._free_released()
        for row in self._rows:
            if self._is_free(row) and self._attempts.setdefault(row, owner) == owner:
                # Meanwhile a signal handler may have registered a lease in this row.
                if self._is_free(row):
                    return row
                self._attempts.pop(row, None)
        return None

    def _is_free(self, row: int) -> bool:
        # A row may still have something of a dead process that the keeper has not read yet.
        return self._table.is_free(row) and row not in self._leases.values()

    def _is_looked_for(self, lease: Lease) -> bool:
        """Return whether the keeper looks at the rows before `lease` is due; call it if need be."""
        now, looks_at = self.redlock.clock.now(), self._table.next_look()
        return now - _OVERDUE_S <= looks_at <= due_at(lease, now) or self._call_keeper()

    def _call_keeper(self) -> bool:
        """Have the keeper look at the rows now; return whether it will, and knows this process."""
        try:
            os.write(self._fd, CALL.pack(self._pid, self._rows.start))
        except BlockingIOError:
            return self._is_known  # it has not read the earlier calls yet
        except OSError:
            return False  # the main process is gone
        self._is_known = True
        return True
