"""Real beat processes: several replicas, what happens to them, and that each tick runs once."""

from __future__ import annotations

import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from celery_redlock.testing import Server
from tests.integration.conftest import NewProject
from tests.support.eventually import eventually
from tests.support.faults.clock_shim import WallClock
from tests.support.faults.proxy import Proxy
from tests.support.processes.beats import (
    Beat,
    env_of,
    executed,
    gaps,
    moment,
    published,
    start_beats,
)
from tests.support.processes.commands import celery_of, environment_of
from tests.support.processes.project import Project
from tests.support.processes.start import run
from tests.support.processes.workers import Worker

FAULTY = "tests.integration.apps.faulty_schedulers:Faulty"
DJANGO: dict[str, Any] = {
    "redlock_beat_scheduler": "django_celery_beat.schedulers:DatabaseScheduler",
    "env": {"DJANGO_SETTINGS_MODULE": "tests.integration.apps.django_settings"},
}
Start = Callable[..., list[Beat]]


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    project = new_project("ticking")
    project.start_worker(pool="threads", concurrency=8)
    return project


@pytest.fixture
def entry() -> str:
    """The name of an entry that no other test has."""
    return uuid.uuid4().hex[:8]


@pytest.fixture
def start(project: Project) -> Iterator[Start]:
    """Start replicas, which end with the test: `start(3, test_entries={…})`, see `Beat`."""
    beats: list[Beat] = []

    def start(count: int, **options: Any) -> list[Beat]:
        beats.extend(start_beats(project, count, **options))
        return beats[-count:]

    yield start
    end(*beats)


def end(*replicas: Worker) -> list[int]:
    """End these replicas as a supervisor does; return their exit codes."""
    for replica in replicas:
        if replica.is_running:
            with suppress(ProcessLookupError):
                replica.resume()
            replica.ask_to_end()
    return [replica.wait_until_ended() for replica in replicas]


def broker_of(project: Project) -> str:
    """Return the URL of the broker's server."""
    return str(project.conf["broker_url"]).removesuffix("/0")


def wait_for_runs(project: Project, entry: str, count: int) -> list[float]:
    """Return the slots of an entry that were executed, as soon as they are that many."""
    eventually(lambda: len(executed(project, entry)) >= count, f"{count} runs of {entry}")
    return executed(project, entry)


def wait_for_whole_runs(
    project: Project, entry: str, count: int, every: float = 1.0
) -> list[float]:
    """Return the slots of an entry that were executed, once they are so many without a gap.

    The worker's threads may be done with a later tick first.
    """
    runs: list[float] = []

    def are_whole() -> bool:
        runs[:] = executed(project, entry)
        return len(runs) >= count and set(gaps(runs)) == {every}

    eventually(are_whole, f"{count} runs of {entry}, one each {every:g} s")
    return runs


def run_python(project: Project, *args: str) -> str:
    """Run a module that uses Django, and return what it printed."""
    ended = run([sys.executable, "-m", *args], environment_of(project) | DJANGO["env"])
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def new_database(project: Project) -> None:
    """Give django-celery-beat an empty database.

    A replica makes up for the ticks of every entry that it finds, so those of earlier tests too.
    """
    for file in project.folder.glob("schedule.sqlite3*"):
        file.unlink()
    run_python(project, "django", "migrate", "--verbosity", "0")


# --- schedulers -----------------------------------------------------------------------------------


@pytest.fixture(params=["persistent", "redbeat", "database"])
def scheduler(request: pytest.FixtureRequest, project: Project) -> dict[str, Any]:
    """What a replica is told so that it builds on this scheduler."""
    match request.param:
        case "redbeat":
            return {
                "redlock_beat_scheduler": "redbeat.RedBeatScheduler",
                "redbeat_redis_url": f"{broker_of(project)}/2",
            }
        case "database":
            new_database(project)
            return DJANGO
    return {}


def test_of_three_replicas_one_publishes_each_tick(
    project: Project, start: Start, entry: str, scheduler: dict[str, Any]
) -> None:
    other = f"{entry}-other"
    beats = start(3, test_entries={entry: {"every": 1}, other: {"every": 2}}, **scheduler)
    wait_for_runs(project, entry, 8)
    assert end(*beats) == [0, 0, 0]
    slots = published(entry, *beats)
    assert sorted(wait_for_runs(project, entry, len(slots))) == sorted(slots)
    assert set(gaps(slots)) == {1.0}
    assert set(gaps(published(other, *beats))) == {2.0}


@pytest.mark.long
def test_one_off_entries_of_django_celery_beat_run_once(
    project: Project, start: Start, entry: str
) -> None:
    new_database(project)
    module = "tests.integration.apps.django_entries"
    options = dict(DJANGO, test_entries={entry: {"every": 1}}, redlock_beat_misfire_grace_time=300)
    at = float(run_python(project, module, project.tasks.once.name))
    beats = start(2, **options)
    eventually(lambda: max(executed(project, entry), default=0) > at + 2)
    # Nothing was written to the database yet.
    for beat in beats:
        beat.kill()
    killed_at = time.time()
    start(1, **options)
    eventually(lambda: max(executed(project, entry)) > killed_at + 4)
    assert executed(project, "clocked") == [at]
    assert executed(project, "interval") == [at]


@pytest.mark.long
def test_rows_of_django_celery_beat_that_change_have_missed_nothing(
    project: Project, start: Start, entry: str
) -> None:
    new_database(project)

    def change(how: str, value: object = "", name: str = entry) -> float:
        module = "tests.integration.apps.django_changes"
        task = project.tasks.once.name
        return float(run_python(project, module, how, name, task, str(value)))

    change("every", 3600)
    beats = start(2, **DJANGO, test_entries={f"{entry}-other": {"every": 1}})
    time.sleep(8)
    edited_at = change("every", 1)
    eventually(lambda: max(executed(project, entry), default=0) > edited_at + 4)
    # One that is started now knows of no other schedule; nor do the rows, until they are saved.
    beats[0].kill()
    beats += start(1, **DJANGO)
    eventually(lambda: max(executed(project, entry)) > edited_at + 12)
    disabled_at = change("disable")
    time.sleep(12)
    enabled_at = change("enable")
    change("clocked", time.time(), f"{entry}-now")
    eventually(lambda: max(executed(project, entry)) > enabled_at + 4)
    eventually(lambda: executed(project, f"{entry}-now"))
    runs = executed(project, entry)
    # Replicas look at the rows at least every 5 s.
    assert min(runs) > edited_at - 5.5
    assert not [slot for slot in runs if disabled_at + 6 < slot < enabled_at - 5.5]
    assert len(runs) == len(set(runs))


def test_beat_in_every_worker_publishes_each_tick_once(project: Project, entry: str) -> None:
    workers = []
    for number in range(2):
        name = f"embedding-{number}-{entry}"
        file = project.folder / f"{name}.schedule"
        workers.append(
            project.new_worker(
                name=name,
                concurrency=1,
                args=("-B", "--scheduler", "redlock", "--schedule", str(file)),
                env=env_of(project.folder, {"test_entries": {entry: {"every": 1}}}),
            )
        )
        workers[-1].start()
    wait_for_runs(project, entry, 3)
    workers[0].kill_all()
    wait_for_runs(project, entry, len(executed(project, entry)) + 5)
    # It may have had a claim, which ends in ten seconds.
    eventually(lambda: set(gaps(executed(project, entry))) == {1.0})
    end(workers[1])
    runs = executed(project, entry)
    assert len(runs) == len(set(runs))


# --- a replica dies, or can't publish -------------------------------------------------------------


def test_ticks_of_replicas_that_die_in_between_are_executed_once(
    project: Project, start: Start, entry: str
) -> None:
    beats = start(3, test_entries={entry: {"every": 1}}, redlock_beat_scheduler=FAULTY)
    wait_for_runs(project, entry, 2)
    copies = len(project.workers[0].lines("message handled by another copy, copy discarded"))
    for left, fault in ((2, "die-before"), (1, "die-after")):
        (project.folder / fault).touch()
        while sum(beat.is_running for beat in beats) > left:
            time.sleep(0.01)
    died_at = time.time()
    # Whoever is left takes both over when their claims have ended.
    project.workers[0].wait_for_line(
        "message handled by another copy, copy discarded", count=copies + 1
    )
    eventually(lambda: set(gaps(executed(project, entry))) == {1.0})
    eventually(lambda: max(executed(project, entry)) > died_at + 12)
    assert sorted(end(*beats)) == [-9, -9, 0]
    wait_for_whole_runs(project, entry, 2)


def test_a_tick_that_failed_to_publish_may_be_taken_over(
    project: Project, start: Start, entry: str
) -> None:
    beats = start(2, test_entries={entry: {"every": 1}}, redlock_beat_scheduler=FAULTY)
    wait_for_runs(project, entry, 2)
    (project.folder / "fail").touch()
    eventually(lambda: any(beat.lines("tick not published.*told to fail") for beat in beats))
    wait_for_whole_runs(project, entry, len(executed(project, entry)) + 4)


def test_while_the_broker_is_away_ticks_wait_in_order(
    project: Project,
    start: Start,
    entry: str,
    proxy_for: Callable[[Server], Proxy],
) -> None:
    broker = Server()
    broker.port = int(broker_of(project).rpartition(":")[2])
    proxy = proxy_for(broker)
    [beat] = start(1, test_entries={entry: {"every": 1}}, broker_url=f"{proxy.url}/0")
    wait_for_runs(project, entry, 2)
    proxy.refuse()
    proxy.reset()
    beat.wait_for_line("tick publishing paused reason=no broker")
    time.sleep(4)
    before = executed(project, entry)
    proxy.heal()
    beat.wait_for_line("tick publishing resumed")
    wait_for_whole_runs(project, entry, len(before) + 6)
    slots = published(entry, beat)
    assert slots == sorted(slots)


def test_a_beat_started_without_a_broker_publishes_later(
    project: Project, start: Start, entry: str, proxy_for: Callable[[Server], Proxy]
) -> None:
    broker = Server()
    broker.port = int(broker_of(project).rpartition(":")[2])
    proxy = proxy_for(broker)
    proxy.refuse()
    [beat] = start(
        1,
        test_entries={entry: {"every": 1}},
        broker_url=f"{proxy.url}/0",
        broker_connection_max_retries=1,
    )
    beat.wait_for_line("tick publishing paused reason=no broker")
    time.sleep(4)
    proxy.heal()
    beat.wait_for_line("tick publishing resumed")
    wait_for_whole_runs(project, entry, 6)
    assert len(beat.lines("ERROR")) == 1


@pytest.mark.long
@pytest.mark.parametrize("scheduler", ["persistent", "database"], indirect=True)
def test_ticks_that_wait_survive_a_restart_of_their_replica(
    project: Project,
    start: Start,
    entry: str,
    scheduler: dict[str, Any],
    proxy_for: Callable[[Server], Proxy],
) -> None:
    broker = Server()
    broker.port = int(broker_of(project).rpartition(":")[2])
    proxy = proxy_for(broker)
    entries = {entry: {"every": 2}}
    options = dict(scheduler, test_entries=entries, broker_url=f"{proxy.url}/0", name=entry)
    [beat] = start(1, **options)
    wait_for_runs(project, entry, 2)
    proxy.refuse()
    proxy.reset()
    beat.wait_for_line("tick publishing paused reason=no broker")
    time.sleep(4)
    end(beat)
    quiet = len(executed(project, entry))
    proxy.heal()
    start(1, **options)
    wait_for_whole_runs(project, entry, quiet + 5, every=2.0)


def test_ticks_of_a_new_entry_survive_a_restart_of_their_replica(
    project: Project, start: Start, entry: str, proxy_for: Callable[[Server], Proxy]
) -> None:
    new_database(project)
    broker = Server()
    broker.port = int(broker_of(project).rpartition(":")[2])
    proxy = proxy_for(broker)
    options = dict(
        DJANGO, test_entries={entry: {"every": 2}}, broker_url=f"{proxy.url}/0", name=entry
    )
    proxy.refuse()
    [beat] = start(1, **options, broker_connection_max_retries=1)
    paused = beat.wait_for_line("tick publishing paused reason=no broker")
    end(beat)
    proxy.heal()
    start(1, **options)
    [slot] = re.findall(r" slot=(\S+)", paused)
    assert wait_for_runs(project, entry, 2)[0] == moment(slot)


# --- nodes and clocks -----------------------------------------------------------------------------


def test_a_replica_whose_clock_is_off_waits_until_it_is_right(
    project: Project, start: Start, entry: str, new_wall_clock: Callable[[], WallClock]
) -> None:
    clock = new_wall_clock()
    [beat] = start(1, test_entries={entry: {"every": 1}}, env=clock.env)
    wait_for_runs(project, entry, 2)
    clock.step(3600)
    # As far as a round trip to the nodes tells.
    beat.wait_for_line(r"clock off, publishing no ticks here offset_s=3(599|600)\.")
    stands_at = len(published(entry, beat))
    time.sleep(4)
    assert len(published(entry, beat)) == stands_at
    clock.step(-3600)
    beat.wait_for_line("clock right again, publishing ticks")
    runs = wait_for_whole_runs(project, entry, stands_at + 8)
    assert max(runs) < time.time() + 1


# --- tasks ----------------------------------------------------------------------------------------


def test_a_task_whose_lock_is_held_raises_nothing_into_beat(
    project: Project, start: Start, entry: str
) -> None:
    held, reserved = f"{entry}-held", f"{entry}-reserved"
    [beat] = start(
        1,
        test_entries={
            held: {"every": 1, "task": "held"},
            reserved: {"every": 1, "task": "reserved"},
            entry: {"every": 1},
        },
    )
    try:
        for name, count in ((entry, 6), (held, 1), (reserved, 1)):
            wait_for_runs(project, name, count)
        beat.wait_for_line("not published key=.*outcome=raise")
        assert len(executed(project, held)) == 1
        assert len(executed(project, reserved)) == 1
        assert not beat.lines("ERROR|CRITICAL|Traceback|Message Error")
    finally:
        project.open("held")


# --- the probe ------------------------------------------------------------------------------------


def alive(project: Project, folder: Path, *args: str) -> tuple[int, str]:
    """Ask whether the beat of this folder ticks; return the exit status and what was said."""
    ended = run(
        celery_of(project, "redlock", "beat-alive", *args),
        environment_of(project) | {"TMPDIR": str(folder)},
    )
    return ended.returncode, ended.stdout + ended.stderr


def test_the_probe_proves_that_beat_ticks(
    project: Project, start: Start, entry: str, tmp_path: Path
) -> None:
    status, said = alive(project, tmp_path)
    assert (status, "has not ticked on this host" in said) == (1, True)
    [beat] = start(1, test_entries={entry: {"every": 1}}, env={"TMPDIR": str(tmp_path)})
    eventually(lambda: any(tmp_path.glob("celery-redlock-*/beat-*")))
    status, said = alive(project, tmp_path)
    assert (status, said.startswith("beat last ticked ")) == (0, True), said
    beat.pause()
    eventually(lambda: alive(project, tmp_path, "--max-age", "3")[0] == 1)
    _, said = alive(project, tmp_path, "--max-age", "3")
    assert "more than 3.0 s" in said
    assert alive(project, tmp_path)[0] == 0  # 60 s, as it comes
    beat.resume()
    eventually(lambda: alive(project, tmp_path, "--max-age", "3")[0] == 0)
