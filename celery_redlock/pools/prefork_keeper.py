"""Keeper of the prefork pool, in the worker's main process.

A task that holds the interpreter lock for minutes starves every thread of its process, and a pool
process that is killed can release nothing. So each pool process writes its leases to a lease table
in shared memory. The main process looks there before any of them has to be renewed, renews them,
and watches each process by its pidfd: the leases of a process are released once it is dead.

A task that is over before the next look costs the main process nothing. The keeper announces when
it looks next; a pool process whose lease is due before that calls it, through a pipe.

In the other direction, pool processes read the state of their leases in the lease table, and a
signal interrupts the body whose lease is lost.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from celery_redlock.redlock import Lease
from celery_redlock.redlock.errors import shown
from celery_redlock.redlock.lease import holder_of, owner_id, task_of
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.redlock.threads import callbacks
from celery_redlock.redlock.threads.dispatch import run_as_own
from celery_redlock.redlock.threads.wakeup import Wakeup

from . import interrupt
from .keeper_client import CALL, KeeperClient
from .lease_record import LeaseRecord
from .lease_table import LEASES_PER_PROCESS, ROWS, SharedLeaseTable
from .orphaned_leases import RETRY_S, HeldLease, OrphanedLeases

logger = logging.getLogger(__name__)
_LOOKS_PER_TTL = 6
"""Twice as many as renewals, so that a look is due before a renewal is."""
_LOOK_AT_ATTEMPT_S = 0.5
"""Time between looks while an attempt is under way: its task may wait, and be revoked."""
_LAST_RELEASES_S = 1.0
"""Time for which releases that fail are tried again when the worker ends."""
_STORE_S = 0.001
"""Time after which every processor sees what another one has stored; it takes less than a µs."""


def is_supported() -> bool:
    """Tell whether this system has pidfds: Linux since 5.3, unless a sandbox forbids them."""
    try:
        pidfd = os.pidfd_open(os.getpid())
        try:
            signal.pidfd_send_signal(pidfd, 0)
        finally:
            os.close(pidfd)
    except (AttributeError, OSError):
        return False
    return True


@dataclass(slots=True)
class _Child:
    """Pool process, as the main process knows it.

    Attributes:
        rows: Its rows of the lease table.
        pidfd: File descriptor that shows its exit; None until one was free.
    """

    rows: range
    pidfd: int | None = None


class PreforkKeeper:
    """Keeper that renews the leases of all pool processes, and releases those of dead ones.

    Args:
        new_redlock: Makes the lock that renews and releases, with connections of its own.
        is_revoked: Returns whether the task with this label is revoked.
    """

    def __init__(
        self, new_redlock: Callable[[], TaskLock], is_revoked: Callable[[str | None], bool]
    ) -> None:
        self._new_redlock = new_redlock
        self._is_revoked = is_revoked
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        self._table = SharedLeaseTable()
        self._wakeup = Wakeup()
        self._children: dict[int, _Child] = {}
        self._last_leases: dict[int, HeldLease] = {}
        self._looks_every = self._looks_at = math.inf
        self._orphans = OrphanedLeases()
        self._thread: threading.Thread | None = None
        self._is_stopping = False

    def keeper_client(self, index: int, redlock: TaskLock) -> KeeperClient:
        """In a pool process: return its client of this keeper, for the leases of `redlock`."""
        # Otherwise the pipe would not break when the main process is gone.
        os.close(self._reading)
        on_expired = interrupt.signal_main_thread
        return KeeperClient(self._writing, self._table, index, redlock, on_expired)

    def start(self) -> None:
        """Start the keeper's thread."""
        run = partial(self._run, self._new_redlock())
        self._thread = threading.Thread(
            target=run_as_own, args=(run,), name="redlock-pool-keeper", daemon=True
        )
        self._thread.start()

    def note_shutdown(self) -> None:
        """Note that the worker is being shut down: the pool's processes end their waits."""
        self._table.note_shutdown()

    def stop(self) -> None:
        """After the pool has ended: release the leases that are left, and end the thread."""
        thread, self._thread = self._thread, None
        if thread:
            self._is_stopping = True
            self._wakeup.wake()
            thread.join()

    def lease_with_id(self, key: str, holder_id: str) -> LeaseRecord | None:
        """On the main thread: return the lease on `key` that a pool process holds at this moment.

        Args:
            key: Key of the lock.
            holder_id: Id of the lease's owner, as `owner_id` returns it.

        Returns:
            None: No process holds it, or its release has begun.
        """
        for pid, child in list(self._children.items()):
            for row in child.rows:
                record = self._table.last_lease(row)
                if (
                    record
                    and (record.pid, record.key, owner_id(record.owner)) == (pid, key, holder_id)
                    and self._table.is_held(row, record.owner)
                ):
                    return record
        return None

    def record_task_outcome(self, task_id: str, *, will_be_redelivered: bool) -> None:
        """On the main thread: record the outcome of a task whose process dies, or has died.

        If its message was acknowledged and its result is stored, other copies of it must not run:
        each might kill the next process, without end.

        Args:
            task_id: Id of the task.
            will_be_redelivered: Whether its message comes again.
        """
        self._orphans.record_task_outcome(task_id, will_be_redelivered=will_be_redelivered)
        self._wakeup.wake()

    def _run(self, redlock: TaskLock) -> None:
        # Connects ahead of the first lease. A step that needs the nodes meets the same error, logs
        # it and is repeated.
        with contextlib.suppress(BaseException):
            redlock.check()
        while not self._is_stopping:
            self._try_step(redlock)
        is_done = self._try_step(redlock)
        ends_at = redlock.clock.now() + _LAST_RELEASES_S
        while not is_done and redlock.clock.now() < ends_at:
            self._wakeup.wait(RETRY_S)
            is_done = self._try_step(redlock)
        redlock.close()

    def _try_step(self, redlock: TaskLock) -> bool:
        """Make a step, and log its error; return whether no release is left to be made."""
        try:
            self._step(redlock)
        except BaseException as error:  # noqa: BLE001  # it is logged
            # Whatever it is: without this thread no lease of the pool is renewed, or released.
            callbacks.tell(logger.error, "pool keeper failed, its step is repeated", exc_info=error)
            self._looks_at = -math.inf
            self._wakeup.wait(RETRY_S)
            return False
        return not self._orphans

    def _step(self, redlock: TaskLock) -> None:
        """Wait until something is to be done, and do it."""
        dead = self._wait(redlock)
        for pid in dead:
            self._on_child_exit(redlock, pid)
        try:
            self._look(redlock)
        finally:
            # Also if no thread can be started: renewals need one, and releases do not.
            self._orphans.apply_task_outcomes(redlock, self._last_leases.values())
            self._orphans.release_all(redlock)

    def _wait(self, redlock: TaskLock) -> list[int]:
        """Wait for calls, exits and outcomes of pool processes, or for the next look.

        Returns:
            Pids of the processes that are dead.
        """
        pids = {child.pidfd: pid for pid, child in self._children.items()}
        is_retrying = self._orphans or None in pids
        timeout = min(self._looks_at - redlock.clock.now(), RETRY_S if is_retrying else math.inf)
        if self._is_stopping:
            timeout = 0.0
        poll = select.poll()
        for fd in (self._reading, self._wakeup.fd, *pids):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        ready = poll.poll(None if timeout == math.inf else max(0.0, timeout) * 1000)
        self._wakeup.clear()
        exited = [pids[fd] for fd, _ in ready if fd in pids]
        for pid, row in self._calls():
            rows = range(row, min(row + LEASES_PER_PROCESS, ROWS))
            self._children.setdefault(pid, _Child(rows))
        return exited + self._open_pidfds()

    def _calls(self) -> Iterator[tuple[int, int]]:
        with contextlib.suppress(BlockingIOError):
            while True:
                yield from CALL.iter_unpack(os.read(self._reading, CALL.size * 1024))

    def _open_pidfds(self) -> list[int]:
        """Watch each process from its first call on; return the pids of those that are gone."""
        gone = []
        for pid, child in self._children.items():
            if child.pidfd is None:
                try:
                    child.pidfd = os.pidfd_open(pid)
                except ProcessLookupError:
                    gone.append(pid)
                except OSError:  # too many files are open; it is tried again
                    break
        return gone

    # ---- leases of running processes

    def _look(self, redlock: TaskLock) -> None:
        """Read all rows, and announce the next look: before a lease that is in use is due."""
        clock = redlock.clock
        self._looks_at = clock.now() + self._looks_every
        self._table.announce_look(self._looks_at)
        # A process that has read the earlier announcement did not call. Its lease was written
        # before that, so it is seen from now on.
        clock.sleep(_STORE_S)
        rows = [row for child in self._children.values() for row in child.rows]
        ttls_ms = [record.ttl_ms for row in rows if (record := self._read_row(redlock, row))]
        self._looks_every = min(ttls_ms, default=math.inf) / 1000 / _LOOKS_PER_TTL
        if attempts := [(row, one) for row in rows if (one := self._table.attempt(row))]:
            self._note_revoked(attempts)
            self._looks_every = min(self._looks_every, _LOOK_AT_ATTEMPT_S)
        self._looks_at = min(self._looks_at, clock.now() + self._looks_every)
        self._table.announce_look(self._looks_at)

    def _note_revoked(self, attempts: Iterable[tuple[int, LeaseRecord]]) -> None:
        """Tell pool processes which of their attempts are those of revoked tasks."""
        for row, attempt in attempts:
            if self._is_revoked(task_of(attempt.owner)):
                self._table.note_revoked(row, attempt.owner)

    def _read_row(self, redlock: TaskLock, row: int) -> LeaseRecord | None:
        """Keep the lease in a row, or stop keeping it if it is over.

        Returns:
            Its record if it is held, or was written since the last look; otherwise None.
        """
        record, last = self._table.last_lease(row), self._last_leases.get(row)
        if record is None:
            return None
        if last and last.record.owner != record.owner:
            self._stop_renewing(redlock, last)
            last = None
        if is_new := last is None:
            last = self._last_leases[row] = self._new_held(redlock, row, record)
        is_held = self._table.is_held(row, record.owner)
        # A lease that is written, but not held yet, is kept from the next look on.
        if is_held and not last.is_kept:
            self._keep(redlock, row, last)
        elif last.is_kept and not is_held:
            self._stop_renewing(redlock, last)
        return record if is_held or is_new else None

    def _new_held(self, redlock: TaskLock, row: int, record: LeaseRecord) -> HeldLease:
        held = HeldLease(record, record.new_lease(redlock.clock), record.will_be_redelivered)

        def refresh(lease: Lease) -> None:
            lease.is_released = lease.is_released or not self._table.is_held(row, record.owner)

        held.lease.backing.refresh = refresh
        return held

    def _keep(self, redlock: TaskLock, row: int, held: HeldLease) -> None:
        redlock.keeper.keep(
            held.lease,
            on_extended=lambda lease: self._table.write_state(row, lease),
            on_lost=lambda _: self._on_lost(row, held),
        )
        held.is_kept = True

    def _stop_renewing(self, redlock: TaskLock, held: HeldLease) -> None:
        held.lease.is_released = True
        redlock.keeper.forget(held.lease)

    def _on_lost(self, row: int, held: HeldLease) -> None:
        """On the keeper's thread: write the loss to the lease's row, and interrupt the body."""
        self._table.write_state(row, held.lease)
        child = self._children.get(held.record.pid)
        if child and child.pidfd is not None:
            # By the pidfd: the pid may be that of another process by now.
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(child.pidfd, interrupt.SIGNAL)

    # ---- rows of dead processes

    def _on_child_exit(self, redlock: TaskLock, pid: int) -> None:
        child = self._children[pid]
        for row in child.rows:
            self._collect(redlock, pid, row)
        # After an error in a row, a repeated step finds the process, and all rows that are left.
        del self._children[pid]
        if child.pidfd is not None:
            os.close(child.pidfd)

    def _collect(self, redlock: TaskLock, pid: int, row: int) -> None:
        """Release what the dead process `pid` has left in a row, and free the row."""
        left, last = self._table.left_by(pid, row), self._last_leases.get(row)
        if left and not left.token:
            lease = left.new_lease(redlock.clock)
            # No error may hold up the others: the lock's keeper repeats the release.
            with contextlib.suppress(Exception):
                redlock.release(lease)
            # And once more: a grant may have reached a slow node after its release.
            redlock.keeper.take_over(lease)
        elif left:
            callbacks.tell(
                logger.warning, "pool process died, its lock is released key=%s holder=%s pid=%d",
                left.key, shown(holder_of(left.owner)), pid,
            )  # fmt: skip
            if last and last.record != left:
                # An earlier lease of the row, or one whose process has left its release.
                self._stop_renewing(redlock, last)
                last = None
            self._orphans.add_held(last or self._new_held(redlock, row, left))
        if left:
            # The next process in the same place of the pool gets the row.
            self._table.free(row)
