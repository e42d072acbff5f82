"""Locks of an app's tasks, as a test sees and disturbs them.

A call is named by its task and its arguments, as given to `delay`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Event
from typing import TYPE_CHECKING, Any

from celery import Celery

from celery_redlock.config.app_lock import redlock_of
from celery_redlock.execution.running import began_without_lease
from celery_redlock.messages.reservation import pending_slot_key
from celery_redlock.redlock.errors import DuplicateTask, LockHeld
from celery_redlock.redlock.lease import task_of
from celery_redlock.signals import lock_acquired, lock_lost

if TYPE_CHECKING:
    from celery.result import AsyncResult
    from typing_extensions import Self

    from celery_redlock.redlock import Lease
    from celery_redlock.redlock.keeper import Keeper
    from celery_redlock.task import SingletonTask

ANOTHER_WORKER = "another-worker"
"""Task id of the run that `Locks.hold` and `Locks.lose` pretend."""
_NOTICE_S = 10.0
_POLL_S = 0.005


class Locks:
    """Locks of one app's tasks, while entered by `with`.

    Args:
        app: The app, with the nodes that its tasks are locked on.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._runs: list[tuple[str, str]] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for signal in (lock_acquired, began_without_lease):
            signal.connect(self._note_run)
            self._stack.callback(signal.disconnect, self._note_run)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # ---- on command

    @contextmanager
    def hold(self, task: SingletonTask, *args: Any, **kwargs: Any) -> Iterator[Lease]:
        """Hold the lock of a call inside the block, as a run on another worker does.

        Raises:
            LockHeld: Another holds it already.
        """
        redlock, key = redlock_of(self._app), _key_of(task, args, kwargs)
        with redlock.lock(key, redlock.max_ttl, label=ANOTHER_WORKER) as lease:
            yield lease

    def lose(self, task: SingletonTask, *args: Any, **kwargs: Any) -> Lease:
        """Give the lock of a running call to another worker; return when the run knows of it.

        For the body of a run in this process, or a test beside it. Where a body is interrupted, it
        has been by then.

        Returns:
            The lease of the other worker, which has a higher token. It ends with the test, or after
            `redlock_max_ttl`.

        Raises:
            AssertionError: No body of that call runs in this process.
        """
        redlock, key = redlock_of(self._app), _key_of(task, args, kwargs)
        lease = next((one for one in redlock.keeper.kept() if one.key == key), None)
        if lease is None:
            raise AssertionError(f"{_call(task, args, kwargs)} does not run in this process")
        thief = redlock.acquire_for_task(
            key, redlock.max_ttl, label=ANOTHER_WORKER, supersedes=lease.owner
        )
        self._stack.callback(redlock.release, thief)
        if not self._wait_until_told(redlock.keeper, lease):
            raise AssertionError(f"the run under {key!r} still has its lease")
        return thief

    def _wait_until_told(self, keeper: Keeper, lost: Lease) -> bool:
        """Wait until the run knows that its lease is lost; return whether it does."""
        is_told = Event()

        def note(lease: Lease, **_: object) -> None:
            if lease is lost:
                is_told.set()

        lock_lost.connect(note)
        try:
            ends = time.monotonic() + _NOTICE_S
            while not is_told.wait(_POLL_S) and time.monotonic() < ends:
                keeper.hurry(lost)
        finally:
            lock_lost.disconnect(note)
        return is_told.is_set()

    # ---- what happened

    def runs(self, task: SingletonTask, *args: Any, **kwargs: Any) -> int:
        """Return how many bodies of this call have begun in this process, with locking enabled."""
        return self._runs.count((task.name, _key_of(task, args, kwargs)))

    def holder(self, task: SingletonTask, *args: Any, **kwargs: Any) -> str | None:
        """Return the id of the task that holds the lock of this call; None: it is free."""
        held = self._held(task, args, kwargs)
        return task_of(held.owner) if held else None

    def assert_ran_once(self, task: SingletonTask, *args: Any, **kwargs: Any) -> None:
        """Assert that exactly one body of this call has begun, in this process."""
        count = self.runs(task, *args, **kwargs)
        if count != 1:
            raise AssertionError(
                f"{_call(task, args, kwargs)} ran {count} times; all runs: {self._runs}"
            )

    def assert_held(self, task: SingletonTask, *args: Any, **kwargs: Any) -> None:
        """Assert that the lock of this call is held: by a run, a reservation or `hold`."""
        if not self._held(task, args, kwargs):
            raise AssertionError(f"{_call(task, args, kwargs)} is not locked")

    def assert_free(self, task: SingletonTask, *args: Any, **kwargs: Any) -> None:
        """Assert that nobody holds the lock of this call."""
        if held := self._held(task, args, kwargs):
            raise AssertionError(f"{_call(task, args, kwargs)} is locked: {held}")

    def assert_duplicate(self, result: AsyncResult[Any], timeout: float = 10.0) -> DuplicateTask:
        """Assert that a call ended as a duplicate, without a run of its body.

        Args:
            result: Result of `delay` or `apply`.
            timeout: Longest wait for it, seconds.

        Returns:
            The error that says which task held the lock.
        """
        found: object = result.get(timeout=timeout, propagate=False)
        if not isinstance(found, DuplicateTask):
            raise AssertionError(  # noqa: TRY004  # the value of a test, not of an argument
                f"task {result.id} is {result.state}, no duplicate: {found!r}"
            )
        return found

    def _held(self, task: SingletonTask, args: Any, kwargs: Any) -> LockHeld | None:
        redlock, key = redlock_of(self._app), _key_of(task, args, kwargs)
        return redlock.read_holder(key) or redlock.read_holder(pending_slot_key(key))

    def _note_run(
        self, sender: SingletonTask, lease: Lease | None = None, key: str = "", **_: object
    ) -> None:
        self._runs.append((sender.name, lease.key if lease else key))


def _key_of(task: SingletonTask, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return task._key_of(args, kwargs)  # noqa: SLF001  # it is no public name yet


def _call(task: SingletonTask, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    named = [f"{name}={value!r}" for name, value in kwargs.items()]
    return f"{task.name}({', '.join([*map(repr, args), *named])})"
