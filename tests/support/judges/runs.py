"""What a project's tasks noted, as runs: which overlapped, and in which order their tokens are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from tests.support.processes.inside import Note


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a body.

    Attributes:
        key: What was locked.
        task_id: Of the task.
        token: Its fencing token.
        began: When it noted "begin", seconds.
        ended: When it noted "end", or its process died; infinite if neither is known.
        is_whole: Whether it came to its end.
    """

    key: str
    task_id: str | None
    token: int
    began: float
    ended: float
    is_whole: bool


def runs_in(notes: Iterable[Note], deaths: Mapping[int, float] | None = None) -> list[Run]:
    """Return the runs, in the order they began; their notes "begin" and "end" name the `key`.

    Args:
        notes: All notes.
        deaths: When which process was killed.
    """
    ended: dict[tuple[str | None, int | None], float] = {}
    begun: list[Note] = []
    for note in notes:
        if note.event == "begin":
            begun.append(note)
        elif note.event == "end":
            ended[note.task_id, note.token] = note.at
    return [
        Run(
            note.more["key"],
            note.task_id,
            note.token or 0,
            note.at,
            ended.get((note.task_id, note.token), (deaths or {}).get(note.pid, float("inf"))),
            (note.task_id, note.token) in ended,
        )
        for note in sorted(begun, key=lambda note: note.at)
    ]


def disorders(runs: Iterable[Run]) -> list[tuple[Run, Run]]:
    """Return each pair of one key's runs that overlap, or whose tokens do not grow."""
    by_key: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_key[run.key].append(run)
    return [
        (earlier, later)
        for of_one_key in by_key.values()
        for earlier, later in pairwise(of_one_key)
        if earlier.ended > later.began or earlier.token >= later.token
    ]
