"""No secret is shown by a worker, beat, a command, the page, the metrics, an event or an error.

Secrets are the users and passwords in the URLs of nodes, broker and result backend, the password of
a TLS key, the token of the page, and the arguments of tasks. Everything is shown at its most: at
level DEBUG, with all events, while nodes answer, refuse the user, and are down.
"""

from __future__ import annotations

import logging
import re
import traceback
import urllib.error
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pytest

from celery_redlock import LockHeld, QuorumUnavailable, RedlockError
from celery_redlock.config.app_lock import redlock_of
from celery_redlock.config.settings import settings_from
from celery_redlock.operate.target import target_of_app
from celery_redlock.testing import Server, free_port
from tests.integration.conftest import NewProject
from tests.support.eventually import PATIENCE, eventually
from tests.support.evidence import record
from tests.support.processes.beats import start_beats
from tests.support.processes.certificates import Authority, TlsServers, tls_servers
from tests.support.processes.commands import celery_of, environment_of, run_celery, run_with
from tests.support.processes.project import Project
from tests.support.processes.start import start
from tests.support.processes.workers import Worker
from tests.support.rights import RIGHTS, RIGHTS_OF_COMMANDS

ODD = "@:/?#[]%&=+;,!$'\"\\<>é"
"""What a password may have in it, and an URL means something by."""
NAMES = (
    "node-user", "node-password", "key-password", "broker-password", "backend-password",
    "page-token", "view-token", "broker-user", "backend-user", "argument", "keyword",
)  # fmt: skip
MARKS = {name: f"zz{name.replace('-', '')}zz" for name in NAMES}
"""Part of each secret that is written in the same way everywhere."""
SHOWN_BY_CELERY = {"broker-user", "backend-user", "argument", "keyword"}
"""Celery itself shows these at DEBUG, or in its banner: they are looked for in what is ours."""
PATHS = ("/", "/live", "/login", "/lock?key=skip", "/release?key=skip", "/end?key=skip", "/none")
RECORD = re.compile(r"^\[(?P<name>[\w.]+)\] [A-Z]+ ", re.MULTILINE)


def secret(name: str) -> str:
    return MARKS[name] if name.endswith("user") else f"{ODD}{MARKS[name]}{ODD}"


def login(what: str) -> str:
    """Return user and password, as a URL has them."""
    return ":".join(quote(secret(f"{what}-{part}"), safe="") for part in ("user", "password"))


@dataclass(slots=True)
class Shown:
    """What has been shown, and which secrets were in it.

    Attributes:
        counts: How much was looked at, by what it is.
        found: The secrets that were in it, with a place.
    """

    counts: Counter[str] = field(default_factory=Counter)
    found: set[tuple[str, str]] = field(default_factory=set)

    def look(self, kind: str, text: str, count: int = 1, *, ours: bool = True) -> None:
        """Look at a text for all secrets; for those that Celery shows only if it is `ours`."""
        self.counts[kind] += count
        for name, mark in MARKS.items():
            if (ours or name not in SHOWN_BY_CELERY) and mark in text:
                at = text.index(mark)
                self.found.add((kind, f"{name}: {text[max(0, at - 300) : at + 60]}"))

    def look_at_log(self, worker: Worker) -> None:
        """Look at each record of a log, by who has logged it."""
        text = worker.log_text()
        records = [*RECORD.finditer(text)]
        assert records
        self.look("lines before the log", text[: records[0].start()], ours=False)
        ends = [*(line.start() for line in records[1:]), len(text)]
        for line, end in zip(records, ends, strict=True):
            is_ours = line["name"].startswith("celery_redlock")
            kind = "log records of ours" if is_ours else "log records of Celery's"
            self.look(kind, text[line.start() : end], ours=is_ours)


def give_user(server: Server, what: str, rights: str) -> None:
    with server.client() as client:
        password = f">{secret(f'{what}-password')}"
        words = ("ACL", "SETUSER", secret(f"{what}-user"), "on", password, *rights.split())
        client.execute_command(*words)


@pytest.fixture(scope="module")
def services(_has_server: None) -> Iterator[Server]:
    """Broker and result backend, each with a user of its own."""
    with Server() as server:
        for what in ("broker", "backend"):
            give_user(server, what, "~* &* +@all")
        yield server


@pytest.fixture(scope="module")
def secured(
    _has_server: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[TlsServers, list[str]]]:
    """Nodes that ask for a certificate and a password, and their URLs."""
    authority = Authority(tmp_path_factory.mktemp("tls"))
    mine = authority.sign("worker", password=secret("key-password"))
    options = {
        "ssl_ca_certs": authority.certificate, "ssl_certfile": mine.certificate,
        "ssl_keyfile": mine.key, "ssl_password": secret("key-password"),
    }  # fmt: skip
    with tls_servers(authority, authority.sign("nodes"), 3, "--tls-auth-clients", "yes") as nodes:
        for server in nodes.servers:
            give_user(server, "node", f"{RIGHTS} {RIGHTS_OF_COMMANDS}")
        yield nodes, nodes.urls(options, login("node"))


@pytest.fixture(scope="module")
def project(
    services: Server, secured: tuple[TlsServers, list[str]], new_project: NewProject
) -> Project:
    """A project with secrets in each URL, and in the arguments of its tick."""
    nodes, urls = secured
    log_format = "[%(name)s] %(levelname)s %(message)s"
    tick = {
        "task": "tests.integration.apps.secretive.ticking", "schedule": 1.0,
        "args": [secret("argument")], "kwargs": {"more": secret("keyword")},
    }  # fmt: skip
    return new_project(
        "secretive",
        nodes=nodes.servers,
        broker=f"redis://{login('broker')}@127.0.0.1:{services.port}/0",
        result_backend=f"redis://{login('backend')}@127.0.0.1:{services.port}/1",
        redlock_nodes=urls,
        worker_log_format=log_format,
        worker_task_log_format=log_format,
        beat_schedule={"entry": tick},
        task_acks_late=True,
    )


def call(task: Any, *, gate: str | None = None, **options: Any) -> Any:
    """Publish a call with secrets, which Celery is told to hide."""
    kwargs = {"more": secret("keyword"), "gate": gate}
    if gate is None:
        del kwargs["gate"]
    hidden = {"argsrepr": "(hidden)", "kwargsrepr": "{hidden}"}
    return task.apply_async((secret("argument"),), kwargs, **hidden, **options)


class Day:
    """Everything that shows something, and a look at it.

    Args:
        project: The project.
        shown: Where it is looked at.
    """

    def __init__(self, project: Project, shown: Shown) -> None:
        self.project = project
        self.shown = shown
        self.port = free_port()
        self.worker = project.start_worker(
            concurrency=4, args=("--loglevel", "DEBUG", "-E"), env={"METRICS_PORT": str(self.port)}
        )

    def run_tasks(self) -> None:
        """Run into each kind of conflict, and see what results and errors say."""
        for name, task in self.project.tasks.tasks.items():
            gate = f"gate-{name}"
            first = call(task, gate=gate)
            self.project.run_of(first.id)
            second = call(task, gate=gate)
            if name in ("reschedule", "coalesce"):
                eventually(lambda second=second: second.state == "RETRY")  # type: ignore[misc]
                second.revoke()
            else:
                self.end_of(second)
            self.project.open(gate)
            self.end_of(first)
        first = call(self.project.tasks.reserved, gate="gate-reserved")
        self.fails(lambda: call(self.project.tasks.reserved, gate="gate-reserved"), LockHeld)
        self.project.open("gate-reserved")
        self.end_of(first)

    def end_of(self, result: Any) -> None:
        """Look at what a call returns or raises."""
        try:
            self.shown.look("results", repr(result.get(timeout=PATIENCE)))
        except Exception as error:  # noqa: BLE001 - it is looked at
            self.shown.look("errors", "".join(traceback.format_exception(error)))
        self.shown.look("results", f"{result.traceback} {result.info!r}")

    def fails(self, act: Callable[[], object], error: type[RedlockError]) -> None:
        """Look at an error that is raised here."""
        with pytest.raises(error) as caught:
            act()
        self.shown.look("errors", "".join(traceback.format_exception(caught.value)))
        self.shown.look("errors", f"{caught.value!r} {caught.value.args!r} {vars(caught.value)!r}")

    def run_commands(self) -> None:
        """Look at what each command shows, as text and as JSON."""
        running = call(self.project.tasks.tasks["skip"], gate="gate-commands")
        with suppress(AssertionError):  # without a quorum it does not run
            eventually(self.project.holds, within=5)
        key = next((hold.key for hold in self.project.holds()), "redlock:{skip:none}")
        key = key.partition("{")[2].removesuffix("}")
        commands = [
            ("status",), ("list",), ("top", "--count", "1"), ("doctor",), ("admit",),
            ("show", key), ("release", key), ("release", "--orphaned"), ("release", key, "--yes"),
            ("beat-alive",),
        ]  # fmt: skip
        for words in commands:
            for form in ((), ("--json",)):
                self.shown.look("commands", run_with(self.project.app, *words, *form).output)
        self.project.open("gate-commands")
        running.forget()

    def run_celerys_commands(self) -> None:
        """Look at what Celery's own commands show of the configuration, and at ours among them."""
        for words in (("report",), ("inspect", "conf"), ("inspect", "redlock_held"),
                      ("redlock", "status"), ("control", "redlock_release", "none")):  # fmt: skip
            ran = run_celery(self.project, *words)
            self.shown.look("commands", ran.output, ours="redlock" in " ".join(words))

    def look_at_pages(self) -> None:
        """Look at each page of `celery redlock web`, with and without tokens; at the metrics."""
        self.look_at_pages_with({})
        self.look_at_pages_with({
            "REDLOCK_WEB_TOKEN": secret("page-token"),
            "REDLOCK_WEB_VIEW_TOKEN": secret("view-token"),
        })  # fmt: skip
        self.shown.look("metrics", fetched(f"http://127.0.0.1:{self.port}/metrics"))

    def look_at_pages_with(self, tokens: Mapping[str, str]) -> None:
        log = self.project.folder / f"web-{uuid.uuid4().hex}.log"
        command = celery_of(self.project, "redlock", "web", "--port", "0")
        env = {**environment_of(self.project), **tokens}
        process = start(command, log, env)
        try:
            eventually(lambda: "The page is at" in log.read_text(), "the page is served")
            address = re.findall(r"at (http\S+?)/? ", log.read_text())[0]
            for path in PATHS:
                self.shown.look("pages", fetched(f"{address}{path}"))
        finally:
            process.kill()
            process.wait()
        self.shown.look("pages", log.read_text())

    def look_at_reprs(self) -> None:
        """Look at what objects say of themselves."""
        app = self.project.app
        redlock = redlock_of(app)
        for one in (
            redlock,
            redlock.nodes,
            redlock.check(),
            settings_from(app.conf),
            target_of_app(app),
        ):
            self.shown.look("reprs", repr(one))


def fetched(url: str) -> str:
    """Return a page, also that of an error, with its headers."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:  # noqa: S310  # our own
            return f"{answer.headers}{answer.read().decode()}"
    except urllib.error.HTTPError as error:
        return f"{error.headers}{error.read().decode()}"


def lose_the_quorum(project: Project) -> None:
    """Have one node refuse the user, and one be down."""
    with project.nodes[0].client() as client:
        client.execute_command("ACL", "SETUSER", secret("node-user"), "resetpass", ">another")
        client.execute_command("CLIENT", "KILL", "USER", secret("node-user"))
    project.nodes[1].kill()


@pytest.mark.long
@pytest.mark.timeout(900)  # many processes, one after the other
def test_no_secret_is_shown_anywhere(
    project: Project, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    caplog.set_level(logging.DEBUG, logger="celery_redlock")
    shown, failed = Shown(), request.session.testsfailed
    dump = project.folder / "events.log"
    events = start(celery_of(project, "events", "--dump"), dump, environment_of(project))
    try:
        day = Day(project, shown)
        [beat] = start_beats(project, 1, args=("--loglevel", "DEBUG"))
        day.run_tasks()
        project.wait_for_note("tick", count=2)
        day.look_at_reprs()
        day.run_commands()
        day.run_celerys_commands()
        day.look_at_pages()
        losing = call(project.tasks.losing)
        project.run_of(losing.id)
        lose_the_quorum(project)
        day.end_of(losing)
        day.end_of(call(project.tasks.strict))
        day.fails(lambda: redlock_of(project.app).acquire("k"), QuorumUnavailable)
        day.worker.wait_for_line("quorum lost")
        beat.wait_for_line("no quorum|quorum")
        day.look_at_reprs()
        day.run_commands()
        day.look_at_pages_with({})
        day.worker.ask_to_end()
        day.worker.wait_until_ended()
    finally:
        events.terminate()
        events.wait()
    for line in dump.read_text().splitlines():
        # Beat gives its messages no other form of their arguments, and Celery's own events show it.
        of_tick = re.search(r"\] task [\w ]+: \S+secretive\.ticking", line)
        shown.look("events", line, ours=not of_tick)
    for one in caplog.records:
        shown.look("log records of ours", logging.Formatter().format(one))
    shown.look_at_log(day.worker)
    shown.look_at_log(beat)
    assert shown.found == set()
    assert shown.counts["log records of ours"] > 50
    assert shown.counts["events"] > 20
    if request.session.testsfailed == failed:
        record("secrets", secrets=len(MARKS), looked_at=shown.counts, found=len(shown.found))
