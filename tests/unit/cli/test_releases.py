"""What `redlock release --task … --kind …` does: all locks of a task, by kind and age."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from celery import Celery

from celery_redlock import singleton_task
from celery_redlock.operate.removal import operator
from celery_redlock.redlock.lease import new_owner
from celery_redlock.redlock.task_lock import TaskLock
from tests.support.fakes.operated import Operated
from tests.support.processes.ran import Ran, Run

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
    assert re.fullmatch(
        r"Consequence: [^\n]+\n(bank\.sync:\d: [^\n]* \(id \w+\)\n){2}2 locks\.\n"
        r"Nothing was released\. To release: [^\n]*\n",
        dry.output,
    )
    shown = run(*ALL_OF_TASK, "reserved", "--json", app=bank).json
    assert [one["released"] for one in shown] == [False, False]
    assert dry.output.startswith("Consequence: the message stays in the queue, and runs")
    assert dry.output.endswith(
        "To release: celery -A bank redlock release --task bank.sync --kind reserved --yes\n"
    )
    keys = ("bank.sync:1", "bank.sync:2", "bank.report:1", "bank.sync:3")
    assert holders(three, *keys) == [True] * 4
    ran = run(*ALL_OF_TASK, "reserved", "--yes", "--reason", "purged", app=bank)
    assert ran.output.count(", released\n") == 2
    assert holders(three, *keys) == [False, False, True, True]
    logged = [(one["author"], one["reason"]) for one in run("log", "--json").json]
    assert logged == [(operator(), "purged")] * 2
    assert (dry.exit_code, ran.exit_code) == (0, 0)


def test_without_such_a_lock_nothing_is_left_to_do(run: Run, bank: Celery) -> None:
    assert run(*ALL_OF_TASK, "reserved", app=bank) == Ran(0, "0 locks.\n")
    assert run(*ALL_OF_TASK, "reserved", "--json", app=bank).json == []


def test_the_consequence_is_that_of_the_task_s_options(
    redlock: TaskLock, run: Run, bank: Celery
) -> None:
    @singleton_task(app=bank, shared=False, name="bank.careless", lock_on_lost="continue")
    def careless(account_id: int) -> None: ...

    for task, then in (("sync", "LeaseLost is raised in it"), ("careless", "and it goes on")):
        redlock.acquire(f"bank.{task}:1", 30)
        output = run("release", "--task", f"bank.{task}", "--kind", "held", app=bank).output
        assert output.startswith("Consequence: its task may be running")
        assert f"{then}. " in output


@pytest.mark.parametrize(
    ("words", "shown"),
    [(("--older-than", "1h"), "0 locks older than 60 min.\n"), ((), "bank.snyc:1: held by ")],
    ids=["older", "any"],
)
def test_a_lock_of_unknown_age_is_kept_if_an_age_is_asked_for(
    three: Operated, run: Run, bank: Celery,
    standard_error: Callable[..., str], words: tuple[str, ...], shown: str,
) -> None:  # fmt: skip
    for node in three.nodes:
        node.take(new_owner("task-1"), key="bank.snyc:1")
    command = ("release", "--task", "bank.snyc", "--kind", "held", *words)
    assert shown in run(*command, app=bank).output
    # Nor is the task doubted, for it has a lock.
    kept = "Kept, because their age is unknown: 1 lock.\n" if words else ""
    assert standard_error(*command) == kept


def test_without_a_quorum_the_release_of_a_kind_fails(
    three: Operated, redlock: TaskLock, run: Run, bank: Celery
) -> None:
    reserved(redlock, "bank.sync:1")
    three[0].is_up = False
    assert run(*ALL_OF_TASK, "reserved", app=bank).exit_code == 0
    three[1].is_up = False
    assert run(*ALL_OF_TASK, "reserved", app=bank).exit_code == 1


@pytest.mark.parametrize("words", [("--orphaned",), (*ALL_OF_TASK[1:], "reserved")])
def test_silent_nodes_are_not_taken_for_empty_ones(
    three: Operated, run: Run, bank: Celery,
    standard_error: Callable[..., str], words: tuple[str, ...],
) -> None:  # fmt: skip
    bank.conf.update(broker_url="redis://")  # without a reservation it is not asked
    assert run("release", *words, app=bank).exit_code == 0
    for number in (0, 1):
        three[number].refused["SCAN"] = "NOPERM this user has no permissions to run 'scan'"
    assert run("release", *words, app=bank).exit_code == 1
    said = standard_error("release", *words)
    assert "127.0.0.1:7001 is left out: NOPERM" in said
    assert said.endswith("1 of 3 nodes answered, 2 are needed: other locks may be held.\n")


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
