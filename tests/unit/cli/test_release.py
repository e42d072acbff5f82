"""What `celery-redlock release` does, prints and exits with."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from celery import Celery

from celery_redlock.operate import orphans as orphaned
from celery_redlock.operate import removal
from celery_redlock.operate.locks import Lock, lock_of
from celery_redlock.operate.views import read_views
from celery_redlock.redlock.task_lock import TaskLock
from tests.support.fakes.operated import Operated
from tests.support.processes.ran import Run


def test_without_yes_nothing_is_released(three: Operated, redlock: TaskLock, run: Run) -> None:
    redlock.acquire("k", 30, label="task-1")
    before = three.holders(), three.floors()
    ran = run("release", "k")
    assert ran.output.startswith("k: held by task-1@")
    assert "\nConsequence: its task may be running: the next renewal" in ran.output
    [identity] = re.findall(
        r"\nNothing was released. To release it: celery-redlock .* --expect (\w+)\n$", ran.output
    )
    assert identity == run("show", "k", "--json").json["lock"]["id"]
    shown = run("release", "k", "--json")
    assert (shown.json["released"], shown.json["id"]) == (False, identity)
    assert shown.json["consequence"].startswith("its task may be running")
    assert (ran.exit_code, shown.exit_code) == (0, 0)
    assert (three.holders(), three.floors()) == before


def line_in(output: str) -> list[str]:
    """Return the words of the line that is printed for the release, as a shell reads them."""
    return shlex.split(output.rpartition("To release it: ")[2])


@pytest.mark.parametrize(
    "typed", [["bank.sync:42"], ["it's $HOME; 42"], ["*"], ["--", "-k"]], ids=str
)
def test_the_line_that_is_printed_releases_the_lock(
    three: Operated, bank: Celery, redlock: TaskLock, run: Run, typed: list[str]
) -> None:
    key = typed[-1]
    redlock.acquire(key, 30)
    without_app = line_in(run("release", *typed).output)
    start = sys.argv[: -len(typed) - 1]
    assert without_app[: len(start)] == start
    line = line_in(run("release", *typed, app=bank).output)
    assert line[:4] == ["celery", "-A", "bank", "redlock"]
    assert line[4:] == without_app[len(start) :]
    assert run(*line[4:], app=bank).exit_code == 0
    assert three.holders(key) == [None] * 3


def test_the_line_for_a_done_mark_or_a_known_holder_is_whole(
    redlock: TaskLock, run: Run, bank: Celery
) -> None:
    redlock.mark_done("k", "task-1/0/abc")
    [mark] = run("show", "k", "--json").json["done"]
    typed = ("release", "k", "--done", "task-1/0/abc")
    assert run(*typed, app=bank).output.endswith(
        "To release it: celery -A bank redlock release k --done task-1/0/abc --yes "
        f"--expect {mark['id']}\n"
    )
    assert run(*typed, "--expect", mark["id"], app=bank).output.endswith(
        f"release k --done task-1/0/abc --expect {mark['id']} --yes\n"
    )


@pytest.mark.parametrize("words", [(), ("--json",), ("--yes",), ("--yes", "--json")], ids=str)
def test_another_holder_than_expected_is_not_released(
    three: Operated, redlock: TaskLock, run: Run, words: tuple[str, ...]
) -> None:
    lease = redlock.acquire("k", 30, label="task-1")
    ran = run("release", "k", "--expect", "0123456789ab", *words)
    if "--json" in words:
        assert ran.json["released"] is False
    else:
        assert ran.output.endswith("\nNot released: its id is not 0123456789ab.\n")
    assert ran.exit_code == 1
    assert three.holders() == [lease.owner] * 3


@pytest.mark.parametrize("words", [(), ("--json",)], ids=str)
@pytest.mark.parametrize("successor", [None, f"{0:032}:task-2@host"])
def test_a_holder_that_changes_meanwhile_is_not_released(
    three: Operated, redlock: TaskLock, run: Run, monkeypatch: pytest.MonkeyPatch,
    successor: str | None, words: tuple[str, ...],
) -> None:  # fmt: skip
    redlock.acquire("k", 30, label="task-1")
    consequence = removal.consequence

    def change(lock: Lock, options: Any) -> str:
        three.expire()
        for node in three.nodes if successor else ():
            node.take(str(successor))
        return consequence(lock, options)

    monkeypatch.setattr(removal, "consequence", change)
    ran = run("release", "k", "--yes", *words)
    if words:
        assert (ran.json["released"], ran.json["task_id"]) == (False, "task-1")
    else:
        assert ran.output.endswith("\nNot released: it has another holder by now, or none.\n")
    assert ran.exit_code == 1
    assert three.holders() == [successor] * 3


def test_a_done_mark_is_deleted_and_nothing_else(
    three: Operated, redlock: TaskLock, run: Run
) -> None:
    lease = redlock.acquire("k", 30)
    redlock.mark_done("k", "task-1/0/abc")
    redlock.mark_done("k", "task-2/0/abc")

    def marks() -> list[str]:
        return [mark["label"] for mark in run("show", "k", "--json").json["done"]]

    ran = run("release", "k", "--done", "task-1/0/abc")
    assert re.match(r"k: done mark task-1/0/abc, for another 60 min \(id \w+\)\n", ran.output)
    assert "Consequence: a copy of that message" in ran.output
    assert (ran.exit_code, len(marks())) == (0, 2)
    assert run("release", "k", "--done", "task-1/0/abc", "--yes").exit_code == 0
    assert marks() == ["task-2/0/abc"]
    assert three.holders() == [lease.owner] * 3


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("k",), "no node has 'k'"),
        (("k", "--yes"), "no node has 'k'"),
        (("k", "--done", "x"), "no node has done mark 'x' of 'k'"),
    ],
)
def test_what_nobody_holds_is_an_error(run: Run, words: tuple[str, ...], says: str) -> None:
    ran = run("release", *words)
    assert ran.output == f"Error: there is nothing to release: {says}\n"
    assert ran.exit_code == 1


@pytest.mark.parametrize(
    ("words", "answered"),
    [
        (("k",), "0 of 3 nodes answered, 1 not waited for"),
        (("k", "--done", "task-1/0/abc"), "1 of 3 nodes answered"),
    ],
    ids=["lock", "done mark"],
)
def test_without_a_quorum_the_release_is_an_error(
    three: Operated, redlock: TaskLock, run: Run, words: tuple[str, ...], answered: str
) -> None:
    redlock.acquire("k", 30)
    redlock.mark_done("k", "task-1/0/abc")
    three[0].is_up = three[1].is_up = False
    ran = run("release", *words, "--yes")
    assert f"Error: cannot release 'k': {answered}, 2 are needed" in ran.output
    assert ran.exit_code == 1


@pytest.mark.parametrize(
    "call", [("--args", "[42]"), ("--kwargs", '{"month": "may", "account_id": 42}')], ids=str
)
def test_the_key_of_a_call_is_computed_as_by_show(
    three: Operated, bank: Celery, redlock: TaskLock, run: Run, call: tuple[str, str]
) -> None:
    words = ("--task", "bank.sync", *call)
    key = run("show", *words, "--json", app=bank).json["key"]
    redlock.acquire(key, 30, label="task-1")
    other = redlock.acquire(
        run("show", "--task", "bank.sync", "--args", "[43]", "--json", app=bank).json["key"], 30
    )
    ran = run("release", *words, "--yes", app=bank)
    assert ran.output.startswith(f"{key}: held by task-1@")
    assert ran.output.endswith("\nReleased.\n")
    assert ran.exit_code == 0
    redlock.acquire(key, 30)
    shown = run("release", *words, "--yes", "--json", app=bank)
    assert (shown.json["released"], shown.exit_code) == (True, 0)
    assert three.holders(key) == [None] * 3
    assert three.holders(other.key) == [other.owner] * 3


def test_a_misspelt_task_is_an_error_that_names_the_one_meant(bank: Celery, run: Run) -> None:
    ran = run("release", "--task", "bank.snyc", "--args", "[42]", app=bank)
    assert "unknown singleton task 'bank.snyc'; did you mean bank.sync?" in ran.output
    assert ran.exit_code == 1


def test_a_task_needs_an_app(run: Run) -> None:
    ran = run("release", "--task", "bank.sync", "--args", "[42]")
    line = "celery -A proj redlock release --task bank.sync --args '[42]'\n"
    assert ran.output.endswith(f"--task needs an app: {line}")
    assert ran.exit_code == 2


@pytest.mark.parametrize(
    "words",
    [(), ("k", "--orphaned"), ("k", "--task", "bank.sync"), ("--task", "bank.sync", "--orphaned")],
    ids=str,
)
def test_key_call_and_orphaned_exclude_each_other(run: Run, words: tuple[str, ...]) -> None:
    ran = run("release", *words)
    assert "Give a KEY, or --task with its arguments" in ran.output
    assert ran.exit_code == 2


def test_orphans_need_an_app(run: Run) -> None:
    ran = run("release", "--orphaned", "--queue", "a b")
    line = "celery -A proj redlock release --orphaned --queue 'a b'\n"
    assert ran.output.endswith(f"--orphaned needs an app: {line}")
    assert ran.exit_code == 2


def test_queues_are_looked_at_for_orphans_only(run: Run) -> None:
    ran = run("release", "k", "--queue", "b")
    assert "--queue is an option of --orphaned" in ran.output
    assert ran.exit_code == 2


@pytest.fixture
def orphan(
    three: Operated, redlock: TaskLock, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[float | str, ...]]:
    """Two reservations without a message, of which one is gone by the time of its release.

    Returns:
        The times of grace, with the queues, that were given.
    """
    asked: list[tuple[float | str, ...]] = []

    def found(target: Any, nodes: Any, grace: float, sleep: Any, queues: Sequence[str]) -> Any:
        assert target.app is not None
        sleep(grace)
        asked.append((grace, *queues))
        locks = []
        for key in ("k", "gone"):
            redlock.reserve(key, 60, label="task-1")
            lock = lock_of(key, read_views(nodes, "redlock", key))
            assert lock
            locks.append(lock)
        three.expire(key="gone")
        return locks, ["what is in queue b\x1b"]

    monkeypatch.setattr(orphaned, "orphans", found)
    return asked


def test_orphans_are_released_with_yes_only(
    three: Operated, orphan: list[tuple[float | str, ...]], run: Run, app: Any,
    standard_error: Callable[..., str],
) -> None:  # fmt: skip
    app.conf.redlock_nodes = three.urls
    dry = run("release", "--orphaned", "--queue", "a b", app=app)
    assert re.fullmatch(
        r"k: reserved by task-1@\S+ for .*\ngone: reserved by .*\n"
        r"2 reservations without a message\.\n"
        r"Not seen: what is in queue b\\x1b\.\nNothing was released\. To release: "
        r"celery -A bank redlock release --orphaned --queue 'a b' --yes\n",
        dry.output,
    )
    assert three.holders() != [None] * 3
    three.expire()
    ran = run("release", "--orphaned", "--queue", "b", "--grace", "0.5", "--yes", app=app)
    assert re.fullmatch(
        r"k: .*\), released\ngone: .*\), not released\n"
        r"2 reservations without a message\.\nNot seen: .*\n",
        ran.output,
    )
    assert three.holders() == [None] * 3
    shown = run("release", "--orphaned", "--yes", "--json", app=app)
    locks = json.loads(shown.output.partition("Not seen")[0])
    assert [(lock["key"], lock["released"]) for lock in locks] == [
        ("k", True), ("gone", False)
    ]  # fmt: skip
    assert orphan == [(10.0, "a b"), (0.5, "b"), (10.0,)]
    assert [one.exit_code for one in (dry, ran, shown)] == [0, 1, 1]
    assert standard_error("release", "--orphaned") == "Not seen: what is in queue b\\x1b.\n"
