"""What `celery-redlock top` prints, with and without a terminal."""

from __future__ import annotations

import importlib
import io
import json
import re
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from types import SimpleNamespace

import click
import pytest
from celery import Celery
from rich.console import Console, Group

from celery_redlock.operate import incidents
from celery_redlock.operate.incidents import Incidents
from celery_redlock.operate.locks import Execution
from celery_redlock.operate.overview import read_overview
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.units import seconds
from tests.support.fakes.operated import Operated
from tests.support.fakes.told import Told
from tests.support.processes.ran import Run

list_ = importlib.import_module("celery_redlock.cli.list_")
top = importlib.import_module("celery_redlock.cli.top")


def test_without_a_terminal_it_is_plain_text(three: Operated, redlock: TaskLock, run: Run) -> None:
    for number in range(3):
        redlock.acquire(f"bank.sync:{number}", 30, label="task")
    redlock.reserve("bank.report:may", 60, label="task")
    three[2].is_up = False
    shown = run("top", "--count", "1", "--lines", "2").output
    headline, nodes, locks = shown.strip().split("\n\n")
    assert headline[:8] == time.strftime("%H:%M:%S", time.localtime(three.wall_us() / 1e6))
    assert headline[8:].splitlines() == [
        "  2 of 3 vote, 2 needed; locks: 3 held, 1 reserved",
        "conflicts: unknown without an app, at whose broker workers announce them",
    ]
    assert [row.split()[:2] for row in nodes.splitlines()[1:]] == [
        ["127.0.0.1:7000", "votes"], ["127.0.0.1:7001", "votes"], ["127.0.0.1:7002", "down"]
    ]  # fmt: skip
    # The longest held.
    assert [row.split()[-1] for row in locks.splitlines()[1:]] == ["bank.sync:0", "bank.sync:1"]
    assert "\x1b" not in shown


def test_without_locks_it_says_so(run: Run) -> None:
    shown = run("top", "--count", "1").output
    assert "; locks: none\n" in shown
    assert shown.endswith("\nno locks\n\n")


def test_without_a_right_to_scan_locks_are_unknown(three: Operated, run: Run) -> None:
    for number in range(3):
        three[number].refused["SCAN"] = "NOPERM no permissions"
    shown = run("top", "--count", "1").output
    assert "; locks: unknown\n" in shown
    assert "\nother locks may be held, and ticks missed: 0 of 3 nodes answered" in shown
    assert shown.endswith("\nlocks are unknown\n\n")
    assert "0 of 3" in json.loads(run("top", "--count", "1", "--json").output)["doubt"]


def test_missed_ticks_are_in_the_headline(three: Operated, redlock: TaskLock, run: Run) -> None:
    ticks: list[str] = []
    for hour in range(4):
        key = f"%beat:bank@0:night:2020-01-01T0{hour}:00:00Z:missed"
        ago = three.wall_us() / 1e6 - datetime(2020, 1, 1, hour, tzinfo=timezone.utc).timestamp()
        ticks.insert(0, f"night 2020-01-01T0{hour}:00:00Z ({seconds(ago)} ago: no quorum)")
        redlock.reserve(key, 86_400, label="no quorum")
    shown = run("top", "--count", "1").output
    assert "; locks: none\n" in shown
    assert "; locks: 4 missed\n" in run("top", "--count", "1", "--kind", "missed").output
    [line] = [line for line in shown.splitlines() if line.startswith("ticks missed")]
    assert line == f"ticks missed in the last day: {', '.join(ticks[:3])}"
    one = json.loads(run("top", "--count", "1", "--json").output)
    assert len(one["missed_ticks"]) == 4
    assert one["missed_ticks"][0]["entry"] == "night"
    assert one["missed_ticks"][0]["why"] == "no quorum"
    assert one["missed_ticks"][0]["slot"] == "2020-01-01T03:00:00Z"


def test_claims_are_shown_only_if_asked_for(redlock: TaskLock, run: Run) -> None:
    redlock.reserve("%beat:bank@0:night:2026-01-01T00:00:00Z", 120, label="id")
    redlock.acquire("bank.sync:1", 30, label="task")
    assert "%beat" not in run("top", "--count", "1").output
    shown = run("top", "--count", "1", "--kind", "published").output
    assert "; locks: 1 published\n" in shown
    assert "%beat:bank@0:night" in shown
    assert "bank.sync:1" not in shown


LONG = "bank.reports.quarterly_statement_of_all_accounts:" + "tenant-9917/" * 8 + "2026-Q3"


def on_80_by_24(three: Operated, header: Sequence[str]) -> list[str]:
    """Return the screen of `top` with more and longer locks than it has room for."""
    redlock = three.redlock()
    redlock.acquire(LONG, 30, label="5b2c1f0e-6d0f-4a37-9d55-1f6c0b6f3a51")
    for number in range(30):
        redlock.acquire(f"bank.sync:{number}", 30, label=f"task-{number}")
    three.pass_(25.0)
    overview = read_overview(three.target(), 20, now=lambda: three.wall_us() / 1e6)
    for lock in overview.oldest:
        lock.execution = Execution("quarterly-reports@worker-17.eu-central-1", 123_456, "(1,)")
    update = top.Update(overview, "unknown: " + "long " * 40, header)
    console = Console(width=80, height=24, record=True, file=io.StringIO())
    console.print(Group(top.rendered(update, 80, 24)))
    return console.export_text().splitlines()


@pytest.mark.parametrize(
    "more", [(), ("WORKER",), ("WORKER", "ARGUMENTS")], ids=["alone", "with an app", "arguments"]
)
def test_on_80_by_24_state_and_time_are_whole(three: Operated, more: Sequence[str]) -> None:
    three[2].is_up = False
    names = ("KIND", "HELD", "EXPIRES IN", "VOTES", "HOLDER", *more, "KEY")
    lines = on_80_by_24(three, sorted(names, key=list(list_._FIELDS).index))
    assert len(lines) == 24
    assert max(map(len, lines)) <= 80
    assert [line.split()[:2] for line in lines[4:7]] == [
        ["127.0.0.1:7000", "votes"], ["127.0.0.1:7001", "votes"], ["127.0.0.1:7002", "down"],
    ]  # fmt: skip
    assert lines[8].split()[:4] == ["KIND", "HELD", "EXPIRES", "IN"]
    for line in lines[9:23]:
        assert re.match(r"held +25\.0 s +5\.0 s +2/3 ", line), line
    # The beginning and the end of the key are there.
    key = lines[9].split()[-1]
    assert key.startswith("bank.report")
    assert key.endswith("2026-Q3")
    assert "…" in key
    assert lines[23] == "… 6 more"
    assert lines[1].startswith("conflicts: unknown: long")
    assert lines[1].endswith("…")
    assert lines[2] == lines[7] == ""


@pytest.mark.parametrize(
    ("height", "last"),
    [(13, "k:2"), (12, "k:2"), (11, "… 2 more"), (10, "… 3 more"), (9, "KEY"), (8, "")],
)
def test_the_rest_of_the_locks_is_counted(
    three: Operated, redlock: TaskLock, height: int, last: str
) -> None:
    for number in range(3):
        redlock.acquire(f"k:{number}", 30)
    overview = read_overview(three.target(), 20, now=lambda: three.wall_us() / 1e6)
    lines = top.screen(top.Update(overview, 0.0, ("KEY",)), 200, height)
    assert len(lines) == min(height, 12)
    assert click.unstyle(lines[-1]) == last


def test_a_screen_without_locks_says_so(three: Operated) -> None:
    overview = read_overview(three.target(), 20, now=lambda: three.wall_us() / 1e6)
    update = top.Update(overview, 1 / 3, ("KEY",))
    assert top.screen(update, 80, 24)[-1] == "no locks"
    assert top.update_json(update)["conflicts_per_second"] == 0.333


def test_workers_that_do_not_answer_are_unknown(
    bank: Celery, redlock: TaskLock, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    redlock.acquire("bank.sync:1", 30, label="task-1")
    Told(bank, monkeypatch)
    monkeypatch.setattr(Incidents, "start", lambda _: None)
    shown = run("top", "--count", "1", app=bank).output
    assert "\nworkers and processes are unknown: no worker answered within 1 s\n" in shown


def test_it_pauses_between_updates_and_sees_what_is_new(
    three: Operated, redlock: TaskLock, run: Run
) -> None:
    lease = redlock.acquire("k", 30)
    three.after(2.0, three.expire)
    three[0].is_up = False
    three.after(2.5, lambda: setattr(three[0], "is_up", True))
    slept = len(three.slept)
    lines = run("top", "--count", "3", "--interval", "1.5", "--json").output.splitlines()
    assert three.slept[slept:] == [1.5, 1.5]
    first, second, third = map(json.loads, lines)
    assert [one["at"] - first["at"] for one in (first, second, third)] == [0.0, 1.5, 3.0]
    assert [one["votes"] for one in (first, second, third)] == [2, 2, 3]
    assert [one["counts"] for one in (first, second, third)] == [{"held": 1}, {"held": 1}, {}]
    assert [one["needed"] for one in (first, second, third)] == [2] * 3
    assert [lock["token"] for lock in first["oldest"]] == [lease.token]


def test_conflicts_per_second_are_shown_from_the_second_update_on(
    run: Run, three: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Heard(Incidents):
        def start(self) -> None:
            self.problem = None

        conflicts = property(lambda self: int(three.wall_us() / 1e6) * 3, lambda self, _: None)

    monkeypatch.setattr(incidents, "Incidents", Heard)
    app = Celery("bank", set_as_current=False)
    app.conf.redlock_nodes = three.urls
    words = ("top", "--count", "2", "--interval", "2")
    shown = run(*words, app=app).output
    assert re.findall("^conflicts: (.*)", shown, re.MULTILINE) == [
        "not measured yet", "3.0 per second"
    ]  # fmt: skip
    lines = run(*words, "--json", app=app).output.splitlines()
    assert [json.loads(line)["conflicts_per_second"] for line in lines] == [None, 3.0]


def test_ctrl_c_ends_it_without_an_error(
    run: Run, three: Operated, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(top.time, "sleep", interrupt)
    ran = run("top", "--json")
    assert ran.exit_code == 0
    assert len(ran.output.splitlines()) == 1


@pytest.mark.parametrize(
    "words", [("--count", "0"), ("--interval", "0.05"), ("--lines", "-1")], ids=str
)
def test_an_invalid_number_is_refused(run: Run, words: tuple[str, str]) -> None:
    assert run("top", *words).exit_code == 2


@pytest.fixture
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True)))
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "200"}.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_terminal")
def test_on_a_terminal_it_is_a_live_table(three: Operated, redlock: TaskLock, run: Run) -> None:
    redlock.acquire("bank.sync:42", 30, label="task-1")
    three[0].is_up = False
    ran = run("top", "--count", "1")
    assert "\x1b[?1049h" in ran.output  # the alternate screen
    for shown in ("2 of 3 vote, 2 needed; locks: 1 held", "127.0.0.1:7000", "bank.sync:42"):
        assert shown in ran.output
    assert ran.exit_code == 0


@pytest.mark.usefixtures("_terminal")
def test_on_a_terminal_as_json_it_is_a_line(run: Run) -> None:
    assert run("top", "--count", "1", "--json").json["votes"] == 3


@pytest.mark.usefixtures("_terminal")
def test_without_rich_the_error_names_the_extra(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.live", None)
    ran = run("top", "--count", "1")
    assert "pip install 'celery-redlock[top]'" in ran.output
    assert ran.exit_code == 1
