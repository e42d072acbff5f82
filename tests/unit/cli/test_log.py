"""What `celery-redlock log` prints and exits with."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from celery_redlock.operate import operator_log
from celery_redlock.operate.operator_log import Action, recorded
from celery_redlock.operate.removal import operator
from celery_redlock.redlock.task_lock import TaskLock
from tests.support.fakes.operated import Operated
from tests.support.processes.ran import Run


@pytest.fixture
def record(three: Operated, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Record an action on a key, so many seconds ago."""

    def record(key: str, ago: float = 0.0, reason: str = "") -> None:
        at = three.wall_us() / 1e6 - ago
        monkeypatch.setattr(operator_log, "time", SimpleNamespace(time=lambda: at))
        action = Action("release", "alice@ops", "held by task-1@host", key, reason)
        with three.target().nodes() as nodes, recorded(three.target(), nodes, action) as result:
            result.text = "released"
        now = three.wall_us() / 1e6
        monkeypatch.setattr(operator_log, "time", SimpleNamespace(time=lambda: now))

    return record


def test_actions_are_listed_the_latest_last(run: Run, record: Callable[..., None]) -> None:
    record("k", 60.0, "it hangs\x1b")
    record("second", 30.0)
    ran = run("log")
    head, first, second, empty, total = ran.output.splitlines()
    assert head.split() == ["TIME", "BY", "ACTION", "RESULT", "KEY", "WHAT", "REASON"]
    cells = [cell.strip() for cell in first.split("  ") if cell]
    assert cells[1:] == [
        "alice@ops", "release", "released", "k", "held by task-1@host", "it hangs\\x1b"
    ]  # fmt: skip
    assert second.endswith("second  held by task-1@host  -")
    assert (empty, total) == ("", "2 actions. Times are UTC.")
    assert ran.exit_code == 0


def test_actions_are_documents_in_json(run: Run, record: Callable[..., None]) -> None:
    record("k", 1.0, "it hangs")
    record("other")
    first, second = run("log", "--json").json
    assert {**first, "at": "", "id": ""} == {
        "at": "", "author": "alice@ops", "action": "release", "result": "released", "key": "k",
        "what": "held by task-1@host", "reason": "it hangs", "id": "",
    }  # fmt: skip
    assert first["at"].endswith("+00:00")
    assert second["reason"] is None


def test_actions_of_a_key_or_of_late_are_asked_for(run: Run, record: Callable[..., None]) -> None:
    record("k", 7300.0)
    record("k", 7100.0)
    record("other", 60.0)
    for words, keys in (
        (["--key", "k"], ["k", "k"]),
        (["--since", "2h"], ["k", "other"]),
        (["--since", "60"], ["other"]),
        (["--since", "1.5m", "--key", "k"], []),
        (["--since", "3d"], ["k", "k", "other"]),
    ):
        assert [one["key"] for one in run("log", *words, "--json").json] == keys, words
    assert run("log", "--key", "none").output == "0 actions. Times are UTC.\n"


@pytest.mark.parametrize("value", ["", "h", "-1h", "1w", "nan", "1h 3m", "٣h"])
def test_what_is_no_duration_is_refused(run: Run, value: str) -> None:
    ran = run("log", "--since", value)
    assert "is not a duration such as 90, 30s, 15m, 2h or 7d." in ran.output
    assert ran.exit_code == 2


def test_without_a_quorum_it_exits_with_1(
    three: Operated, run: Run, record: Callable[..., None]
) -> None:
    record("k")
    three[0].is_up = False
    one = run("log")
    assert "127.0.0.1:7000 is left out: Connection refused\n" in one.output
    three[1].is_up = False
    two = run("log")
    assert "held by task-1@host" in two.output
    assert (one.exit_code, two.exit_code) == (0, 1)


def test_a_release_is_in_the_log_with_its_operator(redlock: TaskLock, run: Run) -> None:
    redlock.acquire("k", 30, label="task-1")
    assert run("release", "k", "--reason", "it hangs").exit_code == 0
    assert run("log", "--json").json == [], "nothing was done"
    assert run("release", "k", "--yes", "--reason", "it hangs").exit_code == 0
    [action] = run("log", "--json").json
    assert (action["author"], action["reason"]) == (operator(), "it hangs")
    assert action["what"].startswith("held by task-1@")
