"""Whole tasks, beat and the commands with nodes that protect themselves: by TLS, and by rights.

What is done is counted for the page of evidence; nothing may be refused on the way.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest
import redis

from celery_redlock import DuplicateTask
from celery_redlock.testing import Servers, start_servers
from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.evidence import record
from tests.support.judges.users import (
    addresses_of_the_lock,
    is_listened_to,
    refusals,
    scripts_run,
    start_counting,
)
from tests.support.processes.beats import executed, published, start_beats
from tests.support.processes.certificates import Authority, tls_servers
from tests.support.processes.commands import run_with
from tests.support.processes.project import Project
from tests.support.processes.workers import kill_process
from tests.support.rights import PASSWORD, RIGHTS, RIGHTS_OF_COMMANDS

USER = "locks"
RUNS = 10
TICKS = 3
COMMANDS = (
    ("status",), ("list",), ("top", "--count", "1"), ("admit",),
)  # fmt: skip
OUTSIDE = (
    "FLUSHALL", "KEYS *", "SCAN 0", "CONFIG GET *", "ACL LIST", "EVAL 0 0", "SCRIPT FLUSH",
    "CLIENT LIST", "CLIENT KILL TYPE normal", "CLIENT PAUSE 1", "SHUTDOWN", "REPLICAOF no one",
    "MONITOR", "GET other", "SET other 1", "DEL other", "PUBLISH other 1",
    "SUBSCRIBE other",
)  # fmt: skip
"""What no lock needs."""


@dataclass(slots=True)
class Protected:
    """Three nodes that protect themselves.

    Attributes:
        kind: How: "tls" or "least_privilege".
        servers: The nodes, which their administrator reaches.
        urls: Their addresses, for the lock.
        ports: Where the lock may connect to.
        user: The user that it may be.
        counts: What was done, by figure and part.
    """

    kind: str
    servers: Servers
    urls: list[str]
    ports: list[int]
    user: str
    counts: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, figure: str, part: str, count: int) -> None:
        """Add to a figure of the page."""
        self.counts.setdefault(figure, Counter())[part] += count

    def take_down(self, part: str, project: Project) -> None:
        """Count what the nodes did, of which they may refuse nothing, and end the workers."""
        self.add("scripts_on_nodes", part, scripts_run(self.servers))
        assert refusals(self.servers) == []
        self.add("refused_by_nodes", part, 0)
        allowed = {(self.user, f"127.0.0.1:{port}") for port in self.ports}
        assert addresses_of_the_lock(self.servers) <= allowed
        for worker in project.workers:
            worker.stop()


def with_tls(stack: ExitStack, authority: Authority) -> Protected:
    nodes = stack.enter_context(tls_servers(authority, authority.sign("nodes"), 3))
    urls = nodes.urls({"ssl_ca_certs": authority.certificate})
    return Protected("tls", nodes.servers, urls, nodes.ports, "default")


def with_rights(stack: ExitStack, rights: str = RIGHTS) -> Protected:
    servers = stack.enter_context(start_servers(3))
    give(servers, rights)
    urls = [server.url.replace("//", f"//{USER}:{PASSWORD}@") for server in servers]
    return Protected("least_privilege", servers, urls, [server.port for server in servers], USER)


def give(servers: Servers, rights: str) -> None:
    """Make these all the rights that the user has."""
    for server in servers:
        with server.client() as client:
            client.execute_command(
                "ACL", "SETUSER", USER, "reset", "on", f">{PASSWORD}", *rights.split()
            )


@pytest.fixture(scope="module", params=["tls", "least_privilege"])
def protected(
    _has_server: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Protected]:
    failed = request.session.testsfailed
    with ExitStack() as stack:
        if request.param == "tls":
            nodes = with_tls(stack, Authority(tmp_path_factory.mktemp("tls")))
        else:
            nodes = with_rights(stack)
        yield nodes
        is_whole = {"tasks", "ticks", "commands"} <= nodes.counts.keys()
        if is_whole and request.session.testsfailed == failed:
            record(f"{nodes.kind}--whole_tasks", **nodes.counts)


def project_of(protected: Protected, new_project: NewProject, module: str) -> Project:
    return new_project(module, nodes=protected.servers, redlock_nodes=protected.urls)


@pytest.mark.long
@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_tasks_are_locked_kept_woken_and_released(
    protected: Protected, new_project: NewProject, pool: str
) -> None:
    project = project_of(protected, new_project, "locked")
    start_counting(protected.servers)
    project.start_worker(pool=pool, concurrency=4)
    tasks = project.tasks
    runs = [tasks.telling.delay(f"one-{number}") for number in range(RUNS)]
    for run in runs:
        argument, of_the_task, of_the_lease = run.get(timeout=PATIENCE)
        assert argument == of_the_task == of_the_lease > 0
    assert tasks.retrying.delay("retried").get(timeout=PATIENCE)
    is_kept_beyond_its_ttl(project, f"kept-{pool}")
    a_duplicate_is_skipped(project, f"held-{pool}")
    who_waits_is_woken(project, f"awaited-{pool}")
    if pool == "prefork":
        a_killed_process_is_released(project, "killed")
    eventually(lambda: not project.holds(), "every lock is released")
    protected.take_down(pool, project)
    protected.add("tasks", pool, RUNS + len(project.notes("end")))


def is_kept_beyond_its_ttl(project: Project, key: str) -> None:
    kept = project.tasks.brief.delay(key, key)
    project.run_of(kept.id)
    until = time.monotonic() + 4.5  # and its ttl is 3
    while time.monotonic() < until:
        assert project.votes(kept.id) >= 2
    project.open(key)
    assert kept.get(timeout=PATIENCE)


def a_duplicate_is_skipped(project: Project, key: str) -> None:
    first = project.tasks.skipping.delay(key, key)
    project.run_of(first.id)
    with pytest.raises(DuplicateTask):
        project.tasks.skipping.delay(key).get(timeout=PATIENCE)
    project.open(key)
    assert first.get(timeout=PATIENCE)


def who_waits_is_woken(project: Project, key: str) -> None:
    first = project.tasks.waiting.delay(key, key)
    project.run_of(first.id)
    second = project.tasks.waiting.delay(key)
    eventually(lambda: is_listened_to(project.nodes, key), "it listens on every node")
    project.open(key)
    assert first.get(timeout=PATIENCE) < second.get(timeout=PATIENCE)


def a_killed_process_is_released(project: Project, key: str) -> None:
    killed = project.tasks.skipping.delay(key, key)
    kill_process(project.run_of(killed.id).pid)
    eventually(lambda: not project.holds(key), "its lock is released", within=18)  # its ttl is 30
    project.open(key)
    killed.forget()


def test_each_tick_of_beat_is_published_once(protected: Protected, new_project: NewProject) -> None:
    project = project_of(protected, new_project, "ticking")
    start_counting(protected.servers)
    project.start_worker(pool="threads", concurrency=4)
    beats = start_beats(project, 2, test_entries={"entry": {"every": 1}})
    eventually(lambda: len(executed(project, "entry")) >= TICKS, "ticks are executed")
    ticks = executed(project, "entry")
    assert len(set(ticks)) == len(ticks)
    eventually(lambda: set(ticks) <= set(published("entry", *beats)), "they are published")
    protected.take_down("beat", project)
    protected.add("ticks", "beat", len(ticks))


@pytest.mark.long
def test_each_command_does_its_work(protected: Protected, new_project: NewProject) -> None:
    project = project_of(protected, new_project, "locked")
    give(protected.servers, f"{RIGHTS} {RIGHTS_OF_COMMANDS}")
    start_counting(protected.servers)
    project.start_worker(concurrency=1)
    running = project.tasks.skipping.delay("shown", "shown")
    project.run_of(running.id)
    key = f"{project.tasks.skipping.name}:shown"
    releases = (("show", key), ("release", key), ("release", key, "--yes"))
    for words in (*COMMANDS, *releases):
        shown = run_with(project.app, *words, "--json")
        assert shown.exit_code == 0, shown
        protected.add("commands", words[0], 1)
    assert not project.holds(key)
    project.open("shown")
    protected.take_down("commands", project)
    # It tries what the user may do beyond that, too.
    found = run_with(project.app, "doctor", "--json").json["findings"]
    assert {one["code"] for one in found} <= {"RL112", "RL201", "RL205"}, found
    protected.add("commands", "doctor", 1)


@pytest.fixture(scope="module")
def limited(_has_server: None) -> Iterator[Protected]:
    with ExitStack() as stack:
        yield with_rights(stack)


def test_what_no_lock_needs_is_refused(limited: Protected) -> None:
    counts: Counter[str] = Counter()
    for server in limited.servers:
        with server.client(username=USER, password=PASSWORD) as client:
            for command in OUTSIDE:
                with pytest.raises(redis.exceptions.NoPermissionError):
                    client.execute_command(*command.split())
                counts[command.replace("_", " ")] += 1
    record("least_privilege--outside", outside_refused=counts)
