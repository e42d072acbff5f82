"""Threads of users and keepers, of which one runs at a time, in the time of simulated nodes."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from celery_redlock.redlock import keeper_thread
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.redlock.threads import dispatch, native
from tests.support.fakes.simulated_network import Network

_HANGS_S = 60.0


class User:
    """One thread of a user's, which does what it is told and then waits."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._raised: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def do(self, job: Callable[[], object]) -> BaseException | None:
        """Call `job` in this thread; return what it raises, without its frames."""
        self._jobs.put(job)
        del job  # nobody but the thread refers to what it uses
        return self._raised.get(timeout=_HANGS_S)

    def leave(self) -> None:
        """End the thread."""
        self._jobs.put(None)
        self._thread.join(_HANGS_S)

    def _work(self) -> None:
        while job := self._jobs.get():
            self._raised.put(_raised_by(job))
            del job


def _raised_by(job: Callable[[], object]) -> BaseException | None:
    try:
        job()
    except BaseException as error:  # noqa: BLE001  # it is judged
        return _without_frames(error)
    return None


def _without_frames(error: BaseException) -> BaseException:
    one: BaseException | None = error
    while one:
        following = one.__context__
        one.__traceback__ = one.__cause__ = one.__context__ = None
        one = following
    return error


class KeepersThread:
    """The thread that one keeper has started: the product's code, in the time of the network."""

    def __init__(self, run: Callable[[], None], network: Network) -> None:
        self.wakes_at = network.now()
        self.ended_by: BaseException | None = None
        self.is_over = False
        self._run = run
        self._network = network
        self._goes_on, self._is_parked = threading.Semaphore(0), threading.Semaphore(0)
        self._is_stopped = False
        threading.Thread(target=self._main, name="keeper", daemon=True).start()

    def go_on(self) -> None:
        """Let the thread run until it waits for its next wakeup, or ends."""
        self._goes_on.release()
        assert self._is_parked.acquire(timeout=_HANGS_S), "the keeper hangs"

    def stop(self) -> None:
        """End the thread, as a process does that ends."""
        if not self.is_over:
            self._is_stopped = True
            self.go_on()

    def wait(self, seconds: float) -> None:
        """Wait in the network's time.

        Raises:
            _StoppedError: The thread is to end: again, whenever it goes on after that.
        """
        if self._is_stopped:
            raise _StoppedError
        self.wakes_at = self._network.now() + max(0.0, seconds)
        self._is_parked.release()
        self._goes_on.acquire()
        if self._is_stopped:
            raise _StoppedError

    def _main(self) -> None:
        _of_thread.keeper = self
        self._goes_on.acquire()
        try:
            if not self._is_stopped:
                self._run()
        except BaseException as error:  # noqa: BLE001  # it is noted
            self.ended_by = _without_frames(error)
        self.is_over = True
        self._is_parked.release()


class _StoppedError(BaseException):
    """Ends a keeper's thread with the example."""


class _OfThread(threading.local):
    keeper: KeepersThread


_of_thread = _OfThread()


def _sleep(seconds: float) -> None:
    _of_thread.keeper.wait(seconds)


class _Wakeup:
    """Wakeup of the keeper's thread that waits for it; the caller that starts it makes it."""

    def __init__(self) -> None:
        self._thread: KeepersThread | None = None
        self._is_woken = False

    def wake(self) -> None:
        self._is_woken = True
        if self._thread:
            self._thread.wakes_at = 0.0

    def wait(self, seconds: float) -> bool:
        self._thread = _of_thread.keeper
        self._thread.wait(0.0 if self._is_woken else seconds)
        was_woken, self._is_woken = self._is_woken, False
        return was_woken

    def close(self) -> None:
        """Close it, as a forked child does with its parent's: nothing is open here."""


class Stage:
    """Three nodes, the threads of users and keepers, and their common time.

    Attributes:
        network: The nodes and the time.
        users: Threads of users, by name.
        keepers: Threads that keepers have started.
    """

    def __init__(self) -> None:
        self._patch = pytest.MonkeyPatch()
        self.network = Network(3, self._patch)
        self.users = {name: User(name) for name in ("ann", "bob", "eve")}
        self.keepers: list[KeepersThread] = []
        self.redlock().close()  # which patches the rest
        self._patch.setattr(dispatch, "start_thread", self._start_keeper)
        self._patch.setattr(keeper_thread, "Wakeup", _Wakeup)
        sleep = SimpleNamespace(original=lambda *_: _sleep, is_green=native.is_green)
        self._patch.setattr(keeper_thread, "native", sleep)

    def redlock(self, **options: Any) -> TaskLock:
        """Return a client of the nodes."""
        started = dispatch.start_thread
        redlock = self.network.redlock(clock=Clock(self.network), **options)
        self._patch.setattr(dispatch, "start_thread", started)
        return redlock

    def _start_keeper(self, run: Callable[[], None], name: str) -> None:
        self.keepers.append(KeepersThread(partial(dispatch.run_as_own, run), self.network))

    def pass_(self, seconds: float) -> None:
        """Let time pass, and each keeper do what it does then."""
        network = self.network
        end = network.now() + seconds
        while True:
            for keeper in self.keepers:
                if not keeper.is_over and keeper.wakes_at <= network.now():
                    keeper.go_on()
            self.keepers = [keeper for keeper in self.keepers if not keeper.is_over]
            if network.now() >= end:
                return
            wakes_at = min([keeper.wakes_at for keeper in self.keepers], default=end)
            network.pass_(max(0.001, min(end, wakes_at) - network.now()))

    def fork(self, user: str, child: Callable[[], object]) -> str:
        """Call `child` in a child that is forked in a user's thread; return its error, or ''."""
        told: list[str] = []
        error = self.users[user].do(lambda: told.append(in_a_child(child)))
        assert error is None, repr(error)
        return told[0]

    def close(self) -> None:
        """End all threads."""
        for keeper in self.keepers:
            keeper.stop()
        for user in self.users.values():
            user.leave()
        self._patch.undo()


class Clock:
    """The network's clock, as part of a pickle: it is the same one there."""

    network: Network

    def __init__(self, network: Network) -> None:
        type(self).network = network

    def __reduce__(self) -> tuple[Callable[[], Clock], tuple[()]]:
        return _clock, ()

    def now(self) -> float:
        return self.network.now()

    def wall_us(self) -> int:
        return self.network.wall_us()

    def sleep(self, seconds: float) -> None:
        self.network.sleep(seconds)


def _clock() -> Clock:
    return Clock(Clock.network)


def in_a_child(child: Callable[[], object]) -> str:
    """Call `child` in a forked child; return its error, or ''."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        # The other threads stand still, and hold nothing that the child needs.
        pid = os.fork()  # noqa: TID251
    if not pid:
        try:
            child()
        except BaseException:  # noqa: BLE001  # it is told to the parent
            with contextlib.suppress(BaseException):
                os.write(writing, traceback.format_exc()[-4000:].encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:  # noqa: PTH123  # a descriptor
        told = pipe.read().decode()
    os.waitpid(pid, 0)
    return told
