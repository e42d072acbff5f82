"""A simulated process: its clock, its threads, and what strikes it between two lines."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tests.support.fakes.simulated_node import EPOCH_US

from .world import Crashed, Exiting, Interrupted, Task, World

if TYPE_CHECKING:
    from celery_redlock.redlock.keeper import Keeper

    from .poller import Poller

_FIRST_FD = 10_000
_RAISED = {"interrupt": Interrupted, "exit": Exiting}
"""By kind of strike, what the main thread gets."""


class End(Protocol):
    """What a descriptor stands for: one end of a connection, or of a pipe.

    Attributes:
        poller: Who waits for it.
    """

    poller: Poller | None

    def is_readable(self) -> bool: ...

    def is_writable(self) -> bool: ...

    def close(self) -> None: ...


class Strike(NamedTuple):
    """What strikes a process at one of its steps.

    Attributes:
        step: Number of the step.
        kind: "pause" (all threads), "stall" (one thread), "crash", or what strikes the main
            thread: "interrupt", or "exit", of which the process ends.
        seconds: How long it lasts.
    """

    step: int
    kind: str
    seconds: float


class Process:
    """One process, and its clock: what `celery_redlock.redlock.clock.Clock` is to the lock.

    A step is each place where the process meets the world: it reads a clock, writes to a socket,
    or waits. Between two steps nothing that it does can be seen.

    Args:
        world: Time.
        name: Name in traces.
        rate: Seconds that its clock counts in a second.
        wall_ahead: By how much its wall clock is ahead, seconds.
        wall_tick: Interval at which its wall clock moves on, seconds; 0.0: always.
        strikes: What strikes it, in order of steps.

    Attributes:
        rate: As given.
        main: The thread that an interrupt strikes.
        is_dead: Whether it has crashed.
        died_at: When, seconds.
        stalled_until: Time until which none of its threads runs, seconds.
        ends: What its descriptors stand for.
        keepers: Those of its locks.
        last_struck: Time at which the latest strike ends, seconds.
    """

    def __init__(
        self, world: World, name: str, rate: float, wall_ahead: float, wall_tick: float,
        strikes: list[Strike], chance: random.Random,
    ) -> None:  # fmt: skip
        self.world = world
        self.name = name
        self.chance = chance
        self.main: Task | None = None
        self.is_dead = False
        self.died_at = math.inf
        self.is_interruptible = False
        self.stalled_until = 0.0
        self.ends: dict[int, End] = {}
        self.keepers: list[Keeper] = []
        self.struck: list[str] = []
        self.last_struck = 0.0
        self.rate = rate
        self._wall_ahead = wall_ahead
        self._wall_tick = wall_tick
        self._strikes = strikes[::-1]
        self._steps = 0
        self._next = strikes[0].step if strikes else math.inf
        self._fds = _FIRST_FD
        self._signal: Callable[[], object] | None = None

    # ---- its clock

    def now(self) -> float:
        """Return what its clock shows, seconds."""
        self._steps += 1
        if self._steps >= self._next:
            self._be_struck()
        return self.world.time * self.rate

    def wall_us(self) -> int:
        """Return what its wall clock shows, µs."""
        self.step()
        shown = self.world.time + self._wall_ahead
        if self._wall_tick:
            shown -= shown % self._wall_tick
        return EPOCH_US + round(shown * 1e6)

    def sleep(self, seconds: float) -> None:
        """Let time pass, by its clock."""
        self.step()
        self.world.wait(self.world.time + max(0.0, seconds) / self.rate)
        self.step()

    def true_time(self, by_clock: float) -> float:
        """Return when its clock shows this."""
        return by_clock / self.rate

    def until(self, seconds: float) -> float:
        """Return when its clock has counted so many seconds more."""
        # As a poll: it never ends before its time.
        return self.world.time + seconds / self.rate + 1e-6

    # ---- what strikes it

    def step(self) -> None:
        """Meet the world; be struck, if it is time."""
        self._steps += 1
        if self._steps >= self._next:
            self._be_struck()

    def signal(self, handle: Callable[[], object]) -> None:
        """Have the main thread call `handle` at its next step, now if it waits."""
        if not self.is_dead and self.main:
            self._signal, self._next = handle, 0
            self.world.wake(self.main)

    def _handle_signal(self) -> None:
        handle, self._signal = self._signal, None
        self._next = self._strikes[-1].step if self._strikes else math.inf
        if handle:
            handle()

    def _be_struck(self) -> None:
        if self.is_dead:
            raise Crashed
        task = self.world.current
        if self._signal and task is self.main:
            self._handle_signal()
        if self._signal or self._steps < self._next:
            return
        if task is None:
            return  # nothing of it runs
        strike = self._strikes[-1]
        exception = _RAISED.get(strike.kind)
        if exception and (task is not self.main or not self.is_interruptible):
            return  # at the next step where it can strike
        self._strikes.pop()
        self._next = self._strikes[-1].step if self._strikes else math.inf
        self.struck.append(strike.kind)
        world = self.world
        self.last_struck = max(self.last_struck, world.time + strike.seconds)
        world.note(f"{self.name} is struck at step {self._steps}: {strike.kind} {strike.seconds:g}")
        if strike.kind == "crash":
            self.die()
            raise Crashed
        if exception:
            raise exception
        if strike.kind == "pause":
            self.stalled_until = world.time + strike.seconds
        else:
            task.stalled_until = world.time + strike.seconds
        world.wait(world.time)

    def stop_strikes(self) -> None:
        """Let nothing strike any more."""
        self._strikes = []
        if not self.is_dead:
            self._next = math.inf

    def die(self) -> None:
        """End at once; the kernel closes the connections."""
        self.is_dead, self._next = True, 0
        self.died_at = min(self.died_at, self.world.time)
        for end in list(self.ends.values()):
            end.close()

    def new_fd(self, end: End) -> int:
        """Return a descriptor for `end`."""
        self._fds += 1
        self.ends[self._fds] = end
        return self._fds
