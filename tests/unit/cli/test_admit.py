"""`redlock admit`: nodes that an operator declares new, and what speaks against it."""

from __future__ import annotations

import pytest

from celery_redlock.operate import admission
from celery_redlock.operate.removal import operator
from tests.support.fakes.operated import Operated
from tests.support.processes.ran import Run

A, B, C = (f"127.0.0.1:700{number}" for number in range(3))
KEY = "redlock:admitted"


@pytest.fixture(autouse=True)
def _young(three: Operated) -> None:
    for number in range(3):
        three[number].info["uptime_in_seconds"] = "20"


def noted(three: Operated) -> list[str | None]:
    """Return the run id that each node's note names."""
    notes = [node._get(KEY) for node in three._reporting]
    return [note and note.split()[0] for note in notes]


def test_without_yes_no_node_is_admitted(three: Operated, run: Run) -> None:
    ran = run("admit")
    assert ran.exit_code == 0
    *nodes, consequence, line = ran.output.splitlines()
    assert nodes == [f"{node}: votes in 43.6 s" for node in (A, B, C)]
    assert consequence.startswith("Consequence: these nodes vote without the wait")
    assert line.startswith("None was admitted. To admit them: celery-redlock --node redis://")
    assert line.endswith(" admit --yes")
    shown = run("admit", "--json").json
    assert shown == {"waiting": [A, B, C], "admitted": [], "objections": []}
    assert noted(three) == [None] * 3


def test_new_nodes_are_admitted_for_their_present_run(three: Operated, run: Run) -> None:
    ran = run("admit", "--yes", "--json")
    assert ran.json == {"waiting": [A, B, C], "admitted": [A, B, C], "objections": []}
    assert noted(three) == ["run-0", "run-1", "run-2"]
    assert run("status", "--json").json["votes"] == 3
    three[0].info["run_id"] = "another"
    assert run("status", "--json").json["votes"] == 2


def test_an_admission_is_in_the_log_with_its_reason(three: Operated, run: Run) -> None:
    ran = run("admit", "--yes", "--reason", "new machines")
    assert ran.output.endswith("\nAdmitted. Clients notice within seconds.\n")
    [action] = run("log", "--json").json
    assert (action["action"], action["reason"]) == ("admit", "new machines")
    assert (action["author"], action["key"]) == (operator(), None)
    assert action["what"] == f"{A}, {B}, {C}"
    three.time += 64.0
    for number in range(3):
        three[number].info["uptime_in_seconds"] = "3600"
    assert run("admit", "--yes").output == "No node waits for its restart guard.\n"
    assert len(run("log", "--json").json) == 1, "nothing was admitted"


def test_a_longer_lease_does_not_inherit_an_admission(three: Operated, run: Run) -> None:
    run("admit", "--yes")
    longer = run("status", "--json", options=["--max-ttl", "600"]).json
    assert longer["votes"] == 0
    shorter = run("status", "--json", options=["--max-ttl", "30"]).json
    assert shorter["votes"] == 3


def test_an_admission_ends_with_the_guard(three: Operated, run: Run) -> None:
    run("admit", "--yes")
    three.time += 64.0
    assert noted(three) == [None] * 3


def test_no_node_is_admitted_while_an_old_attempt_may_go_on(
    three: Operated, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "SystemClock", lambda: three)
    three[0].info["uptime_in_seconds"] = "2"
    three[2].info["uptime_in_seconds"] = "10000"
    lock = "redlock:{k}"
    three.after(1.0, lambda: three[2]._set(lock, "owner:me@here", 60_000.0))
    ran = run("admit", "--yes")
    assert three.slept == [3.0]
    assert f"{C}: it has the lock {lock}" in ran.output
    assert noted(three) == [None] * 3


def test_nodes_of_unknown_age_are_admitted_after_a_pause(
    three: Operated, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "SystemClock", lambda: three)
    three[0].info["uptime_in_seconds"] = "-7"
    assert run("admit", "--yes").exit_code == 0
    assert three.slept == [5.0]


def test_admitted_nodes_still_wait_until_clocks_agree(three: Operated, run: Run) -> None:
    run("admit", "--yes")
    three[0].info["uptime_in_seconds"] = "2"
    assert run("status", "--json").json["nodes"][0]["votes_in"] == pytest.approx(3.0)


@pytest.mark.parametrize("key", ["redlock:{k}", "redlock:{k}:floor", "redlock:{k}:done:me"])
def test_a_node_with_any_key_of_the_lock_is_not_new(three: Operated, run: Run, key: str) -> None:
    three[1]._set(key, "123", 60_000.0)
    ran = run("admit", "--yes")
    assert ran.exit_code == 1
    assert f"Not admitted:\n{B}: it is not new, it has {key}" in ran.output
    assert noted(three) == [None] * 3


def test_a_lock_on_a_node_that_votes_keeps_others_waiting(three: Operated, run: Run) -> None:
    three[2].info["uptime_in_seconds"] = "10000"
    three[2]._set("redlock:{k}", "owner:me@here", 60_000.0)
    ran = run("admit", "--yes")
    assert ran.exit_code == 1
    assert f"{C}: it has the lock redlock:{{k}}" in ran.output
    assert noted(three) == [None] * 3


def test_old_floors_on_a_node_that_votes_do_no_harm(three: Operated, run: Run) -> None:
    three[2].info["uptime_in_seconds"] = "10000"
    three[2]._set("redlock:{k}:floor", "123", 60_000.0)
    assert run("admit", "--yes").exit_code == 0
    assert noted(three) == ["run-0", "run-1", None]


def test_what_a_check_of_the_nodes_leaves_is_no_lock(three: Operated, run: Run) -> None:
    three[0]._set("redlock:{probe-0123456789abcdef}:floor", "1", 1000.0)
    assert run("admit", "--yes").exit_code == 0


def test_keys_of_other_prefixes_do_no_harm(three: Operated, run: Run) -> None:
    three[0]._set("other:{k}", "owner:me@here", 60_000.0)
    assert run("admit", "--yes").exit_code == 0


def test_a_node_that_is_down_may_have_a_lock(three: Operated, run: Run) -> None:
    three[1].is_up = False
    ran = run("admit", "--yes")
    assert ran.exit_code == 1
    assert f"Not admitted:\n{B}: " in ran.output
    assert noted(three) == [None] * 3


def test_a_node_that_refuses_to_tell_may_have_a_lock(three: Operated, run: Run) -> None:
    three[1].refused["SCAN"] = "NOPERM"
    assert f"{B}: NOPERM" in run("admit", "--yes").output
    assert noted(three) == [None] * 3


def test_a_node_that_refuses_the_note_is_named(three: Operated, run: Run) -> None:
    three[1].refused["SET"] = "OOM"
    ran = run("admit", "--yes", "--json")
    assert ran.exit_code == 1
    assert ran.json["admitted"] == [A, C]
    assert ran.json["objections"] == [f"{B}: OOM"]


def test_without_a_guard_there_is_nothing_to_admit(run: Run) -> None:
    ran = run("admit", options=["--no-restart-guard"])
    assert (ran.exit_code, ran.output) == (0, "No node waits for its restart guard.\n")
