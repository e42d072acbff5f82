"""What `celery-redlock list` prints, and exits with."""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import click
import pytest
from celery import Celery

from celery_redlock.operate import listing
from celery_redlock.operate.locks import Kind, Lock
from celery_redlock.redlock.errors import RedlockError
from celery_redlock.redlock.lease import new_owner
from celery_redlock.redlock.task_lock import TaskLock
from tests.support.fakes.operated import Operated
from tests.support.fakes.told import Told, active
from tests.support.processes.ran import Ran, Run


def listed(ran: Ran) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ran.output.splitlines()]


def keys(ran: Ran) -> list[str]:
    return sorted(lock["key"] for lock in listed(ran))


@pytest.fixture
def all_kinds(redlock: TaskLock) -> None:
    redlock.acquire("bank.sync:42", 30, label="task-1")
    redlock.reserve("bank.report:may", 60, label="task-2")
    redlock.reserve("bank.sync:42%next", 60, label="task-3")
    redlock.reserve("%beat:bank@0123:nightly:now", 9, label="task-4")
    redlock.reserve("%beat:bank@0123:nightly:then", 60, label="task-6")
    redlock.reserve("%beat:bank@0123:nightly:then:missed", 60, label="no quorum")
    redlock.mark_done("bank.sync:41", "task-5/0/abc")


ALL = {
    "held": ("bank.sync:42", "task-1"),
    "reserved": ("bank.report:may", "task-2"),
    "pending": ("bank.sync:42%next", "task-3"),
    "claim": ("%beat:bank@0123:nightly:now", "task-4"),
    "published": ("%beat:bank@0123:nightly:then", "task-6"),
    "missed": ("%beat:bank@0123:nightly:then:missed", "no quorum"),
    "done": ("bank.sync:41", "task-5"),
}


@pytest.mark.parametrize(
    "kinds",
    [(), ("held",), ("reserved", "pending"), ("claim", "done"), ("done",), tuple(ALL)],
    ids=str,
)
@pytest.mark.usefixtures("all_kinds")
def test_only_the_kinds_that_are_asked_for_are_listed(run: Run, kinds: tuple[str, ...]) -> None:
    words = [word for kind in kinds for word in ("--kind", kind)]
    shown = listed(run("list", "--json", *words))
    expected = {kind: ALL[kind] for kind in kinds or ("held", "reserved", "pending")}
    assert {lock["kind"]: (lock["key"], lock["task_id"]) for lock in shown} == expected
    assert len(shown) == len(expected)


def test_an_unknown_kind_is_refused(run: Run) -> None:
    assert run("list", "--kind", "free").exit_code == 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), ["bank.sync:1", "bank.sync:2", "bank.sync_all:1"]),
        (("--match", "*:1"), ["bank.sync:1", "bank.sync_all:1"]),
        (("--match", "bank.sync:[2-9]"), ["bank.sync:2"]),
        (("--task", "bank.sync"), ["bank.sync:1", "bank.sync:2"]),
        (("--task", "bank.sync", "--match", "*:1"), ["bank.sync:1"]),
        (("--task", "bank"), []),
    ],
)
def test_pattern_and_task_choose_the_keys(
    redlock: TaskLock, run: Run, words: tuple[str, ...], expected: list[str]
) -> None:
    for key in ("bank.sync:1", "bank.sync:2", "bank.sync_all:1"):
        redlock.acquire(key, 30)
    assert keys(run("list", "--json", *words)) == expected


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ("bank.snyc", "unknown singleton task 'bank.snyc'; did you mean bank.sync?\n"),
        ("x\x1b", "unknown singleton task 'x\\x1b'; known: bank.sync\n"),
        ("bank.sync", ""),
    ],
)
def test_an_unknown_task_without_a_lock_is_doubted(
    bank: Celery, run: Run, task: str, says: str
) -> None:
    assert run("list", "--task", task, "--json", app=bank) == Ran(0, says)
    assert run("list", "--task", task, app=bank) == Ran(0, run("list", app=bank).output + says)


def test_a_task_that_has_a_lock_is_not_doubted(bank: Celery, redlock: TaskLock, run: Run) -> None:
    redlock.acquire("bank.snyc:1", 30)
    ran = run("list", "--task", "bank.snyc", "--json", app=bank)
    assert keys(ran) == ["bank.snyc:1"]
    assert ran.exit_code == 0


def test_without_an_app_no_task_is_doubted(run: Run) -> None:
    assert run("list", "--task", "bank.snyc", "--json") == Ran(0, "")


def test_a_prefix_is_no_pattern(three: Operated, run: Run) -> None:
    three.redlock(key_prefix="a*[b]?").acquire("mine", 30)
    three.redlock(key_prefix="axb1").acquire("other's", 30)
    assert keys(run("list", "--json", options=["--key-prefix", "a*[b]?"])) == ["mine"]


def test_a_lock_on_some_nodes_is_listed_once_with_its_votes(
    three: Operated, redlock: TaskLock, run: Run
) -> None:
    redlock.acquire("whole", 30)
    part = new_owner("task")
    for node in (three[1], three[2]):
        node.take(part, key="part")
    three[2].take(new_owner("task"), key="least")
    shown = listed(run("list", "--json"))
    assert sorted((lock["key"], lock["votes"]) for lock in shown) == [
        ("least", 1), ("part", 2), ("whole", 3)
    ]  # fmt: skip


def test_the_table_begins_with_the_longest_held(
    three: Operated, redlock: TaskLock, run: Run
) -> None:
    redlock.reserve("reserved", 605, label="task")
    three.pass_(5.0)
    for key in ("c", "a", "b"):
        redlock.acquire(key, 60, label="task")
        three.pass_(10.0)
    three[0].expire("b")
    header, *rows, blank, total = run("list").output.splitlines()
    assert header.split() == ["KIND", "HELD", "EXPIRES", "IN", "VOTES", "HOLDER", "KEY"]
    assert [row.split()[-1] for row in rows] == ["c", "a", "b", "reserved"]
    assert [row.split()[:-2] for row in rows] == [
        ["held", "30.0", "s", "30.0", "s", "3/3"],
        ["held", "20.0", "s", "40.0", "s", "3/3"],
        ["held", "10.0", "s", "50.0", "s", "2/3"],
        ["reserved", "35.0", "s", "10", "min", "3/3"],
    ]
    assert (blank, total) == ("", "4 locks.")


def test_nodes_that_are_down_are_left_out_and_named(
    three: Operated, redlock: TaskLock, run: Run
) -> None:
    redlock.acquire("k", 30)
    three[0].is_up = False
    ran = run("list")
    assert "2/3" in ran.output
    assert "127.0.0.1:7000 is left out: Connection refused\n" in ran.output
    assert "other locks may be held" not in ran.output
    assert ran.exit_code == 0
    three[1].is_up = False
    ran = run("list")
    assert "1/3" in ran.output
    assert "1 of 3 nodes answered, 2 are needed: other locks may be held.\n" in ran.output
    assert ran.exit_code == 1


@pytest.mark.parametrize(
    ("command", "kind"),
    [("SCAN", "held"), ("MGET", "held"), ("PTTL", "held"), ("SCAN", "done"), ("PTTL", "done")],
)
def test_a_user_without_the_right_is_told(
    three: Operated, redlock: TaskLock, run: Run, command: str, kind: str
) -> None:
    redlock.acquire("k", 30)
    redlock.mark_done("k", "task-0")
    three[0].refused[command] = f"NOPERM no {command}"
    if command == "MGET":
        three[0].refused["GETRANGE"] = "NOPERM no GETRANGE"
    ran = run("list", "--kind", kind)
    assert "2/3" in ran.output
    assert f"127.0.0.1:7000 is left out: NOPERM no {command}" in ran.output
    three[1].refused = three[2].refused = three[0].refused
    ran = run("list", "--kind", kind)
    assert "0 of 3 nodes answered, 2 are needed: other locks may be held." in ran.output
    assert ran.exit_code == 1


def test_no_lock_at_all_is_an_empty_list(run: Run) -> None:
    assert run("list").output == "KIND  HELD  EXPIRES IN  VOTES  HOLDER  KEY\n\n0 locks.\n"
    assert run("list", "--json").output == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("kinds", "passes"), [((), 1), (("done",), 1), (("held", "done"), 2)], ids=str
)
@pytest.mark.usefixtures("all_kinds")
def test_on_a_terminal_a_bar_goes_to_standard_error(
    run: Run,
    three: Operated,
    monkeypatch: pytest.MonkeyPatch,
    kinds: tuple[str, ...],
    passes: int,
) -> None:
    words = ["list", "--json", "--match", "*4*"]
    words += [word for kind in kinds for word in ("--kind", kind)]
    # A node that is down, or does not tell, is not counted.
    three[0].is_up = False
    three[1].refused["DBSIZE"] = "NOPERM"
    without_bar = run(*words)
    terminal = Terminal()
    module = importlib.import_module("celery_redlock.cli.list_")
    monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=terminal))
    bars: list[Any] = []
    new_bar = click.progressbar

    def noted(**how: Any) -> Any:
        bars.append(new_bar(**how))
        return bars[-1]

    monkeypatch.setattr(click, "progressbar", noted)
    assert run(*words) == without_bar
    assert "\rscanned " in terminal.getvalue()
    assert [bar.length for bar in bars] == [passes * len(three[2].keys())]
    assert bars[0].pos > 0


def test_with_an_app_each_lock_names_worker_and_process(
    bank: Celery, redlock: TaskLock, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    redlock.acquire("bank.sync:42", 30, label="task-1")
    redlock.reserve("bank.sync:43", 30, label="task-2")
    Told(bank, monkeypatch, {"celery@vm": [active("task-1"), active("task-2")]})
    held, reserved = run("list", app=bank).output.splitlines()[1:3]
    assert held.split()[-4:] == ["celery@vm", "(pid", "7)", "bank.sync:42"]
    assert reserved.split()[-2:] == ["-", "bank.sync:43"]
    first, _ = map(json.loads, run("list", "--json", app=bank).output.splitlines())
    assert (first["worker"], first["pid"], first["arguments"]) == ("celery@vm", 7, None)
    bank.conf.redlock_show_arguments = True
    header, held, *_ = run("list", app=bank).output.splitlines()
    assert header.split()[-2:] == ["KEY", "ARGUMENTS"]
    assert held.split()[-2:] == ["bank.sync:42", "(42,)"]


def test_if_no_worker_answers_the_list_says_so(
    bank: Celery, redlock: TaskLock, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    redlock.acquire("bank.sync:42", 30, label="task-1")
    Told(bank, monkeypatch)
    shown = run("list", app=bank).output
    assert "workers and processes are unknown: no worker answered within 1 s\n" in shown
    assert "bank.sync:42" in shown


# --- many locks -----------------------------------------------------------------------------------


def lock_of_age(number: int, age: float, three: Operated) -> Lock:
    began = int((three.wall_us() / 1e6 - age) * 1e6)
    return Lock(f"k:{number:05}", Kind.HELD, f"{0:032}:task-{number}@host", 3, 3, 30.0, began)


@pytest.fixture
def many(three: Operated, monkeypatch: pytest.MonkeyPatch) -> list[Lock]:
    """Locks that the nodes seem to have: 2002 of one second, the last held longest."""
    locks = [lock_of_age(number, 1.0, three) for number in range(2001)]
    locks.append(lock_of_age(9999, 100.0, three))
    monkeypatch.setattr(listing, "each_of", lambda *_: iter(locks))
    return locks


@pytest.mark.usefixtures("many")
def test_after_a_thousand_locks_they_are_shown_as_found(run: Run) -> None:
    *rows, blank, total = run("list").output.splitlines()[1:]
    assert (blank, total) == ("", "2002 locks.")
    assert [row.split()[-1] for row in rows[:2]] == ["k:00000", "k:00001"]
    assert rows[-1].split() == [
        "held",
        "100.0",
        "s",
        "30.0",
        "s",
        "3/3",
        "task-9999@host",
        "k:09999",
    ]
    lines = run("list", "--json").output.splitlines()
    assert [json.loads(line)["key"] for line in (lines[0], lines[-1])] == ["k:00000", "k:09999"]


def test_json_is_sorted_as_the_table_is(three: Operated, redlock: TaskLock, run: Run) -> None:
    redlock.reserve("z", 60)
    for key in ("c", "a", "b"):
        redlock.acquire(key, 30)
        three.sleep(1.0)
    assert [one["key"] for one in listed(run("list", "--json"))] == ["c", "a", "b", "z"]


def test_locks_are_shown_before_all_are_found(
    run: Run, many: list[Lock], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Iterator[Lock]:
        yield from many
        raise RedlockError("that is all")

    monkeypatch.setattr(listing, "each_of", broken)
    *shown, error = run("list", "--json").output.splitlines()
    assert error == "Error: that is all"
    assert len(shown) == 2000


def test_the_workers_are_asked_once_the_first_thousand_are_found(
    bank: Celery, run: Run, many: list[Lock], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(bank, monkeypatch, {"celery@vm": [active("task-0"), active("task-9999")]})
    lines = run("list", app=bank).output.splitlines()
    assert [line.split()[-4] for line in (lines[1], lines[2002])] == ["celery@vm"] * 2
    many[:1000] = [replace(lock, kind=Kind.RESERVED) for lock in many[:1000]]
    told.asked = 0
    run("list", app=bank)
    assert told.asked == 0


def test_a_lock_without_a_majority_has_its_votes_in_red(
    three: Operated, redlock: TaskLock, run: Run
) -> None:
    redlock.acquire("whole", 30)
    three[2].take(new_owner("task"), key="least")
    whole, least = run("list", color=True).output.splitlines()[1:3]
    assert "\x1b[31m1/3\x1b[0m" in least
    assert "\x1b" not in whole


def test_what_is_not_known_is_told_on_the_standard_error(
    three: Operated, bank: Celery, redlock: TaskLock, monkeypatch: pytest.MonkeyPatch,
    standard_error: Callable[..., str],
) -> None:  # fmt: skip
    assert standard_error("list") == ""
    assert standard_error("list", "--task", "x").startswith("unknown singleton task 'x'")
    redlock.acquire("k", 30, label="task-1")
    Told(bank, monkeypatch)
    assert standard_error("list").startswith("workers and processes are unknown: no worker ")
    three[0].is_up = three[1].is_up = False
    left_out = "".join(f"127.0.0.1:700{n} is left out: Connection refused\n" for n in range(2))
    assert standard_error("log") == left_out
    lacking = "1 of 3 nodes answered, 2 are needed: other locks may be held.\n"
    assert standard_error("list", "--match", "no such") == left_out + lacking
    of_kind = ("release", "--task", "bank.sync", "--kind", "held")
    assert standard_error(*of_kind) == left_out + lacking
