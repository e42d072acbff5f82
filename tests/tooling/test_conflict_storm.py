"""The judge of conflicts in bad weather sees what is wrong, and nothing else."""

from __future__ import annotations

from typing import Any

from tests.support.judges.conflict_storm import Account, account_of
from tests.support.processes.inside import Note

WORKER, OTHER = 11, 12


def note(event: str, at: float, call: str, token: int = 0, pid: int = WORKER, **more: Any) -> Note:
    if event in ("begin", "end"):
        return Note(event, call, token, pid, 0, at, {"key": "skip-late:a", **more})
    return Note(event, None, None, pid, 0, at, {"call": call, **more})


def published(call: str, task: str = "skip-late") -> list[Note]:
    return [note("call", 0, call, pid=1, task=task), note("published", 0.1, call, pid=1)]


def ran(call: str, at: float, token: int, **more: Any) -> list[Note]:
    return [note("begin", at, call, token, **more), note("end", at + 1, call, token, **more)]


def skipped(call: str, at: float = 1.5) -> list[Note]:
    return [note("conflict", at, call, outcome="skip")]


def judged(*notes: list[Note], deaths: dict[int, float] | None = None) -> Account:
    return account_of([one for some in notes for one in some], deaths or {})


def test_one_that_ran_and_one_that_was_skipped_are_well() -> None:
    account = judged(published("a"), published("b"), ran("a", 1, 7), skipped("b"))
    assert (account.published, account.ran, account.skipped) == ({"a", "b"}, {"a"}, {"b"})
    assert account.conflicts == {"skip": 1}
    assert not account.lost + account.vanished + account.twice + account.again
    assert not account.unended + account.disordered
    assert not account.strangers


def test_one_of_which_nothing_is_heard_is_lost() -> None:
    assert judged(published("a")).lost == ["a"]


def test_one_that_only_began_is_lost() -> None:
    account = judged(published("a"), ran("a", 1, 7)[:1], deaths={WORKER: 1.5})
    assert account.lost == ["a"]
    assert account.unended == []


def test_one_that_was_put_off_for_ever_is_lost() -> None:
    put_off = note("conflict", 1, "a", outcome="reschedule")
    assert judged(published("a"), [put_off]).lost == ["a"]


def test_one_that_is_acked_early_and_not_heard_of_vanished() -> None:
    account = judged(published("a", "skip-early"))
    assert (account.lost, account.vanished) == ([], ["a"])


def test_one_that_was_perhaps_published_need_not_run() -> None:
    made = [*published("a")[:1], note("unsure", 0.1, "a", pid=1)]
    assert judged(made).lost == []
    assert judged(made, ran("a", 1, 7)).strangers == set()


def test_one_that_the_broker_s_client_dropped_is_not_lost() -> None:
    assert judged(published("a"), [note("dropped", 1, "a")]).lost == []


def test_one_that_nobody_made_is_a_stranger() -> None:
    assert judged(ran("a", 1, 7)).strangers == {"a"}


def test_one_that_ran_twice_is_seen() -> None:
    assert judged(published("a"), ran("a", 1, 7), ran("a", 3, 8)).twice == ["a"]


def test_one_that_is_acked_early_may_run_again() -> None:
    account = judged(published("a", "skip-early"), ran("a", 1, 7), ran("a", 3, 8))
    assert (account.twice, account.again) == ([], ["a"])


def test_one_on_whom_others_relied_may_run_again() -> None:
    in_line = note("conflict", 0.5, "a", outcome="coalesce")
    account = judged(published("a", "coalesce-late"), [in_line], ran("a", 1, 7), ran("a", 3, 8))
    assert (account.twice, account.again) == ([], ["a"])


def test_a_death_right_after_the_end_explains_a_second_run() -> None:
    twice = [published("a"), ran("a", 1, 7), ran("a", 3, 8, pid=OTHER)]
    assert judged(*twice, deaths={WORKER: 2.001}).twice == []
    assert judged(*twice, deaths={OTHER: 4.001}).twice == []


def test_a_death_long_after_the_end_explains_nothing() -> None:
    account = judged(
        published("a"), published("b"), ran("a", 1, 7), ran("b", 3, 8), ran("a", 5, 9, pid=OTHER),
        deaths={WORKER: 4.5},
    )  # fmt: skip
    assert account.twice == ["a"]
