"""The judge of chaos around whole tasks: when leases were valid, by what their holders wrote down.

Times are seconds on the boot-time clock, which all processes of a machine share.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from celery_redlock.redlock.clock import SystemClock
from tests.support.processes.inside import Note

from .fight import Hold, disorders, overlaps, twins


def boot_offset() -> float:
    """Return what to add to the monotonic time of a note."""
    clock = SystemClock()
    # Whatever comes between the two makes a difference smaller.
    return max(clock.now() - time.monotonic() for _ in range(100))


@dataclass(frozen=True, slots=True)
class Write:
    """A write to the fenced register."""

    key: str
    token: int
    is_accepted: bool
    invoked: float
    completed: float


@dataclass
class Judgement:
    """What came of the runs of a time.

    Attributes:
        acquisitions: Leases that were had.
        overlaps: Pairs of leases of one key that were valid at the same time.
        disorders: Leases whose token is not above one that was had before they were asked for.
        twins: Tokens that were had more than once for one key.
        refused: Writes that the register refused although the lease was valid all the time.
        stale: Writes that it refused of holders whose lease was over: the token's purpose.
        lost: Calls that neither ran, nor were skipped, nor failed.
        idle_skips: Calls that were skipped for a holder whose lease had been over for long.
        outcomes: Calls by what became of them.
    """

    acquisitions: int = 0
    overlaps: list[str] = field(default_factory=list)
    disorders: list[str] = field(default_factory=list)
    twins: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    stale: int = 0
    lost: list[str] = field(default_factory=list)
    idle_skips: list[str] = field(default_factory=list)
    outcomes: dict[str, int] = field(default_factory=dict)

    @property
    def unfenced(self) -> list[str]:
        """What no fault may bring about, be it outside of the fault model."""
        return [*self.disorders, *self.twins]

    @property
    def violations(self) -> list[str]:
        """What no fault inside of the fault model may bring about, whatever the broker loses."""
        return [*self.overlaps, *self.unfenced, *self.refused, *self.idle_skips]

    def figures(self) -> dict[str, Any]:
        """Return counts."""
        return {
            name: len(value) if isinstance(value, list) else value
            for name, value in asdict(self).items()
        }


def holds_of(notes: Sequence[Note], deaths: Mapping[int, float]) -> dict[str, list[Hold]]:
    """Return when which lease was valid, by key.

    Args:
        notes: "begin", "valid" and "end" of each run, with `key`, `asked_at` and `until`.
        deaths: When which process was killed, monotonic seconds.
    """
    offset = boot_offset()
    ended = {
        (note.more["key"], note.token): note.at + offset for note in notes if note.event == "end"
    }
    until: dict[tuple[str, int | None, str | None], float] = defaultdict(float)
    for note in notes:
        if note.event in ("begin", "valid"):
            run = (note.more["key"], note.token, note.task_id)
            until[run] = max(until[run], note.more["until"])
    found: dict[str, list[Hold]] = defaultdict(list)
    for note in notes:
        if note.event == "begin":
            key, won_at = note.more["key"], note.at + offset
            over = [
                until[key, note.token, note.task_id],
                ended.get((key, note.token), math.inf),
                deaths.get(note.pid, math.inf) + offset,
            ]
            hold = Hold(note.pid, note.token or 0, note.more["asked_at"], won_at, min(over))
            found[key].append(hold)
    return found


def writes_of(notes: Iterable[Note]) -> list[Write]:
    """Return what was written to the register."""
    return [
        Write(
            note.more["key"],
            note.token or 0,
            note.more["accepted"],
            note.more["invoked"],
            note.more["completed"],
        )
        for note in notes
        if note.event == "write"
    ]


def judge_tasks(
    notes: Sequence[Note],
    deaths: Mapping[int, float],
    *,
    grace_s: float,
    is_judged: Callable[[str], bool] = lambda key: True,
) -> Judgement:
    """Judge the runs and calls of some keys.

    Args:
        notes: All that tasks and publishers noted.
        deaths: When which process was killed, monotonic seconds.
        grace_s: How long a lock may stand after its holder's last sign of life, seconds.
        is_judged: Whether a key counts.
    """
    key_of = {note.more["call"]: note.more["key"] for note in notes if note.event == "call"}
    notes = [
        note
        for note in notes
        if is_judged(note.more.get("key") or key_of.get(note.more.get("call"), ""))
    ]
    judgement = Judgement()
    holds = holds_of(notes, deaths)
    for key, of_key in holds.items():
        judgement.acquisitions += len(of_key)
        judgement.overlaps += [f"{key}: {pair}" for pair in overlaps(of_key)]
        judgement.disorders += [f"{key}: {pair}" for pair in disorders(of_key)]
        judgement.twins += [f"{key}: {token}" for token in twins(of_key)]
    valid = {(key, hold.token): hold for key, of_key in holds.items() for hold in of_key}
    for write in writes_of(notes):
        if write.is_accepted:
            continue
        hold = valid.get((write.key, write.token))
        if hold and hold.won_at <= write.invoked and write.completed <= hold.until:
            judgement.refused.append(f"{write}, although its lease was valid: {hold}")
        else:
            judgement.stale += 1
    _judge_calls(notes, deaths, judgement, grace_s)
    return judgement


def _judge_calls(
    notes: Sequence[Note], deaths: Mapping[int, float], judgement: Judgement, grace_s: float
) -> None:
    """Each call that the broker confirmed has run, failed, or was skipped for somebody."""
    published, fates = set(), {}
    alive: dict[str, float] = defaultdict(float)
    for note in notes:
        if note.event == "published":
            published.add(note.more["call"])
        elif note.event in ("begin", "valid", "write", "end") and note.task_id:
            alive[note.task_id] = max(alive[note.task_id], note.at)
        if note.event == "end":
            fates[str(note.task_id)] = "ran"
        elif note.event in ("failed", "dropped"):
            fates.setdefault(note.more["call"], note.event)
    for note in notes:
        if note.event == "conflict" and note.more["outcome"] == "skip":
            fates.setdefault(note.more["call"], "skipped")
            holder = str(note.more["holder"]).partition("@")[0]
            if holder not in alive:  # it began, and could not say so any more
                continue
            if note.at > alive[holder] + grace_s:
                judgement.idle_skips.append(f"{note.more} {note.at - alive[holder]:.1f} s late")
    judgement.lost += sorted(published - fates.keys())
    judgement.outcomes = dict(Counter(fates[call] for call in published & fates.keys()))
