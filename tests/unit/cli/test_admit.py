"""What `redlock admit` prints and exits with; `unit/operate/test_admission` has the rules."""

from __future__ import annotations

import pytest

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


def test_what_speaks_against_an_admission_is_named(three: Operated, run: Run) -> None:
    three[1]._set("redlock:{k}", "owner:me@here", 60_000.0)
    ran = run("admit", "--yes")
    assert ran.exit_code == 1
    assert ran.output.endswith(f"\nNot admitted:\n{B}: it is not new, it has redlock:{{k}}\n")
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
