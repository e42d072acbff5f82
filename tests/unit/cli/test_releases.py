"""What `redlock release --task … --kind …` does: all locks of a task, by kind and age."""

from __future__ import annotations

import json

import pytest
from celery import Celery

from celery_redlock.redlock.task_lock import TaskLock
from tests.support.fakes.operated import Operated
from tests.support.processes.ran import Run

ALL_OF_TASK = ("release", "--task", "bank.sync", "--kind")


def reserved(redlock: TaskLock, *keys: str) -> None:
    for key in keys:
        redlock.reserve(key, 7200, label="task-1")


def holders(three: Operated, *keys: str) -> list[bool]:
    return [any(three.holders(key)) for key in keys]


def test_all_locks_of_the_task_and_kind_are_released(
    three: Operated, redlock: TaskLock, run: Run, bank: Celery
) -> None:
    reserved(redlock, "bank.sync:1", "bank.sync:2", "bank.report:1")
    redlock.acquire("bank.sync:3", 30)
    dry = run(*ALL_OF_TASK, "reserved", app=bank)
    assert "\n2 locks.\n" in dry.output
    assert dry.output.startswith("Consequence: the message stays in the queue, and runs")
    assert dry.output.endswith(
        "To release: celery -A bank redlock release --task bank.sync --kind reserved --yes\n"
    )
    keys = ("bank.sync:1", "bank.sync:2", "bank.report:1", "bank.sync:3")
    assert holders(three, *keys) == [True] * 4
    ran = run(*ALL_OF_TASK, "reserved", "--yes", app=bank)
    assert ran.output.count(", released\n") == 2
    assert holders(three, *keys) == [False, False, True, True]
    assert (dry.exit_code, ran.exit_code) == (0, 0)


def test_younger_locks_are_kept(three: Operated, redlock: TaskLock, run: Run, bank: Celery) -> None:
    reserved(redlock, "bank.sync:old")
    three.sleep(3600)
    reserved(redlock, "bank.sync:young")
    ran = run(*ALL_OF_TASK, "reserved", "--older-than", "1h", "--yes", app=bank)
    assert "1 lock older than 60 min." in ran.output
    assert holders(three, "bank.sync:old", "bank.sync:young") == [False, True]


def test_done_marks_are_a_kind_of_their_own(redlock: TaskLock, run: Run, bank: Celery) -> None:
    redlock.mark_done("bank.sync:1", "task-1/0/abc")
    shown = run(*ALL_OF_TASK, "done", "--yes", "--json", app=bank)
    assert [one["released"] for one in json.loads(shown.output)] == [True]
    assert run("show", "bank.sync:1", "--json").json["done"] == []


def test_a_lock_that_has_gone_meanwhile_is_told(
    three: Operated, redlock: TaskLock, run: Run, bank: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    from celery_redlock.operate import removal  # noqa: PLC0415

    reserved(redlock, "bank.sync:1")
    remove = removal.remove

    def remove_late(*given: object) -> bool:
        three.expire(key="bank.sync:1")
        return remove(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(removal, "remove", remove_late)
    ran = run(*ALL_OF_TASK, "reserved", "--yes", app=bank)
    assert ", not released\n" in ran.output
    assert ran.exit_code == 1


def test_of_a_misspelt_task_the_one_meant_is_named(run: Run, bank: Celery) -> None:
    ran = run("release", "--task", "bank.snyc", "--kind", "held", app=bank)
    assert "bank.sync" in ran.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("bank.sync:1", "--kind", "held"), "--kind needs --task"),
        (("--task", "bank.sync", "--args", "[1]", "--kind", "held"), "--kind needs --task"),
        (("--task", "bank.sync", "--kwargs", '{"a": 1}', "--kind", "held"), "--kind needs --task"),
        (("--task", "bank.sync", "--kind", "held", "--expect", "x"), "--kind needs --task"),
        (("--task", "bank.sync", "--kind", "held", "--done", "x"), "--kind needs --task"),
        (("--orphaned", "--kind", "held"), "--kind needs --task"),
        (("--task", "bank.sync", "--args", "[1]", "--older-than", "1h"), "an option of --kind"),
    ],
)
def test_kinds_are_for_a_task_as_a_whole(
    run: Run, bank: Celery, words: tuple[str, ...], says: str
) -> None:
    ran = run("release", *words, app=bank)
    assert says in ran.output
    assert ran.exit_code == 2
