"""Singleton tasks beside other people's libraries, in real workers and producers.

Each library is active as its documentation says. What holds is written down for
docs/reference/compatibility.md.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from celery_redlock.config.options import Lifetime, OnConflict
from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.processes.beats import Beat, moment, start_beats
from tests.support.processes.flower import started_flower
from tests.support.processes.inside import FOLDER_VARIABLE
from tests.support.processes.postgres import Postgres
from tests.support.processes.project import Project
from tests.support.processes.workers import Worker, started_by
from tests.support.root import ROOT

from .active import LIBRARY_VARIABLE
from .layers import installed
from .libraries import LIBRARIES, WAITING, Library
from .page import write_row

pytestmark = pytest.mark.compat

TICKS = 3


def libraries(tried: str) -> list[Any]:
    """Return the libraries with which this is tried."""
    return [pytest.param(one, id=str(one)) for one in LIBRARIES if tried in one.tries]


class Beside:
    """A project whose processes have one library active.

    Attributes:
        project: The project.
        env: Environment of its processes.
    """

    def __init__(self, library: Library, project: Project, env: dict[str, str]) -> None:
        self.library = library
        self.project = project
        told = {LIBRARY_VARIABLE: library.module, "REDLOCK_TEST_CONF": json.dumps(library.conf)}
        self.env = {**env, **library.env, **told}

    def prepare(self) -> None:
        """Make the tables of a Django app."""
        if "DJANGO_SETTINGS_MODULE" in self.env:
            command = [sys.executable, "-m", "tests.integration.compat.prepare"]
            env = os.environ | self.env | {FOLDER_VARIABLE: str(self.project.folder)}
            ran = subprocess.run(
                command, cwd=ROOT, env=env, capture_output=True, text=True, check=False
            )
            assert ran.returncode == 0, ran.stderr

    def new_worker(self, **env: str) -> Worker:
        """Return a worker, not started yet."""
        one = self.library
        return self.project.new_worker(
            pool=one.pool, concurrency=2, args=one.args, prefix=one.prefix, env=self.env | env
        )

    def start_workers(self) -> None:
        """Start the workers."""
        workers = [self.new_worker() for _ in range(self.library.workers)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.wait_until_ready()

    def start_beats(self, entries: dict[str, Any], **conf: Any) -> list[Beat]:
        """Start two replicas of beat."""
        env = {name: value for name, value in self.env.items() if name != "REDLOCK_TEST_CONF"}
        conf = {**self.library.conf, "test_entries": entries, **conf}
        return start_beats(self.project, 2, prefix=self.library.prefix, env=env, **conf)

    @contextmanager
    def producer(self) -> Iterator[subprocess.Popen[bytes]]:
        """Start the producer; it has to end well."""
        command = [*started_by(self.library.prefix), "-m", "tests.integration.compat.producer"]
        log = self.project.folder / "producer.log"
        env = os.environ | self.env | {FOLDER_VARIABLE: str(self.project.folder)}
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            yield process
            assert process.wait(PATIENCE) == 0, log.read_text(errors="replace")[-3000:]
        finally:
            process.kill()
            process.wait()

    def play(self) -> None:
        """Play what the producer does: see there."""
        with self.producer():
            for lifetime in Lifetime:
                self._play(lifetime, OnConflict.SKIP)
            for lifetime in WAITING:
                self._play(lifetime, OnConflict.WAIT)

    def _play(self, lifetime: Lifetime, policy: OnConflict) -> None:
        project = self.project
        about: Any = {"lifetime": lifetime.value, "policy": policy.value}
        published = project.wait_for_note("published", **about).more
        key, ids = published["key"], published["ids"]
        waits = policy is OnConflict.WAIT
        if not waits:
            project.app.control.add_consumer(key, reply=True, limit=self.library.workers)
        project.wait_for_note("begin", key=key)
        if waits or lifetime is Lifetime.WHILE_EXECUTING:
            second = "waits" if waits else "conflict"
            eventually(lambda: any(n.more["of"] in ids for n in project.notes(second)), second)
        # With `wait` the second call has its place in line on the nodes, too. A release is over
        # once a majority has it: on the last node a key may stand a little longer.
        is_locked = lifetime.holds_while_running or lifetime.is_throttle
        eventually(lambda: bool(project.holds(key)) is is_locked, f"{about}: {is_locked}")
        project.open(key)
        ended = project.wait_for_note("ended", **about).more["states"]
        is_refused = not waits and lifetime is Lifetime.WHILE_EXECUTING
        assert sorted(ended) == ["REVOKED" if is_refused else "SUCCESS", "SUCCESS"], about
        runs = project.notes("begin", key=key)
        assert len(runs) == (2 if waits else 1), about
        assert project.most_at_once(key=key) == 1, about
        assert all(run.more["seen"] for run in runs), f"{self.library} is not active"
        tokens = [run.token for run in runs]
        if lifetime.holds_while_running:
            assert None not in tokens, about
            assert tokens == sorted(set(tokens)), about  # type: ignore[type-var]
        else:
            assert tokens == [None], about
        assert project.is_held(key) is lifetime.is_throttle, about


@pytest.fixture
def beside(
    request: pytest.FixtureRequest, new_project: NewProject, library: Library
) -> Iterator[Beside]:
    with ExitStack() as stack:
        env = installed(library)
        if "django-tenants" in library.beside:
            env["REDLOCK_TEST_POSTGRES_PORT"] = str(stack.enter_context(Postgres()).port)
        beside = Beside(library, new_project("beside"), env)
        beside.prepare()
        yield beside
        beside.project.ask_workers_to_end()
        for worker in beside.project.workers:
            worker.stop()


@pytest.mark.parametrize("library", libraries("tasks"))
def test_singleton_tasks_are_locked_beside(beside: Beside, library: Library) -> None:
    with ExitStack() as stack:
        port = None
        if library.name == "flower":
            port = stack.enter_context(started_flower(beside.project, beside.env))
        beside.start_workers()
        beside.play()
        write_row(library, "tasks")
        if port is None:
            return
        eventually(lambda: {"SUCCESS", "DEDUPLICATED"} <= states_shown(port), "it shows both")
        write_row(library, "shown")


def states_shown(port: int) -> set[str]:
    """Return the states of the tasks that Flower shows."""
    url = f"http://127.0.0.1:{port}/api/tasks"
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return {task["state"] for task in json.load(answer).values()}


@pytest.mark.parametrize("library", libraries("refused"))
def test_a_task_that_cannot_be_locked_is_refused_beside(beside: Beside, library: Library) -> None:
    worker = beside.new_worker(REDLOCK_TEST_REFUSED="1")
    worker.start()
    assert worker.wait_until_ended() != 0
    said = " ".join(re.findall(r"ConfigurationError: .*", worker.log_text()))
    assert "task 'refused'" in said, worker.log_tail()
    remedy = "asyncio.run(" if library.module == "AioPool" else "lock inside its body"
    assert remedy in said
    write_row(library, "refused")


@pytest.mark.parametrize("library", libraries("beat"))
def test_ticks_of_two_replicas_run_once_beside(beside: Beside, library: Library) -> None:
    beside.start_workers()
    project = beside.project
    # Locks of its own: the nodes are shared, and `until_expired` outlasts the test before.
    names = {lifetime: f"{lifetime.value} {library.name}" for lifetime in Lifetime}
    entries: dict[str, Any] = dict.fromkeys(names.values(), 1.0)
    conf = {"redlock_beat_scheduler": library.beat}
    if library.name == "celery-redbeat":
        conf["redbeat_redis_url"] = str(project.conf["broker_url"]).removesuffix("/0") + "/2"
    beats = beside.start_beats(entries, **conf)
    for lifetime, name in names.items():
        many = 1 if lifetime.is_throttle else TICKS
        project.wait_for_note("begin", key=name, count=many)
    for beat in beats:
        beat.ask_to_end()
    assert [beat.wait_until_ended() for beat in beats] == [0, 0]
    for lifetime, name in names.items():
        slots = [moment(run.more["slot"]) for run in project.notes("begin", key=name)]
        assert len(slots) == len(set(slots)), lifetime
        if lifetime.holds_while_running:
            assert project.most_at_once(key=name) == 1
        if lifetime.is_throttle:
            assert len(slots) == 1
    write_row(library, "beat")


@pytest.mark.parametrize("library", libraries("check-ins"))
def test_crons_opens_one_check_in_for_each_tick(beside: Beside, library: Library) -> None:
    beside.start_workers()
    project = beside.project
    # An interval of less than a minute has no check-ins.
    entries: dict[str, Any] = {Lifetime.WHILE_EXECUTING.value: 60.0}
    redis_url = str(project.conf["broker_url"]).removesuffix("/0") + "/2"
    redbeat = {
        "redlock_beat_scheduler": "redbeat.RedBeatScheduler",
        "redbeat_redis_url": redis_url,
    }
    own, others = Lifetime.WHILE_EXECUTING.value, f"{Lifetime.WHILE_EXECUTING.value} redbeat"
    beats = beside.start_beats(entries) + beside.start_beats({others: 60.0}, **redbeat)
    eventually(lambda: is_over(project, own) and is_over(project, others), within=2 * PATIENCE)
    for beat in beats:
        beat.ask_to_end()
    assert [beat.wait_until_ended() for beat in beats] == [0] * 4
    for entry in (own, others):
        ticks = [n for n in project.notes("tick", entry=entry) if n.more["outcome"] == "published"]
        told = [note.more for note in project.notes("check-in", slug=entry)]
        opened = [one["check_in"] for one in told if one["status"] == "in_progress"]
        closed = [one["check_in"] for one in told if one["status"] == "ok"]
        assert len(opened) == len(ticks) == len(set(opened)), told
        assert sorted(closed) == sorted(opened), told
    write_row(library, "check-ins")


def is_over(project: Project, entry: str) -> bool:
    """Return whether both replicas are through with a tick of `entry`, and its run is over."""
    outcomes = [note.more["outcome"] for note in project.notes("tick", entry=entry)]
    closed = [note for note in project.notes("check-in", slug=entry) if note.more["status"] == "ok"]
    return len(outcomes) >= 2 and len(closed) >= outcomes.count("published")
