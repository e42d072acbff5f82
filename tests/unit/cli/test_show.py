"""What `celery redlock show` prints, and exits with."""

from __future__ import annotations

import re

import pytest
from celery import Celery

from celery_redlock.config.task_config import task_lock_config
from celery_redlock.redlock.lease import holder_of
from celery_redlock.redlock.task_lock import TaskLock
from tests.support.fakes.operated import Operated
from tests.support.fakes.told import Told, active
from tests.support.processes.ran import Run


def test_each_node_s_view_is_shown_side_by_side(
    three: Operated, redlock: TaskLock, run: Run
) -> None:
    lease = redlock.acquire("bank.sync:42", 30, label="task-1")
    pending = redlock.reserve("bank.sync:42%next", 60, label="task-2")
    redlock.mark_done("bank.sync:42", "task-0/0/abc")
    redlock.mark_done("bank.sync:421", "other/0/abc")
    three[0].expire("bank.sync:42")
    three[1].is_up = False
    three.pass_(10.0)
    shown = run("show", "bank.sync:42", "--json").json
    first, second, third = shown["nodes"]
    assert first == {
        "node": "127.0.0.1:7000", "holder": None, "remaining": 0, "floor": lease.token
    }  # fmt: skip
    assert second == {"node": "127.0.0.1:7001", "error": "Connection refused"}
    assert third == {
        "node": "127.0.0.1:7002",
        "holder": holder_of(lease.owner),
        "remaining": 20.0,
        "floor": lease.token,
    }
    assert (shown["lock"]["votes"], shown["lock"]["nodes"], shown["lock"]["age"]) == (1, 3, 10.0)
    assert (shown["pending"]["task_id"], shown["pending"]["kind"]) == ("task-2", "pending")
    assert [mark["label"] for mark in shown["done"]] == ["task-0/0/abc"]
    assert shown["next_call"].startswith("the nodes are split")
    host = holder_of(lease.owner).partition("@")[2]
    text = run("show", "bank.sync:42")
    head, table, sums, call = text.output.split("\n\n")
    assert head == "bank.sync:42"
    assert [row.split()[1] for row in table.splitlines()[1:]] == [
        "-", "Connection", f"task-1@{host}"
    ]  # fmt: skip
    lock, slot, marks, mark = sums.splitlines()
    assert lock.startswith(
        f"lock:          held by task-1@{host} for 10.0 s, on 1 of 3 nodes, token "
    )
    assert slot.startswith(
        f"pending slot:  pending by task-2@{host} for 10.0 s, on 2 of 3 nodes (id "
    )
    assert (marks, mark) == ("done marks:    1 mark", "  task-0/0/abc, for another 60 min")
    assert call.startswith("A new call now: the nodes are split between attempts")
    assert text.exit_code == 0
    # An owner is enough to release its lock.
    for owner in (lease.owner, pending.owner):
        assert owner.partition(":")[0].rstrip("~") not in text.output + str(shown)


def test_a_free_key_is_shown_as_free(run: Run) -> None:
    ran = run("show", "nobody's")
    assert "\nlock:          free\npending slot:  free\ndone marks:    0 marks\n" in ran.output
    assert ran.output.endswith(
        "\nA new call now: it acquires the lock: a quorum of the nodes is free.\n"
    )
    assert ran.exit_code == 0


def test_without_a_quorum_it_fails(three: Operated, run: Run) -> None:
    three[0].is_up = three[1].is_up = False
    ran = run("show", "k")
    assert "no quorum: 1 of 3 nodes vote, 2 are needed" in ran.output
    assert ran.exit_code == 1


def test_without_a_quorum_s_answers_a_lock_is_unknown(three: Operated, run: Run) -> None:
    three[0].is_up = three[1].is_up = False
    unknown = "unknown (1 of 3 answered)"
    output = run("show", "k").output
    lines = (f"lock:          {unknown}", f"pending slot:  {unknown}", f"done marks:    {unknown}")
    assert "\n".join(lines) in output
    shown = run("show", "k", "--json").json
    assert (shown["lock"], shown["answers"]) == (None, 1)
    three[1].is_up = True
    assert "\nlock:          free\n" in run("show", "k").output


@pytest.mark.parametrize("key", ["redlock:{k", "redlock:k}", "a redlock:{k}"])
def test_a_key_that_only_looks_like_a_redis_key_is_itself(
    redlock: TaskLock, run: Run, key: str
) -> None:
    redlock.acquire(key, 30)
    shown = run("show", key, "--json").json
    assert (shown["key"], shown["lock"]["votes"]) == (key, 3)


@pytest.mark.parametrize("given", ["{}", "redlock:{{{}}}", "redlock:{{{}}}:floor"])
@pytest.mark.parametrize("key", ["bank.sync:42", "{a}b"])
def test_a_redis_key_is_taken_for_its_lock_s_key(
    redlock: TaskLock, run: Run, given: str, key: str
) -> None:
    redlock.acquire(key, 30)
    shown = run("show", given.format(key), "--json").json
    assert (shown["key"], shown["lock"]["votes"]) == (key, 3)


def test_a_pending_slot_has_no_pending_slot(redlock: TaskLock, run: Run) -> None:
    redlock.reserve("k%next", 60, label="task-2")
    shown = run("show", "k%next", "--json").json
    assert (shown["lock"]["kind"], shown["pending"]) == ("pending", None)
    assert "\npending slot:  free\n" in run("show", "k%next").output


def test_the_key_of_a_call_is_computed_as_by_the_app(
    bank: Celery, redlock: TaskLock, run: Run
) -> None:
    shown = [
        run("show", "--task", "bank.sync", *words, "--json", app=bank).json["key"]
        for words in (
            ("--args", "[42]"),
            ("--args", '[42, "may"]'),
            ("--kwargs", '{"month": "may", "account_id": 42}'),
        )
    ]
    [key] = set(shown)
    assert key == task_lock_config(bank.tasks["bank.sync"], bank).rule.key_for((42,), {})
    other = run("show", "--task", "bank.sync", "--args", "[43]", "--json", app=bank)
    assert other.json["key"] != key
    redlock.acquire(key, 30, label="task-1")
    # The options of the task are those of the app.
    assert "lock_conflict_result" in run("show", key, app=bank).output


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--task", "bank.snyc"], 1, "did you mean bank.sync?"),
        (["--task", "x"], 1, "unknown singleton task 'x'; known: bank.sync"),
        (["--task", "bank.sync"], 1, "can't be called so: missing a required argument"),
        (["--task", "bank.sync", "--args", "{}"], 2, "'{}' is not a JSON list"),
        (["--task", "bank.sync", "--kwargs", "[]"], 2, "'[]' is not a JSON dict"),
        (["--task", "bank.sync", "--args", "["], 2, "'[' is not JSON"),
        ([], 2, "Give a KEY, or --task"),
        (["k", "--task", "bank.sync"], 2, "Give a KEY, or --task"),
    ],
)
def test_a_call_that_can_t_be_is_an_error(
    bank: Celery, run: Run, words: list[str], code: int, says: str
) -> None:
    ran = run("show", *words, app=bank)
    assert says in ran.output
    assert ran.exit_code == code


def test_a_task_needs_an_app(run: Run) -> None:
    ran = run("show", "--task", "bank.sync")
    line = "celery -A proj redlock show --task bank.sync"
    assert f"--task needs an app: {line}\n" in ran.output
    assert ran.exit_code == 2


def test_a_held_lock_names_worker_process_and_arguments(
    bank: Celery, redlock: TaskLock, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    redlock.acquire("bank.sync:42", 30, label="task-1")
    told = Told(bank, monkeypatch, {"celery@vm": [active("task-1")]})
    shown = run("show", "bank.sync:42", app=bank).output
    assert "\nworker:        celery@vm (pid 7)\npending slot:" in shown
    assert "42," not in shown
    bank.conf.redlock_show_arguments = True
    shown = run("show", "bank.sync:42", app=bank).output
    assert "\nworker:        celery@vm (pid 7)\narguments:     (42,)\npending slot:" in shown
    assert run("show", "bank.sync:42", "--json", app=bank).json["lock"]["arguments"] == "(42,)"
    told.answers.clear()
    unknown = "unknown: no worker answered within 1 s"
    shown = run("show", "bank.sync:42", app=bank).output
    assert f"\nworker:        {unknown}\narguments:     {unknown}\n" in shown
    assert "worker:" not in run("show", "bank.sync:43", app=bank).output


def test_a_lock_that_tells_no_age_and_no_task_has_neither(three: Operated, run: Run) -> None:
    for node in three.nodes:
        node.take(f"{0:032}:@host")
    output = run("show", "k").output
    assert re.search(r"\nlock:          held by unknown@host, on 3 of 3 nodes \(id \w+\)\n", output)


def test_marks_of_a_minority_are_shown_and_errors_are_red(
    three: Operated, redlock: TaskLock, run: Run
) -> None:
    redlock.mark_done("k", "task-0/0/abc")
    three[0].is_up = three[1].is_up = False
    output = run("show", "k", color=True).output
    assert "127.0.0.1:7000  \x1b[31mConnection refused\x1b[0m" in output
    assert "\ndone marks:    1 mark\n" in output
