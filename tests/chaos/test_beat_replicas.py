"""Three replicas of beat on hosts whose clocks differ, while they and the nodes die around them."""

from __future__ import annotations

import datetime as dt
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from celery.beat import ScheduleEntry
from celery.schedules import crontab, schedule

from celery_redlock.beat.slots import EPOCH, slots_between
from celery_redlock.beat.ticks import Tick
from celery_redlock.config.identity import identity_of
from celery_redlock.redlock.protocol.quorum import guard_s
from celery_redlock.testing import Servers
from tests.support.eventually import eventually
from tests.support.evidence import record
from tests.support.faults.clock_shim import WallClock
from tests.support.faults.nemesis import Strike, Strikes, alone
from tests.support.faults.of_nodes import Victims, node_nemeses
from tests.support.faults.of_processes import replica_nemeses
from tests.support.processes.beats import Beat, executed, moment, start_beats
from tests.support.processes.inside import FOLDER_VARIABLE
from tests.support.processes.project import Project
from tests.support.root import ROOT

pytestmark = pytest.mark.chaos
SECONDS = min(200.0, max(30.0, float(os.environ.get("REDLOCK_CHAOS_SECONDS", "200"))))
SEED = 1
STOPPED_S, KILLED_S, REST_S = 15.0, 3.0, 3.0
ENTRIES: dict[str, Any] = {
    "every-second": {"every": 1},
    "every-5-seconds": {"every": 5},
    "every-minute": {"crontab": "* * * * *"},
}
SCHEDULES: dict[str, Any] = {
    "every-second": schedule(1),
    "every-5-seconds": schedule(5),
    "every-minute": crontab(),
}
# As they come if there is time for it; else with a restart guard that is over soon.
MAX_TTL = 60.0 if SECONDS >= 200 else 5.0
DJANGO = {"DJANGO_SETTINGS_MODULE": "tests.integration.apps.django_settings"}


def conf_of(scheduler: str) -> dict[str, Any]:
    conf: dict[str, Any] = {
        "test_entries": ENTRIES,
        "redlock_restart_guard": True,
        "redlock_max_ttl": MAX_TTL,
        "redlock_ttl": min(MAX_TTL, 30.0),
        "redlock_node_timeout": 0.2,
    }
    match scheduler:
        case "redbeat":
            conf["redlock_beat_scheduler"] = "redbeat.RedBeatScheduler"
        case "database":
            conf["redlock_beat_scheduler"] = "django_celery_beat.schedulers:DatabaseScheduler"
    return conf


def make_tables(folder: Path) -> None:
    environment = os.environ | {FOLDER_VARIABLE: str(folder)} | DJANGO
    command = [sys.executable, "-m", "django", "migrate", "--verbosity", "0"]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=120)


@pytest.fixture(scope="module")
def told() -> dict[str, dict[str, int]]:
    """What was counted, by scheduler."""
    return {}


def wait_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.time()))


def faults_of(beats: Sequence[Beat], nodes: Servers) -> list[Strike]:
    """Return faults of one replica after the other, and of a minority of nodes meanwhile."""
    of_beats = replica_nemeses("beat", beats, stopped_s=STOPPED_S)
    rounds = max(1, int(SECONDS / (STOPPED_S + KILLED_S + 2 * REST_S)))
    schedule = alone(of_beats * rounds, seed=SEED, seconds=KILLED_S, rest=REST_S)
    of_nodes = node_nemeses(Victims(nodes, ["none"] * len(nodes)))
    [killed] = [nemesis for nemesis in of_nodes if nemesis.name == "minority-killed"]
    return [*schedule, Strike(0.4 * SECONDS, 0.2 * SECONDS, killed, SEED)]


@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.parametrize("scheduler", ["persistent", "database", "redbeat"])
def test_each_tick_is_executed_once_whatever_happens(
    scheduler: str,
    told: dict[str, dict[str, int]],
    servers: Callable[..., Servers],
    new_wall_clock: Callable[[], WallClock],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    nodes, [broker] = servers(5), servers(1)
    voting_at = time.time() + guard_s(MAX_TTL, 1.0) + 1
    conf = conf_of(scheduler) | {"redbeat_redis_url": f"{broker.url}/2"}
    with Project(
        "tests.integration.apps.ticking",
        tmp_path,
        f"{broker.url}/0",
        f"{broker.url}/1",
        nodes,
        **conf,
    ) as project:
        if scheduler == "database":
            make_tables(tmp_path)
        project.start_worker(pool="threads", concurrency=8)
        wait_until(voting_at)
        beats = []
        for ahead in (0.9, 0.0, -0.9):
            clock = new_wall_clock()
            clock.step(ahead)
            env = clock.env | (DJANGO if scheduler == "database" else {})
            beats += start_beats(project, 1, env=env)
        begin = time.time() + 2
        wait_until(begin)
        with Strikes(faults_of(beats, nodes)) as strikes:
            strikes.wait()
        assert strikes.errors == []
        wait_until(begin + SECONDS)
        end = time.time() - 2
        due = {name: slots_of(name, begin, end) for name in ENTRIES}
        eventually(lambda: all(set(due[name]) <= set(executed(project, name)) for name in ENTRIES))
        # What was published twice would be executed again by now.
        time.sleep(2)
        assert all(beat.is_running for beat in beats)
        rows = [row_of(project, name, due[name]) for name in ENTRIES]
    with capsys.disabled():
        print(table(scheduler, rows))  # noqa: T201  # it is what is to be shown
    told[scheduler] = {
        "faults": len(strikes.faults),
        "ticks": sum(row["due"] for row in rows),
        "executions": sum(row["executions"] for row in rows),
        "violations": sum(row["twice"] + row["lost"] for row in rows),
    }
    record(
        "beat_replicas",
        schedulers=[{"scheduler": name, **counts} for name, counts in told.items()],
        violations=sum(counts["violations"] for counts in told.values()),
    )
    for row in rows:
        assert row["due"] == row["published"] == row["executions"], row
        assert (row["twice"], row["lost"]) == (0, 0), row


def slots_of(name: str, begin: float, end: float) -> list[float]:
    utc = dt.timezone.utc
    between = slots_between(
        SCHEDULES[name], dt.datetime.fromtimestamp(begin, utc), dt.datetime.fromtimestamp(end, utc)
    )
    return [slot.timestamp() for slot in between]


def row_of(project: Project, name: str, due: list[float]) -> dict[str, Any]:
    received = re.findall(r"Task \S+\[(\S+)\] received", project.workers[0].log_text())
    messages = [received.count(task_id_of(project, name, slot)) for slot in due]
    # Read once: more ticks are executed meanwhile.
    walls = [
        (moment(note.more["slot"]), note.more["wall"]) for note in project.notes("run", entry=name)
    ]
    late = {slot: wall - slot for slot, wall in walls}
    runs = [slot for slot, _ in walls if slot in set(due)]
    return {
        "entry": name,
        "due": len(due),
        "published": sum(count > 0 for count in messages),
        "messages": sum(messages),
        "executions": len(runs),
        "twice": len(runs) - len(set(runs)),
        "lost": len(set(due) - set(runs)),
        "latest_s": f"{max([late[slot] for slot in due], default=0.0):.1f}",
    }


def task_id_of(project: Project, name: str, slot: float) -> str:
    entry = ScheduleEntry(name, last_run_at=EPOCH)
    moment = dt.datetime.fromtimestamp(slot, dt.timezone.utc)
    return Tick(entry, moment, identity_of(project.app)).task_id


def table(scheduler: str, rows: list[dict[str, Any]]) -> str:
    names = list(rows[0])
    lines = [f"\n{scheduler}, {SECONDS:.0f} s", " | ".join(f"{name:>15}" for name in names)]
    lines += [" | ".join(f"{row[name]!s:>15}" for name in names) for row in rows]
    return "\n".join(lines)
