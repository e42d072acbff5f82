"""Real beats that were all down when ticks were due, and what they make up for."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from click.testing import CliRunner

from celery_redlock.cli.alone import main
from tests.support.processes.beats import executed, gaps
from tests.support.processes.project import Project

from . import test_beat
from .test_beat import Start, end, wait_for_runs, wait_for_whole_runs

entry, project, scheduler = test_beat.entry, test_beat.project, test_beat.scheduler
start = test_beat.start
DOWN_S = 8.0


def missed_on(nodes: Any) -> list[Any]:
    """Return the missed ticks that an operator sees."""
    named = [word for url in nodes for word in ("--node", url)]
    top = ["--no-restart-guard", "--node-timeout", "20", "top", "--count", "1", "--json"]
    shown: list[Any] = json.loads(CliRunner().invoke(main, [*named, *top]).output)["missed_ticks"]
    return shown


@pytest.mark.long
def test_each_entry_is_made_up_for_within_its_own_grace(
    project: Project, start: Start, entry: str, scheduler: dict[str, Any]
) -> None:
    graced = f"{entry}-graced"
    headers = {"redlock_beat_misfire_grace_time": 300}
    entries = {entry: {"every": 1}, graced: {"every": 1, "headers": headers}}
    options = dict(scheduler, test_entries=entries, redlock_beat_misfire_grace_time=2, name=entry)
    beats = start(1, **options)
    for name in entries:
        wait_for_runs(project, name, 3)
    end(*beats)
    time.sleep(DOWN_S)
    start(1, **options)
    wait_for_runs(project, entry, len(executed(project, entry)) + 3)
    wait_for_whole_runs(project, graced, len(executed(project, graced)) + int(DOWN_S) + 3)
    assert max(gaps(executed(project, entry))) >= 4.0
    missed = missed_on(project.conf["redlock_nodes"])
    assert {tick["entry"] for tick in missed if tick["entry"].startswith(entry)} == {entry}
