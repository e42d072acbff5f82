"""The judges of storms see what is wrong."""

from __future__ import annotations

from typing import Any

from tests.support.judges.coalesce_storm import unseen_updates
from tests.support.judges.runs import Run, disorders, runs_in
from tests.support.processes.inside import Note


def run(token: int, began: float, ended: float, key: str = "key") -> Run:
    return Run(key, f"task-{token}", token, began, ended, True)


def note(event: str, token: int, at: float, **more: Any) -> Note:
    return Note(event, f"task-{token}", token, token, 0, at, {"key": "key", **more})


A = run(1, 1.0, 2.0)


def test_one_after_the_other_is_well() -> None:
    assert disorders([A, run(2, 2.0, 3.0), run(3, 3.5, 4.0)]) == []


def test_two_at_a_time_are_seen() -> None:
    late = run(2, 1.9, 3.0)
    assert disorders([A, late]) == [(A, late)]


def test_other_keys_do_not_count() -> None:
    assert disorders([A, run(1, 1.5, 3.0, "other")]) == []


def test_a_token_that_does_not_grow_is_seen() -> None:
    late = run(1, 3.0, 4.0)
    assert disorders([A, late]) == [(A, late)]


def test_runs_are_read_from_notes_of_many_processes() -> None:
    notes = [note("begin", 2, 2.5), note("begin", 1, 1.0), note("taken", 1, 1.1), note("end", 1, 2)]
    assert runs_in([*notes, note("end", 2, 3)]) == [A, run(2, 2.5, 3.0)]


def test_a_run_without_an_end_ended_with_its_process() -> None:
    [first, second] = runs_in([note("begin", 1, 1.0), note("begin", 2, 2.0)], {1: 1.5})
    assert (first.ended, first.is_whole) == (1.5, False)
    assert (second.ended, second.is_whole) == (float("inf"), False)


# --- who relies on whom ---------------------------------------------------------------------------


def updated(version: int, returned: str) -> Note:
    return note("updated", 0, 0, version=version, returned=returned)


RAN = note("end", 1, 2.0, saw=5)


def test_an_update_that_its_task_saw_is_seen() -> None:
    assert unseen_updates([updated(5, "task-1"), RAN]) == []


def test_an_update_that_came_too_late_for_its_task_is_not() -> None:
    assert unseen_updates([updated(6, "task-1"), RAN]) == [updated(6, "task-1")]


def test_an_update_whose_task_did_not_run_is_not() -> None:
    assert unseen_updates([updated(1, "task-2"), RAN]) == [updated(1, "task-2")]


def test_a_discarded_call_relies_on_the_one_that_waited() -> None:
    turned_away = note("skipped", 2, 1.0, holder="task-1")
    assert unseen_updates([updated(5, "task-2"), turned_away, RAN]) == []
    assert unseen_updates([updated(6, "task-2"), turned_away, RAN]) == [updated(6, "task-2")]


def test_two_that_rely_on_each_other_are_not_seen() -> None:
    circle = [note("skipped", 2, 1.0, holder="task-3"), note("skipped", 3, 1.0, holder="task-2")]
    assert unseen_updates([updated(1, "task-2"), *circle]) == [updated(1, "task-2")]


def test_each_copy_that_was_turned_away_relies_on_its_holder() -> None:
    copies = [
        note("skipped", 2, at, holder=holder) for at, holder in ((1, "task-1"), (3, "task-9"))
    ]
    assert unseen_updates([updated(5, "task-2"), *copies, RAN]) == []
    assert unseen_updates([updated(5, "task-2"), *copies[::-1], RAN]) == []
    assert unseen_updates([updated(6, "task-2"), *copies, RAN]) == [updated(6, "task-2")]
