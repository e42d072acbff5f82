"""Virtual time: tasks in greenlets, of which one runs at a time, and events in order.

Time passes only while every task waits. Nothing else decides who is next, so that a run repeats
exactly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from greenlet import getcurrent, greenlet

_MOST_EVENTS = 50_000
_NEVER = 1e8
_RUNNERS = 30
"""More are seldom needed at once."""


class Stuck(Exception):
    """A run does not come to an end."""


class Crashed(BaseException):
    """The process does not exist any more; raised only so that its greenlets end."""


class Interrupted(BaseException):
    """A time limit strikes a client."""


class Exiting(Interrupted):
    """An exception that nobody handles ends the process, as one of a handler of SIGTERM does."""


class _Runner:
    """A greenlet that runs one task after the other: to make one takes ten times as long.

    Attributes:
        greenlet: The greenlet.
        run: What it runs when it is switched to; it returns whether that ended in order. Else
            Celery may have left something behind for this greenlet.
    """

    __slots__ = ("greenlet", "run")

    def __init__(self) -> None:
        self.greenlet = greenlet(self._go_on)
        self.run: Callable[[], bool] = bool

    def _go_on(self) -> None:
        is_in_order = True
        while is_in_order:
            self.run = bool  # a whole world may hang on what it has run
            _idle.runners.append(self)
            self.greenlet.parent.switch()
            is_in_order = self.run()


class _Idle(threading.local):
    """Runners of a thread that have nothing to run."""

    def __init__(self) -> None:
        self.runners: list[_Runner] = []

    def fill(self) -> None:
        """Start runners. Not where one is needed: it would begin with the recursion depth there."""
        while len(self.runners) < _RUNNERS:
            _Runner().greenlet.switch()

    def greenlet(self, run: Callable[[], bool], hub: greenlet) -> greenlet:
        """Return a greenlet that runs this when it is switched to, and then switches to `hub`."""
        if not self.runners:
            return greenlet(run, hub)
        runner = self.runners.pop()
        runner.run = run
        runner.greenlet.parent, runner.greenlet.gr_context = hub, None
        return runner.greenlet


_idle = _Idle()


class Task:
    """One thread of a simulated process.

    Attributes:
        process: The process that it belongs to.
        stalled_until: Time until which it does not run, seconds.
        is_over: Whether it has returned.
    """

    __slots__ = ("greenlet", "is_over", "name", "number", "process", "stalled_until")

    def __init__(self, process: Any, name: str, greenlet_: greenlet) -> None:
        self.process = process
        self.name = name
        self.greenlet = greenlet_
        self.number = 0
        self.stalled_until = 0.0
        self.is_over = False


class World:
    """Time, tasks and what is to happen.

    Attributes:
        time: Seconds.
        current: The task that runs; None: an event is handled.
        tasks: Every task that was started and has not ended.
        after_switch: Called whenever a task has stopped running; None: nothing is.
        trace: Lines that say what happened; None: nothing is noted.
    """

    def __init__(self, *, is_traced: bool = False) -> None:
        self.time = 1000.0
        self.current: Task | None = None
        self.tasks: list[Task] = []
        self.after_switch: Callable[[], None] | None = None
        self.trace: list[str] | None = [] if is_traced else None
        self.error: BaseException | None = None
        # What to call with what, or which task is to go on if it still waits for that.
        self._events: list[tuple[float, int, Any, Any]] = []
        self._count = 0
        self._hub = getcurrent()
        _idle.fill()

    # ---- what happens

    def at(self, time: float, do: Callable[[Any], None], argument: Any = None) -> None:
        """Call `do` with `argument` at this time."""
        self._count = count = self._count + 1
        heappush(self._events, (time, count, do, argument))

    def run(self) -> None:
        """Let time pass until nothing more is to happen.

        Raises:
            Stuck: Something happens again and again.
        """
        while task := self._next():
            task.greenlet.switch()
            self.current = None
            if look := self.after_switch:
                look()
        if self.error is not None:
            raise self.error

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.time - 1000.0:10.6f} {text}")

    # ---- tasks

    def start(self, process: Any, name: str, run: Callable[[], object]) -> Task:
        """Start a task now."""

        def whole() -> bool:
            is_in_order = False
            try:
                run()
                is_in_order = True
            except Crashed:
                pass
            except BaseException as error:  # noqa: BLE001  # the run fails with it
                self.error = self.error or error
            task.is_over = True
            self.tasks.remove(task)
            return is_in_order

        task = Task(process, name, _idle.greenlet(whole, self._hub))
        self.tasks.append(task)
        self.wake(task)
        return task

    def wait(self, until: float) -> None:
        """Suspend the running task until then, or until it is woken."""
        task = self.current
        assert task is not None, "only a task waits"
        process = task.process
        if process.is_dead:
            raise Crashed
        task.number = number = task.number + 1
        if until < _NEVER:
            self._count = count = self._count + 1
            heappush(self._events, (until, count, task, number))
        self.current = None
        if look := self.after_switch:
            look()
        # From task to task, or not at all if this one is the next: every switch takes its time.
        following = self._next()
        if following is not task:
            (following.greenlet if following else self._hub).switch()
        if process.is_dead:
            raise Crashed

    def wake(self, task: Task) -> None:
        """Let a task that waits go on."""
        self._count = count = self._count + 1
        heappush(self._events, (self.time, count, task, task.number))

    def _next(self) -> Task | None:
        """Let time pass until a task is to go on, and return it; None: the run is over."""
        events = self._events
        while events and self.error is None:
            time, count, do, argument = heappop(events)
            if time > self.time:  # noqa: PLR1730  # a call would take longer
                self.time = time
            if count > _MOST_EVENTS:
                self.error = Stuck(f"{_MOST_EVENTS} events, and still more")
            elif type(do) is not Task:
                try:
                    do(argument)
                except BaseException as error:  # noqa: BLE001  # the run fails with it
                    self.error = error
            elif argument == do.number and not (do.is_over or do.process.is_dead):
                goes_on_at = max(do.stalled_until, do.process.stalled_until)
                if goes_on_at <= self.time:
                    do.number += 1
                    self.current = do
                    return do
                self._count = count = self._count + 1
                heappush(events, (goes_on_at, count, do, argument))
        return None
