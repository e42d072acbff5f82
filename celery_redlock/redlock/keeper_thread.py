"""Thread of the keeper: its start, its wakeups and its end.

There is no mutex here: a signal handler that acquires or releases may run at any line of a thread
that does the same.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial

from .clock import Clock
from .threads import callbacks, dispatch, native
from .threads.wakeup import Wakeup

logger = logging.getLogger(__name__)
IDLE_S = 10.0
"""Time after which a thread without work ends."""
LOOK_S = 1.0
"""Longest sleep: waking the thread for each release would cost a system call."""
_AFTER_ERROR_S = 0.5
_START_WITHIN_S = 1.0
_RUNNING = "running"


class KeeperThread:
    """One real daemon thread, which starts when it is used and ends after a while without work.

    Beside greenlets it ends only with its lock, since its poll belongs to the thread that made it.

    Args:
        clock: Time.
        tick: Does all that is due; returns the time of the next tick, seconds on the clock.
        next_due_at: Returns when the next lease is due, seconds on the clock; infinity: none is.
        has_work: Returns whether the thread is still needed.
    """

    def __init__(
        self,
        clock: Clock,
        tick: Callable[[], float],
        next_due_at: Callable[[], float],
        has_work: Callable[[], bool],
    ) -> None:
        self._clock = clock
        self._tick = tick
        self._next_due_at = next_due_at
        self._has_work = has_work
        self._threads: dict[str, Wakeup] = {}
        self.forget()

    def forget(self) -> None:
        """Forget the thread, as after a fork: it is the parent's."""
        while self._threads:
            _, wakeup = self._threads.popitem()
            wakeup.close()  # the child's copy: the frame of the parent's thread refers to it
        # The thread adds itself, so that one which never began to run is not relied on.
        self._threads = {}
        self._starting_until = 0.0
        self._wakes_at = self._sleeps_until = self._used_at = 0.0

    def start(self) -> None:
        """Start the thread unless it runs.

        Raises:
            RuntimeError: No thread can be started now, or too many files are open.
        """
        self._used_at = now = self._clock.now()
        if self._threads or now < self._starting_until:
            return
        self._starting_until = now + _START_WITHIN_S
        try:
            # Here and not on the thread: without descriptors it would end, and nobody would know.
            dispatch.start_thread(partial(self._run, Wakeup()), "redlock-keeper")
        except OSError as error:
            self._starting_until = 0.0
            raise RuntimeError(f"its wakeup can't be made: {error}") from error
        except BaseException:
            self._starting_until = 0.0
            raise

    def wake(self, due_at: float = -math.inf) -> None:
        """Wake the thread unless it wakes up by `due_at`, seconds on the clock.

        One that should be awake by now may sleep: this process, or the machine, was stopped just
        before or during its sleep, which lasts as long after that.
        """
        is_asleep = self._used_at > min(self._wakes_at, self._sleeps_until)
        is_in_time = self._wakes_at <= due_at and not is_asleep
        if not is_in_time and (wakeup := self._threads.get(_RUNNING)):
            wakeup.wake()

    def stop(self) -> None:
        """End the thread."""
        wakeup = self._threads.pop(_RUNNING, None)
        self._starting_until, self._used_at = 0.0, -math.inf
        if wakeup:
            wakeup.wake()

    def end_when_idle(self) -> None:
        """End the thread as soon as it has no work: nobody can use it any more."""
        self._used_at = -math.inf
        self.wake()

    def _run(self, wakeup: Wakeup) -> None:
        # Closed with its last reference: another thread may be about to wake this one.
        threads = self._threads
        if threads.setdefault(_RUNNING, wakeup) is not wakeup:
            return  # another one was faster
        try:
            while self._goes_on_after_error(wakeup, threads):
                native.original("time", "sleep")(_AFTER_ERROR_S)
        finally:
            if threads.get(_RUNNING) is wakeup:
                del threads[_RUNNING]

    def _goes_on_after_error(self, wakeup: Wakeup, threads: dict[str, Wakeup]) -> bool:
        try:
            self._go_on(wakeup, threads)
        except BaseException as error:  # noqa: BLE001  # it is logged
            if threads.get(_RUNNING) is not wakeup:
                return False  # a callback forked: in the child, the wakeup is closed
            # Outside a tick, it comes from another thread, or from the user's clock.
            callbacks.tell(logger.error, "keeper interrupted, continuing", exc_info=error)
            return True
        return False

    def _go_on(self, wakeup: Wakeup, threads: dict[str, Wakeup]) -> None:
        while True:
            try:
                wakes_at = self._tick()
            except BaseException as error:  # noqa: BLE001  # it is logged
                callbacks.tell(logger.error, "keeper failed, retrying", exc_info=error)
                wakes_at = self._clock.now() + _AFTER_ERROR_S
            # Published before it is compared: a lease that was added meanwhile is seen here, or its
            # caller sees this time and wakes the thread.
            now = self._clock.now()
            self._wakes_at, self._sleeps_until = wakes_at, now + LOOK_S
            self._wakes_at = min(wakes_at, self._next_due_at())
            wakeup.wait(min(self._wakes_at, self._sleeps_until) - now)
            if threads.get(_RUNNING) is not wakeup:
                return
            if self._is_idle() and (self._used_at == -math.inf or not native.is_green()):
                del threads[_RUNNING]
                # A caller that came meanwhile may have seen this thread as running.
                if self._is_idle() or threads.setdefault(_RUNNING, wakeup) is not wakeup:
                    return

    def _is_idle(self) -> bool:
        is_unused = self._clock.now() - self._used_at >= IDLE_S
        return is_unused and not self._has_work()
