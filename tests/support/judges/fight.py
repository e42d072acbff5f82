"""Processes that fight for one lock, and the judge of what they say they held.

    python -m tests.support.judges.fight \\
        FOLDER PROCESSES SECONDS CRASHES CONFIRMS REGISTER FENCED URL...

Each process writes down when it held the lock, and with which token, on the boot-time clock that
all of them share. `CRASHES` is the probability that a holder kills itself instead of going on.
If `REGISTER` is a URL, not '', holders count up a register there, some of them too late; it refuses
those if `FENCED` is 1.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import redis

from celery_redlock.redlock import Lease, LeaseLost, LockHeld, QuorumUnavailable
from celery_redlock.redlock.acquisition import Acquisition
from celery_redlock.redlock.clock import SystemClock
from celery_redlock.redlock.task_lock import TaskLock
from tests.support.judges.fenced_register import Book, Register
from tests.support.processes.forks import keep_forked
from tests.support.root import ROOT
from tests.support.whole_lines import Journal, whole_lines

KEY = "ring"
TTLS = [0.02, 0.05, 0.2, 0.6]
LONGEST_TTL = max(TTLS)
A_DAY = 86_400.0


# ---- the judge


@dataclass(frozen=True, slots=True)
class Hold:
    """What one process says of one lease: seconds on the clock of all.

    Attributes:
        who: The process.
        token: Its fencing token.
        asked_at: When the attempt that won began.
        won_at: When it was known to have won.
        until: When it ended: its deadline after all extensions, or its release if that was first.
    """

    who: int
    token: int
    asked_at: float
    won_at: float
    until: float


def overlaps(holds: Sequence[Hold]) -> list[tuple[Hold, Hold]]:
    """Return those that were held at the same time.

    A hold whose process noted it only after its deadline held nothing.
    """
    found = []
    latest: Hold | None = None
    in_time = (hold for hold in holds if hold.won_at < hold.until)
    for hold in sorted(in_time, key=lambda hold: hold.won_at):
        if latest and hold.won_at < latest.until:
            found.append((latest, hold))
        if latest is None or hold.until > latest.until:
            latest = hold
    return found


def disorders(holds: Sequence[Hold]) -> list[tuple[int, Hold]]:
    """Return those whose token is not larger than one that was won before they were asked for."""
    in_order = sorted(holds, key=lambda hold: hold.won_at)
    won_at = [hold.won_at for hold in in_order]
    largest = list(accumulate((hold.token for hold in in_order), max))
    found = []
    for hold in holds:
        before = bisect_left(won_at, hold.asked_at)
        if before and largest[before - 1] >= hold.token:
            found.append((largest[before - 1], hold))
    return found


def twins(holds: Sequence[Hold]) -> list[int]:
    """Return the tokens that were had more than once."""
    tokens = [hold.token for hold in holds]
    return [token for token in set(tokens) if tokens.count(token) > 1]


def read_holds(folder: Path) -> list[Hold]:
    """Return what all processes wrote down."""
    holds: list[Hold] = []
    for file in folder.glob("*.jsonl"):
        story: list[Hold] = []
        latest: dict[int, int] = {}
        for line in whole_lines(file):
            said = json.loads(line)
            if "won_at" in said:
                # Not in place of one that had the same token: that is what `twins` is for.
                latest[said["token"]] = len(story)
                story.append(Hold(**said))
                continue
            hold = story[latest[said["token"]]]
            until = max(hold.until, said.get("extended", 0.0))
            until = min(until, said.get("over", until))
            story[latest[hold.token]] = replace(hold, until=until)
        holds += story
    return holds


def fight(
    folder: Path,
    urls: Sequence[str],
    *,
    processes: int,
    seconds: float,
    crashes: float,
    confirms: bool = True,
    register: str = "",
    is_fenced: bool = True,
) -> list[Hold]:
    """Let processes fight, and return what each of them held.

    Args:
        folder: Where they write.
        urls: The nodes.
        processes: How many fight.
        seconds: For how long.
        crashes: Probability that a holder kills itself.
        confirms: Whether a token is confirmed: if not, the protocol is known to be wrong.
        register: URL of a server with a register that holders count up: its history is in the
            folder, too (`fenced_register.history_in`). '': none.
        is_fenced: Whether it refuses whoever was overtaken.
    """
    numbers = [str(processes), str(seconds), str(crashes), str(int(confirms))]
    arguments = [str(folder), *numbers, register, str(int(is_fenced)), *urls]
    subprocess.run(
        [sys.executable, "-m", "tests.support.judges.fight", *arguments], cwd=ROOT, check=True
    )
    return read_holds(folder)


# ---- the fighters


class StandingWallClock(SystemClock):
    """A wall clock that stands still: all propose the same token, and time makes none larger."""

    def __init__(self) -> None:
        self.stands_at = time.time_ns() // 1000

    def wall_us(self) -> int:
        """Return the same µs always."""
        return self.stands_at


class Fighter:
    """One process."""

    def __init__(
        self,
        folder: Path,
        urls: Sequence[str],
        crashes: float,
        clock: StandingWallClock,
        register: Register | None,
    ) -> None:
        self.redlock = TaskLock(
            urls, restart_guard=False, node_timeout=0.5, max_ttl=LONGEST_TTL,
            max_clock_skew=A_DAY, clock=clock,
        )  # fmt: skip
        self.clock = clock
        self.crashes = crashes
        self.register = register
        self.chance = random.Random(os.getpid())
        self.say = Journal(folder / f"{os.getpid()}.jsonl").say

    def fight_until(self, end: float) -> None:
        """Take the lock as often as possible."""
        while self.clock.now() < end:
            self.redlock._acquisition._highest_seen = 0  # as one that has just been started
            try:
                self.hold(self.redlock.acquire(KEY, self.chance.choice(TTLS)))
            except (LockHeld, QuorumUnavailable, LeaseLost):
                time.sleep(self.chance.uniform(0, 0.1))

    def hold(self, lease: Lease) -> None:
        """Do with it what holders do."""
        won_at = self.clock.now()
        self.say(
            who=os.getpid(), token=lease.token, asked_at=lease.acquired_at, won_at=won_at,
            until=lease.deadline,
        )  # fmt: skip
        if self.chance.random() < self.crashes:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.register:
            if not self.register.claim(KEY, lease.token):
                return  # it was overtaken before it did anything
            self.count = int(self.register.read(KEY) or 0)
        self.chance.choice([self.hurry, self.hurry, self.renew, self.oversleep, self.forget])(lease)

    def write(self, lease: Lease) -> None:
        """Count up."""
        if self.register:
            self.register.write(KEY, lease.token, str(self.count + 1))

    def hurry(self, lease: Lease) -> None:
        """Give it back at once."""
        self.write(lease)
        self.release_lease(lease)

    def renew(self, lease: Lease) -> None:
        """Hold it for longer than its ttl."""
        for _ in range(4):
            time.sleep(lease.ttl_ms / 3000)
            self.redlock.extend(lease)
            self.say(token=lease.token, extended=lease.deadline)
        self.write(lease)
        self.release_lease(lease)

    def oversleep(self, lease: Lease) -> None:
        """Wake up when it is over, and do all that must do no harm any more."""
        time.sleep(lease.remaining() + self.chance.uniform(0.01, 0.2))
        self.write(lease)
        if self.redlock.extend_all([lease]) == [None]:
            raise AssertionError("revived")
        self.redlock.release(lease)

    def forget(self, lease: Lease) -> None:
        """Let it expire."""
        self.write(lease)

    def release_lease(self, lease: Lease) -> None:
        """Release it, sometimes keeping the key for a while."""
        self.say(token=lease.token, over=self.clock.now())
        self.redlock.release(lease, keep=self.chance.choice([0, 0, 0, 0.05]))


def main(
    folder: Path,
    processes: int,
    seconds: float,
    crashes: float,
    *,
    register: str,
    is_fenced: bool,
    urls: list[str],
) -> None:
    """Keep so many processes fighting for so long."""
    clock = StandingWallClock()
    end = clock.now() + seconds

    def fight_once() -> None:
        used = None
        if register:
            client = redis.Redis.from_url(register)
            used = Register(client, Book(folder), is_fenced=is_fenced)
        Fighter(folder, urls, crashes, clock, used).fight_until(end)

    keep_forked(fight_once, processes, end)


if __name__ == "__main__":
    logging.disable()  # sixty-four processes have much to say about a dead node
    if sys.argv[5] == "0":
        Acquisition._confirm = lambda *_: True  # type: ignore[method-assign]
    main(
        Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]),
        register=sys.argv[6], is_fenced=sys.argv[7] == "1", urls=sys.argv[8:],
    )  # fmt: skip
