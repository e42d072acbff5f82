"""What `celery-redlock doctor` prints, and exits with."""

from __future__ import annotations

import re
import shlex

import pytest
from celery import Celery

from celery_redlock.config.identity import identity_of
from celery_redlock.operate.doctor import TRAPS
from celery_redlock.redlock.task_lock import TaskLock
from tests.support.fakes.operated import Operated
from tests.support.processes.ran import Run


def test_without_a_finding_it_says_so_and_succeeds(run: Run) -> None:
    ran = run("doctor", "--strict")
    assert (ran.exit_code, ran.output) == (0, "Nothing was found.\n")
    shown = run("doctor", "--json").json
    assert shown == {"error": 0, "warning": 0, "unknown": 0, "findings": []}


@pytest.mark.parametrize(
    ("info", "severity", "plain", "strict"),
    [
        ({"maxmemory_policy": "allkeys-lru"}, "error", 1, 1),
        ({"connected_slaves": "1"}, "warning", 0, 1),
        ({"maxmemory_policy": None}, "unknown", 0, 0),
    ],
)
def test_an_error_fails_and_with_strict_a_warning_too(
    three: Operated,
    run: Run,
    info: dict[str, str | None],
    severity: str,
    plain: int,
    strict: int,
) -> None:
    three[1].info = {
        name: value for name, value in (three[1].info | info).items() if value is not None
    }
    ran = run("doctor", "--json")
    assert ran.json[severity] == 1
    assert sum(ran.json[one] for one in ("error", "warning", "unknown")) == 1
    assert ran.exit_code == plain
    assert run("doctor", "--json", "--strict").exit_code == strict


def test_a_finding_says_what_where_why_and_how_to_mend_it(three: Operated, run: Run) -> None:
    three[1].info["maxmemory_policy"] = "allkeys-lru"
    three[2].is_up = False
    assert run("doctor").output == (
        "ERROR    RL104  a node may evict keys\n"
        "         where:  127.0.0.1:7001\n"
        "         what:   maxmemory_policy:allkeys-lru\n"
        "         why:    A node that evicts a lock key gives the same lock away twice.\n"
        "         fix:    Set maxmemory-policy noeviction, and keep other data off the node.\n"
        "         more:   docs/reference/doctor.md#rl104\n"
        "\n"
        "WARNING  RL102  a node can't be used\n"
        "         where:  127.0.0.1:7002\n"
        "         what:   Connection refused\n"
        "         why:    The quorum has less to spare: with one more failure no lock may be "
        "acquired.\n"
        "         fix:    Start the node, or mend the network or the user in its URL.\n"
        "         more:   docs/reference/doctor.md#rl102\n"
        "\n"
        "1 error, 1 warning, 0 unknown.\n"
    )


def test_a_severity_has_a_colour(three: Operated, run: Run) -> None:
    three[0].info = three[0].info | {"maxmemory_policy": "allkeys-lru", "connected_slaves": "1"}
    del three[1].info["maxmemory_policy"]
    output = run("doctor", color=True).output
    colours = re.findall(r"\x1b\[(\d+)m(\w+) *\x1b\[0m", output)
    assert colours == [("31", "ERROR"), ("33", "WARNING"), ("36", "UNKNOWN")]


def test_as_json_a_finding_has_the_same_fields(three: Operated, run: Run) -> None:
    three[1].info["maxmemory_policy"] = "allkeys-lru"
    [finding] = run("doctor", "--json").json["findings"]
    assert finding == {
        "code": "RL104",
        "severity": "error",
        "title": "a node may evict keys",
        "where": "127.0.0.1:7001",
        "what": "maxmemory_policy:allkeys-lru",
        "why": "A node that evicts a lock key gives the same lock away twice.",
        "fix": "Set maxmemory-policy noeviction, and keep other data off the node.",
        "docs": "docs/reference/doctor.md#rl104",
    }


@pytest.mark.parametrize(
    ("fleet", "code"), [((), 0), (("--fleet", "100", "2"), 0), (("--fleet", "100", "3"), 1)]
)
def test_a_fleet_that_finds_no_room_is_an_error(
    three: Operated, run: Run, fleet: tuple[str, ...], code: int
) -> None:
    three[0].info["maxclients"] = "500"
    ran = run("doctor", "--json", *fleet)
    assert [one["code"] for one in ran.json["findings"]] == ["RL120"] * code
    assert ran.exit_code == code


@pytest.mark.parametrize("fleet", [("0", "1"), ("1", "0"), ("1", "many")])
def test_an_invalid_fleet_is_refused(run: Run, fleet: tuple[str, str]) -> None:
    assert run("doctor", "--fleet", *fleet).exit_code == 2


def test_a_remedy_names_the_command_with_app_and_key(
    three: Operated, bank: Celery, redlock: TaskLock, run: Run
) -> None:
    key = f"%beat:{identity_of(bank)}:by%20day's:2026-01-01T13:00:00Z:missed"
    redlock.reserve(key, 9, label="id")
    line = f"celery -A bank redlock release {shlex.quote(key)}"
    assert f"; `{line}` removes it." in run("doctor", app=bank).output
    [finding] = [
        one for one in run("doctor", "--json", app=bank).json["findings"] if one["code"] == "RL302"
    ]
    assert f"`{line}`" in finding["fix"]
    assert run(*shlex.split(line)[4:], "--yes", app=bank).exit_code == 0
    assert three.holders(key) == [None] * 3


def test_a_remedy_without_an_app_names_the_nodes(three: Operated, run: Run) -> None:
    three[0].info["uptime_in_seconds"] = "20"
    node_words = " ".join(f"--node {url}" for url in three.urls)
    output = run("doctor", options=["--restart-guard"]).output
    assert f"`celery-redlock {node_words} --restart-guard admit --yes`" in output


def test_a_code_is_explained_without_asking_the_nodes(three: Operated, run: Run) -> None:
    for index in range(3):
        three[index].is_up = False
    ran = run("doctor", "--explain", "rl104")
    assert ran.exit_code == 0
    assert ran.output == (
        "RL104  a node may evict keys\n"
        "why:   A node that evicts a lock key gives the same lock away twice.\n"
        "fix:   Set maxmemory-policy noeviction, and keep other data off the node.\n"
        "more:  docs/reference/doctor.md#rl104\n"
    )


def test_an_explanation_is_a_document_in_json(run: Run) -> None:
    assert run("doctor", "--explain", "RL104", "--json").json == [
        {
            "code": "RL104",
            "title": "a node may evict keys",
            "why": "A node that evicts a lock key gives the same lock away twice.",
            "fix": "Set maxmemory-policy noeviction, and keep other data off the node.",
            "docs": "docs/reference/doctor.md#rl104",
        }
    ]


def test_without_a_code_all_explanations_are_documents_in_json(run: Run) -> None:
    explained = run("doctor", "--explain", "--json").json
    assert [(one["code"], one["why"]) for one in explained] == [
        (trap.code, trap.why) for trap in TRAPS
    ]


def test_a_remedy_that_is_explained_names_the_command_with_the_app(bank: Celery, run: Run) -> None:
    output = run("doctor", "--explain", "RL103", app=bank).output
    assert "`celery -A bank redlock admit --yes`" in output


def test_without_a_code_all_findings_are_listed(run: Run) -> None:
    lines = run("doctor", "--explain").output.splitlines()
    assert len(lines) == 1 + len(TRAPS)
    assert lines[:2] == ["CODE   FINDING", "RL101  no quorum votes"]


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("RL1004", "did you mean RL104?"),
        ("eviction", "--explain without a code lists them."),
    ],
)
def test_an_unknown_code_is_an_error_with_a_remedy(run: Run, code: str, remedy: str) -> None:
    ran = run("doctor", "--explain", code)
    assert ran.exit_code == 2
    assert f"{code!r} is an unknown code; {remedy}" in ran.output
