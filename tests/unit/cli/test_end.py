"""What `celery redlock end` does, prints and exits with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery

from celery_redlock.operate import ending
from celery_redlock.operate.ending import Ending, Order
from celery_redlock.operate.locks import Lock
from celery_redlock.operate.node_set import NodeSet
from celery_redlock.operate.removal import operator
from celery_redlock.operate.target import Target
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.redlock.validation import address_of
from tests.support.fakes.operated import Operated
from tests.support.processes.ran import Run


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Order]]:
    """Whose run was to be ended, and how; that of `goes-on` does not end."""
    given: list[tuple[str, Order]] = []

    def end(
        target: Target, nodes: NodeSet, lock: Lock, order: Order, sleep: Callable[[float], None]
    ) -> Ending:
        sleep(1.0)
        assert nodes.names == [address_of(url) for url in target.urls]
        given.append((lock.id, order))
        if lock.key == "goes-on":
            return Ending("Still held: worker celery@\x1b: why")
        return Ending("Ended: nobody has the lock now", is_ended=True)

    monkeypatch.setattr(ending, "end", end)
    return given


def test_without_yes_nothing_is_ended(
    three: Operated, bank: Celery, redlock: TaskLock, run: Run, orders: list[Any]
) -> None:
    redlock.acquire("k", 30, label="task-1")
    ran = run("end", "k", "--reason", "it hangs", app=bank)
    assert ran.output.startswith("k: held by task-1@")
    assert "\nConsequence: its run is ended where it runs." in ran.output
    identity = run("show", "k", "--json").json["lock"]["id"]
    assert ran.output.endswith(
        "\nNothing was ended. To end it: celery -A bank redlock end k --reason 'it hangs' --yes "
        f"--expect {identity}\n"
    )
    shown = run("end", "k", "--json", app=bank)
    assert (shown.json["ended"], shown.json["outcome"]) == (False, None)
    assert shown.json["id"] == identity
    assert shown.json["consequence"].startswith("its run is ended where it runs")
    assert run("end", "k", "--expect", identity, app=bank).output.endswith(
        f" end k --expect {identity} --yes\n"
    )
    assert (ran.exit_code, shown.exit_code, orders) == (0, 0, [])


def test_with_yes_the_run_of_the_holder_is_ended(
    bank: Celery, redlock: TaskLock, run: Run, orders: list[Any]
) -> None:
    redlock.acquire("k", 30, label="task-1")
    identity = run("show", "k", "--json").json["lock"]["id"]
    words = ("end", "k", "--yes", "--reason", "it hangs", "--signal", "KILL")
    ran = run(*words, "--expect", identity, app=bank)
    assert ran.output.endswith("\nEnded: nobody has the lock now.\n")
    shown = run(*words, "--json", app=bank)
    assert (shown.json["ended"], shown.json["outcome"]) == (True, "Ended: nobody has the lock now")
    assert (ran.exit_code, shown.exit_code) == (0, 0)
    assert orders == [(identity, Order(operator(), "it hangs", "KILL"))] * 2


def test_a_run_that_goes_on_is_an_exit_code(
    bank: Celery, redlock: TaskLock, run: Run, orders: list[Any]
) -> None:
    redlock.acquire("goes-on", 30)
    ran = run("end", "goes-on", "--yes", app=bank)
    assert ran.output.endswith("\nStill held: worker celery@\\x1b: why.\n")
    shown = run("end", "goes-on", "--yes", "--json", app=bank)
    assert shown.json["ended"] is False
    assert (ran.exit_code, shown.exit_code) == (1, 1)
    assert [order.signal for _, order in orders] == ["TERM"] * 2


@pytest.mark.parametrize("words", [(), ("--yes",), ("--yes", "--json")], ids=str)
def test_another_holder_than_expected_is_not_ended(
    bank: Celery, redlock: TaskLock, run: Run, orders: list[Any], words: tuple[str, ...]
) -> None:
    redlock.acquire("k", 30)
    ran = run("end", "k", "--expect", "0123456789ab", *words, app=bank)
    outcome = "Not ended: its id is not 0123456789ab"
    if "--json" in words:
        assert (ran.json["ended"], ran.json["outcome"]) == (False, outcome)
    else:
        assert ran.output.endswith(f"\n{outcome}.\n")
    assert (ran.exit_code, orders) == (1, [])


@pytest.mark.parametrize("key", ["k", "-k", "k%next"])
def test_a_reservation_is_refused_with_the_command_that_releases_it(
    bank: Celery, redlock: TaskLock, run: Run, orders: list[Any], key: str
) -> None:
    redlock.reserve(key, 60, label="task-1")
    ran = run("end", "--yes", "--", key, app=bank)
    assert f"Error: no run holds '{key}', it is a " in ran.output
    line = ran.output.rpartition("release it instead: ")[2]
    assert line == f"celery -A bank redlock release {'-- ' if key[0] == '-' else ''}{key}\n"
    assert (ran.exit_code, orders) == (1, [])
    assert run(*line.split()[4:], "--yes" if key[0] != "-" else "", app=bank).exit_code in (0, 2)


def test_a_done_mark_is_refused_with_the_command_that_deletes_it(
    bank: Celery, redlock: TaskLock, run: Run, orders: list[Any]
) -> None:
    redlock.mark_done("k", "task-1/0/abc")
    ran = run("end", "k", "--yes", app=bank)
    assert ran.output == (
        "Error: no run holds 'k', it is a done mark: release it instead: "
        "celery -A bank redlock release --done task-1/0/abc k\n"
    )
    assert (ran.exit_code, orders) == (1, [])


def test_a_free_lock_has_no_run_to_end(
    three: Operated, bank: Celery, run: Run, orders: list[Any]
) -> None:
    ran = run("end", "k", "--yes", app=bank)
    assert ran.output == "Error: no run to end under 'k': nobody holds it\n"
    three[0].is_up = three[1].is_up = False
    unknown = run("end", "k", "--yes", app=bank)
    assert unknown.output.endswith("its holder is unknown (1 of 3 answered)\n")
    assert (ran.exit_code, unknown.exit_code, orders) == (1, 1, [])


def test_the_key_of_a_call_is_computed(
    bank: Celery, redlock: TaskLock, run: Run, orders: list[Any]
) -> None:
    words = ("--task", "bank.sync", "--args", "[42]")
    redlock.acquire(run("show", *words, "--json", app=bank).json["key"], 30)
    assert run("end", *words, "--yes", app=bank).exit_code == 0
    assert len(orders) == 1


def test_a_key_or_a_call_is_needed(bank: Celery, run: Run) -> None:
    ran = run("end", app=bank)
    assert "Give a KEY, or --task with its arguments." in ran.output
    assert ran.exit_code == 2


def test_without_an_app_there_is_no_such_command(run: Run) -> None:
    assert run("end", "k").exit_code == 2
