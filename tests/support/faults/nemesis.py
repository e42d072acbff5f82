"""Faults by name: struck and healed, alone or in combinations that a seed repeats.

schedule = alone(nemeses, seed=1, seconds=1.5) + combined(nemeses, seed=1, total=60.0)
with Strikes(schedule) as strikes:
    strikes.wait()
strikes.faults  # what was struck, and when
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from celery_redlock.redlock.clock import SystemClock

if TYPE_CHECKING:
    from typing_extensions import Self

Heal = Callable[[], object]
_SHORTEST_S = 0.3


@dataclass(frozen=True, slots=True)
class Nemesis:
    """One kind of fault.

    Attributes:
        name: Unique among those of a schedule.
        strike: Begins the fault, with a choice of victims, and returns what ends it.
        outside: The assumption that it breaks; '': it lies inside of the fault model.
        seconds: For how long it lasts at least, whatever the schedule says.
    """

    name: str
    strike: Callable[[random.Random], Heal]
    outside: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault of a schedule.

    Attributes:
        at: When it begins, seconds after the schedule.
        lasts: For how long, seconds.
        nemesis: What strikes.
        seed: Chooses its victims.
    """

    at: float
    lasts: float
    nemesis: Nemesis
    seed: int


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that was struck: seconds on the boot-time clock."""

    name: str
    began: float
    ended: float
    outside: str = ""


def together(heals: Sequence[Heal]) -> Heal:
    """Return what ends all of these faults."""

    def heal() -> None:
        for one in heals:
            one()

    return heal


def alone(
    nemeses: Sequence[Nemesis], *, seed: int, seconds: float, rest: float = 0.5
) -> list[Strike]:
    """Return a schedule in which each strikes once, one after the other, in their order.

    Args:
        nemeses: Which.
        seed: Chooses the victims.
        seconds: For how long each lasts.
        rest: Seconds between the end of one and the next.
    """
    chance, at, schedule = random.Random(seed), rest, []
    for nemesis in nemeses:
        lasts = max(seconds, nemesis.seconds)
        schedule.append(Strike(at, lasts, nemesis, chance.getrandbits(32)))
        at += lasts + rest
    return schedule


def combined(
    nemeses: Sequence[Nemesis], *, seed: int, total: float, lasts: float = 2.0, every: float = 0.7
) -> list[Strike]:
    """Return a schedule of faults at random moments, several at a time, the same for a seed.

    Args:
        nemeses: From which it chooses; none of them twice at the same time.
        seed: Chooses everything.
        total: Seconds.
        lasts: For how long a fault lasts on average, seconds.
        every: After how long the next begins on average, seconds.
    """
    chance, at, schedule = random.Random(seed), 0.0, []
    busy_until: dict[str, float] = {}
    while (at := at + chance.expovariate(1 / every)) < total:
        nemesis = chance.choice(nemeses)
        long = max(nemesis.seconds, chance.uniform(_SHORTEST_S, 2 * lasts))
        number = chance.getrandbits(32)
        if at >= busy_until.get(nemesis.name, 0.0):
            schedule.append(Strike(at, long, nemesis, number))
            busy_until[nemesis.name] = at + long + _SHORTEST_S
    return schedule


def later(schedule: Sequence[Strike], seconds: float) -> list[Strike]:
    """Return the same schedule, begun later."""
    return [replace(strike, at=strike.at + seconds) for strike in schedule]


class Strikes:
    """Strikes by a schedule; started by `with`, which ends when all is healed.

    Args:
        schedule: What strikes when.
        on_strike: Called with each strike before it begins.

    Attributes:
        faults: What was struck so far and is healed again.
        errors: What went wrong with striking and healing: the test is at fault.
    """

    def __init__(
        self, schedule: Sequence[Strike], on_strike: Callable[[Strike], object] = lambda _: None
    ) -> None:
        self.faults: list[Fault] = []
        self.errors: list[str] = []
        self._schedule = sorted(schedule, key=lambda strike: strike.at)
        self._on_strike = on_strike
        self._clock = SystemClock()
        self._under_way: list[tuple[float, Strike, float, Heal]] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="strikes", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def wait(self) -> None:
        """Return when all has been struck and healed."""
        self._thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        left = list(self._schedule)
        try:
            while (left or self._under_way) and not self._is_over.is_set():
                healing = [at for at, *_ in self._under_way]
                at = min([*healing, *(strike.at for strike in left[:1])])
                if self._is_over.wait(max(0.0, began + at - time.monotonic())):
                    return
                if healing and at == min(healing):
                    self._heal(healing.index(at))
                else:
                    self._strike(left.pop(0))
                # On a slow machine all that follows is later, and in the same order.
                began = max(began, time.monotonic() - at)
        finally:
            while self._under_way:
                self._heal(0)

    def _strike(self, strike: Strike) -> None:
        self._on_strike(strike)
        struck_at = self._clock.now()
        try:
            heal = strike.nemesis.strike(random.Random(strike.seed))
        except Exception as error:  # noqa: BLE001 - told to whoever waits
            self.errors.append(f"{strike.nemesis.name} did not strike: {error!r}")
            return
        self._under_way.append((strike.at + strike.lasts, strike, struck_at, heal))

    def _heal(self, index: int) -> None:
        _, strike, struck_at, heal = self._under_way.pop(index)
        nemesis = strike.nemesis
        try:
            heal()
        except Exception as error:  # noqa: BLE001 - told to whoever waits
            self.errors.append(f"{nemesis.name} did not heal: {error!r}")
        fault = Fault(nemesis.name, struck_at, self._clock.now(), nemesis.outside)
        self.faults.append(fault)
