"""Processes that contend for one lock, whichever package's, and write down what they had.

    python -m tests.support.processes.contenders FOLDER LOCKER PROCESSES SECONDS URL...

A holder works for a while, writes to what the lock protects, and releases the lock: it looks at no
deadline, as most code does. `takings_in` reads what they wrote down.
"""

from __future__ import annotations

import json
import logging
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from celery_redlock.redlock.clock import SystemClock
from tests.support.eventually import eventually
from tests.support.root import ROOT
from tests.support.whole_lines import Journal, whole_lines

from .forks import keep_forked
from .lockers import LOCKERS, TTL_S, Held
from .start import kill_group

if TYPE_CHECKING:
    from typing_extensions import Self

KEY = "chaos-ring"
_PAUSE_S = 0.03


@dataclass(frozen=True, slots=True)
class Taking:
    """One lock that was had: seconds on the boot-time clock.

    Attributes:
        who: The process.
        token: Its fencing token; None: the package has none.
        asked_at: When it was asked for.
        won_at: When it was had.
        until: Until when it might be trusted, by the package's own word.
        wrote_at: When its holder wrote to what it protects; infinite: it never did.
        released_at: When its release began; infinite: never.
    """

    who: int
    token: int | None
    asked_at: float
    won_at: float
    until: float
    wrote_at: float = math.inf
    released_at: float = math.inf

    @property
    def ended(self) -> float:
        """When it could not be trusted any more."""
        return min(self.until, self.released_at)


class Contenders:
    """So many processes, kept at it for so long; started by `with`, which ends them.

    Args:
        folder: Where they write.
        locker: By which lock.
        urls: Its servers.
        processes: How many.
        seconds: For how long.

    Attributes:
        deaths: When which was killed, monotonic seconds.
    """

    def __init__(
        self, folder: Path, locker: str, urls: Sequence[str], *, processes: int, seconds: float
    ) -> None:
        self.deaths: dict[int, float] = {}
        self._folder = folder
        arguments = [str(folder), locker, str(processes), str(seconds), *urls]
        self._command = [sys.executable, "-m", __name__, *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, cwd=ROOT, start_new_session=True)
        eventually(self.pids, "they have begun")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        for pid in self.pids():
            os.kill(pid, signal.SIGCONT)
        try:
            assert self._process.wait(60.0) == 0
        finally:
            kill_group(self._process)

    def pids(self) -> list[int]:
        """Return those that live."""
        assert self._process is not None
        try:
            children = psutil.Process(self._process.pid).children()
        except psutil.NoSuchProcess:
            return []
        return [child.pid for child in children if child.status() != psutil.STATUS_ZOMBIE]

    def holders(self) -> list[int]:
        """Return those that live and have the lock by what they wrote down, or else all."""
        living = self.pids()
        return [pid for pid in living if _is_holding(self._folder / _file_of(pid))] or living


def _file_of(pid: int) -> str:
    return f"{pid}.takings"


def _is_holding(file: Path) -> bool:
    lines = whole_lines(file) if file.exists() else []
    return bool(lines) and "won_at" in lines[-1]


def takings_in(folder: Path) -> list[Taking]:
    """Return what all processes wrote down."""
    found = []
    for file in sorted(folder.glob("*.takings")):
        lines = [json.loads(line) for line in whole_lines(file)]
        story: dict[int, dict[str, float]] = {}
        for line in lines:
            story.setdefault(line.pop("number"), {}).update(line)
        found += [Taking(**told) for told in story.values()]  # type: ignore[arg-type]
    return found


def _contend(folder: Path, locker: str, urls: Sequence[str], end: float) -> None:
    acquire, chance = LOCKERS[locker](urls), random.Random(os.getpid())
    now, number = SystemClock().now, 0
    journal = Journal(folder / _file_of(os.getpid()))

    def say(**told: float | None) -> None:
        journal.say(number=number, **told)

    while now() < end:
        asked_at = now()
        held: Held | None = None
        try:
            held = acquire(KEY)
        except Exception:  # noqa: BLE001 - a server is down, and each package says so otherwise
            time.sleep(_PAUSE_S)
        if held is None:
            time.sleep(chance.uniform(0, 2 * _PAUSE_S))
            continue
        number += 1
        say(who=os.getpid(), token=held.token, asked_at=asked_at, won_at=now(), until=held.until)
        time.sleep(chance.choice([0.02, 0.3 * TTL_S, 0.8 * TTL_S]))
        say(wrote_at=now())
        say(released_at=now())
        try:
            held.release()
        except Exception:  # noqa: BLE001 - the same
            time.sleep(_PAUSE_S)


def main(folder: Path, locker: str, processes: int, seconds: float, urls: list[str]) -> None:
    """Keep so many processes at it for so long."""
    LOCKERS[locker](urls)  # what it imports is imported once, and not by each of them
    end = SystemClock().now() + seconds
    keep_forked(lambda: _contend(folder, locker, urls, end), processes, end)


if __name__ == "__main__":
    logging.disable()  # of dead nodes each package has much to say
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5:])
