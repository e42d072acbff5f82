"""Two replicas of beat while all around them changes: each slot in force is executed once.

Schedules are changed in the rows of django-celery-beat, on RedBeat's server, and by deploys of
`beat_schedule`, in which the replicas have two versions of it for a while.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.schedules import schedule
from redbeat.schedulers import RedBeatSchedulerEntry, ensure_conf, get_redis

from celery_redlock.testing import Server, Servers
from tests.chaos.conftest import SECONDS
from tests.chaos.test_beat_replicas import DJANGO, make_tables
from tests.conftest import StartServers
from tests.support.eventually import eventually
from tests.support.evidence import record
from tests.support.faults.clock_shim import WallClock
from tests.support.faults.proxy import Proxy
from tests.support.judges.slots_in_force import Between, Judgement, Slot, Span, judge
from tests.support.processes.beats import Beat, moment
from tests.support.processes.inside import FOLDER_VARIABLE
from tests.support.processes.project import Project
from tests.support.root import ROOT

pytestmark = pytest.mark.chaos
SEED = int(os.environ.get("REDLOCK_CHAOS_SEED", "1"))
LOOK_S = 8.5
"""Replicas look at the rows at least every 5 s, and later on a machine that stands still."""
LATE_S = 5.0
"""Slots so shortly before the end of an entry may be dropped with it, on such a machine too."""
STOPPED_S, AHEAD_S, AWAY_S = 12.0, 12.0, 8.0
APART_S = 0.9
"""By how much the clocks of replicas differ from the nodes' all the time."""
WORKER_AHEAD_S = 60.0
REST_S = 0.0, 5.0
NAMES = ("a", "b", "c", "d")
EVERY = (1, 2, 3, 5)
HEART = "heart"
COMMON = ("end", "kill", "kill_both", "stop", "stop_both", "clock", "clocks", "broker", "quorum")


class Installation:
    """Two replicas, their clocks, and what was in force when.

    Args:
        project: With a worker.
        clocks: Those of the replicas, and the nodes' last.
        to_broker: The replicas' way to the broker.
        conf: More of the replicas' configuration.
        env: More of their environment.

    Attributes:
        beats: The replicas.
        spans: What was in force.
        events: How often what happened.
        told: What happened, in words.
    """

    events_of_kind: tuple[str, ...] = ()

    def __init__(
        self, project: Project, clocks: list[WallClock], to_broker: Proxy, **conf: Any
    ) -> None:
        self.chance = random.Random(SEED)
        self.project = project
        self.beats: list[Beat] = []
        self.spans: list[Span] = []
        self.events: Counter[str] = Counter()
        self.told: list[str] = []
        self._clocks = clocks
        self._to_broker = to_broker
        self._conf = {"broker_url": f"{to_broker.url}/0"} | conf
        self._shown_until = 0.0

    def happen(self) -> None:
        """Let one event happen, at times while one replica stands still."""
        event = self.chance.choice((*self.events_of_kind * 2, *COMMON))
        stopped = None
        if event in self.events_of_kind and event != "deploy" and self.chance.random() < 0.3:
            stopped = self.chance.choice(self.beats)
            stopped.pause()
            time.sleep(self.chance.uniform(0.0, STOPPED_S))
        self.events[event] += 1
        self.told.append(f"{time.time():.3f} {event}")
        getattr(self, event)()
        self.rest()
        if stopped:
            stopped.resume()
            self.rest()

    def rest(self) -> None:
        """Let replicas see what has happened, or not yet."""
        time.sleep(self.chance.uniform(*REST_S))

    def published(self) -> list[Slot]:
        """Return the slots that were executed."""
        notes = self.project.notes("run")
        return [(note.more["entry"], round(moment(note.more["slot"]), 3)) for note in notes]

    def messages(self) -> int:
        """Return how many messages the worker has received."""
        return len(self.project.workers[0].lines(r"Task \S+ received"))

    # ---- entries

    def begin(self, name: str, began: Between, **due: Any) -> Span:
        began = Between(began.earliest - APART_S, began.latest + APART_S)
        self.spans.append(Span(name, began, **due))
        self.told.append(f"{began} {name} {due}")
        return self.spans[-1]

    def end_span(self, span: Span, earliest: float, latest: float) -> None:
        latest = max(latest, self._shown_until) + APART_S
        span.ended = Between(earliest - LATE_S - APART_S, latest)
        self.told.append(f"{span.ended} end of {span.name}")

    # ---- replicas

    def env_of(self, number: int) -> dict[str, str]:
        return self._clocks[number].env

    def start(self, number: int, entries: dict[str, Any]) -> None:
        """Start a replica, in the place of the one there was."""
        beat = Beat(
            self.project.module, self.project.folder, name=f"beat-{number}",
            env=self.env_of(number), test_entries=entries, **self._conf,
        )  # fmt: skip
        self.project.workers.append(beat)
        before = len(beat.lines(r"beat: Starting\.\.\."))
        beat.start()
        self.beats[number : number + 1] = [beat]
        beat.wait_for_line(r"beat: Starting\.\.\.", count=before + 1)

    def end_beat(self, number: int, *, is_killed: bool) -> None:
        beat = self.beats[number]
        if is_killed:
            beat.kill_all()
        else:
            beat.ask_to_end()
            beat.wait_until_ended()

    def start_again(self, number: int) -> None:
        raise NotImplementedError

    def end(self) -> None:
        self._restart([self.chance.randrange(2)], is_killed=False)

    def kill(self) -> None:
        self._restart([self.chance.randrange(2)], is_killed=True)

    def kill_both(self) -> None:
        self._restart([0, 1], is_killed=True)

    def _restart(self, numbers: list[int], *, is_killed: bool) -> None:
        for number in numbers:
            self.end_beat(number, is_killed=is_killed)
        time.sleep(self.chance.uniform(0.0, 6.0))
        for number in numbers:
            self.start_again(number)

    def stop(self) -> None:
        self._stop([self.chance.choice(self.beats)])

    def stop_both(self) -> None:
        self._stop(self.beats)

    def _stop(self, beats: list[Beat]) -> None:
        for beat in beats:
            beat.pause()
        time.sleep(self.chance.uniform(0.5, STOPPED_S))
        for beat in beats:
            beat.resume()

    # ---- what replicas need

    def broker(self) -> None:
        """Let no replica reach the broker."""
        self._to_broker.refuse()
        self._to_broker.reset()
        time.sleep(self.chance.uniform(1.0, AWAY_S))
        self._to_broker.heal()

    def quorum(self) -> None:
        """Let a majority of the nodes stand still."""
        stopped = self.project.nodes[:2]
        for node in stopped:
            node.pause()
        time.sleep(self.chance.uniform(1.0, AWAY_S))
        for node in stopped:
            node.resume()

    # ---- clocks

    def clock(self) -> None:
        """Step one replica's clock by far, and put it right."""
        clock = self._clocks[self.chance.randrange(2)]
        by = self.chance.choice((-3600.0, -30.0, 30.0, 3600.0))
        clock.step(by)
        time.sleep(self.chance.uniform(1.0, 6.0))
        clock.step(-by)

    def clocks(self) -> None:
        """Put all clocks ahead, the nodes' too, and right again."""
        for clock in self._clocks:
            clock.step(AHEAD_S)
        time.sleep(self.chance.uniform(1.0, 10.0))
        self._shown_until = time.time() + AHEAD_S + 0.5
        for clock in self._clocks:
            clock.step(-AHEAD_S)
        self.told.append(f"ahead until {self._shown_until}")


class Entries(Installation):
    """Entries that change in a store while beat runs."""

    events_of_kind: tuple[str, ...] = ("put", "put", "put", "pause", "enable", "delete", "rename")

    def __init__(
        self, project: Project, clocks: list[WallClock], to_broker: Proxy, **conf: Any
    ) -> None:
        super().__init__(project, clocks, to_broker, **conf)
        self._in_force: dict[str, Span] = {}
        self._paused: dict[str, float] = {}
        self.open()
        for number in range(2):
            self.start_again(number)
        self.begin(HEART, Between(0.0, time.time()), every=1)

    def start_again(self, number: int) -> None:
        self.start(number, {HEART: {"every": 1}})

    def open(self) -> None:
        """Open the store."""
        raise NotImplementedError

    def _change(self, how: str, name: str, value: object = "") -> Between:
        """Change an entry; return when."""
        raise NotImplementedError

    def _began(self, name: str, when: Between, every: float) -> None:
        # From the last look before.
        began = Between(when.earliest - LOOK_S, when.latest)
        self._in_force[name] = self.begin(name, began, every=every)

    def _ended(self, name: str, when: Between) -> float:
        """Note the end of an entry if it was in force; return its interval."""
        if name in self._paused:
            return self._paused.pop(name)
        span = self._in_force.pop(name)
        self.end_span(span, when.earliest, when.latest + LOOK_S)
        assert span.every
        return span.every

    def _any(self, names: Any) -> str | None:
        return self.chance.choice(sorted(names)) if names else None

    def put(self) -> None:
        """Add an entry, or give it another schedule."""
        name = self._any([name for name in NAMES if name not in self._paused])
        if name is None:
            return self.enable()
        present = self._in_force.get(name)
        every = self.chance.choice([n for n in EVERY if not present or n != present.every])
        when = self._change("every", name, every)
        if present:
            self._ended(name, when)
        return self._began(name, when, every)

    def pause(self) -> None:
        """Disable an entry."""
        if name := self._any(self._in_force):
            when = self._change("disable", name)
            self._paused[name] = self._ended(name, when)

    def enable(self) -> None:
        if name := self._any(self._paused):
            every = self._paused.pop(name)
            self._began(name, self._change("enable", name), every)

    def delete(self) -> None:
        if name := self._any({**self._in_force, **self._paused}):
            self._ended(name, self._change("delete", name))

    def rename(self) -> None:
        name = self._any(self._in_force)
        new = self._any([name for name in NAMES if name not in {**self._in_force, **self._paused}])
        if name and new:
            when = self._change("rename", name, new)
            self._began(new, when, self._ended(name, when))


class Rows(Entries):
    """Entries are rows of django-celery-beat."""

    events_of_kind = (*Entries.events_of_kind, "clocked")

    def __init__(self, project: Project, clocks: list[WallClock], to_broker: Proxy) -> None:
        scheduler = "django_celery_beat.schedulers:DatabaseScheduler"
        super().__init__(project, clocks, to_broker, redlock_beat_scheduler=scheduler)

    def open(self) -> None:
        make_tables(self.project.folder)
        self._changes = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.apps.django_changes"],
            cwd=ROOT, env=os.environ | {FOLDER_VARIABLE: str(self.project.folder)} | DJANGO,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def close(self) -> None:
        self._changes.communicate(timeout=60)

    def env_of(self, number: int) -> dict[str, str]:
        return super().env_of(number) | DJANGO

    def _change(self, how: str, name: str, value: object = "") -> Between:
        assert self._changes.stdin
        assert self._changes.stdout
        asked_at = time.time()
        task = self.project.tasks.once.name
        self._changes.stdin.write(f"{how} {name} {task} {value}\n")
        self._changes.stdin.flush()
        line = self._changes.stdout.readline()
        assert line, f"the change failed: {self.told}"
        return Between(asked_at, float(line))

    def clocked(self) -> None:
        """Make a clocked entry for now, or for soon."""
        at = round(time.time() + self.chance.choice((0.0, 0.0, self.chance.uniform(0, 6))), 3)
        name = f"clocked-{self.events['clocked']}"
        self._change("clocked", name, at)
        self.begin(name, Between(at - 1, at - 1), at=at)


class RedBeats(Entries):
    """Entries are RedBeat's, which code of the user's saves on a Redis server."""

    def __init__(self, project: Project, clocks: list[WallClock], to_broker: Proxy) -> None:
        url = f"{project.app.conf.broker_url.rpartition('/')[0]}/2"
        self._app = Celery(set_as_current=False)
        self._app.conf.redbeat_redis_url = url
        super().__init__(
            project, clocks, to_broker, redlock_beat_scheduler="redbeat.RedBeatScheduler",
            redbeat_redis_url=url,
        )  # fmt: skip

    def open(self) -> None:
        ensure_conf(self._app)

    def close(self) -> None:
        get_redis(self._app).close()

    def _entry(self, name: str, every: float) -> RedBeatSchedulerEntry:
        task = self.project.tasks.once.name
        return RedBeatSchedulerEntry(name, task, schedule(every), [name], app=self._app)

    def _change(self, how: str, name: str, value: object = "") -> Between:
        asked_at = time.time()
        key = RedBeatSchedulerEntry.generate_key(self._app, name)
        if how == "every":
            self._entry(name, float(str(value))).save()
        else:
            entry = RedBeatSchedulerEntry.from_key(key, app=self._app)
            if how == "rename":
                self._entry(str(value), entry.schedule.seconds).save()
            if how in ("rename", "delete"):
                entry.delete()
            else:
                entry.enabled = how == "enable"
                entry.save()
        return Between(asked_at, time.time())


class Deploys(Installation):
    """Entries are those of `beat_schedule`, which change with a replica's restart."""

    events_of_kind = ("deploy", "deploy", "deploy")

    def __init__(self, project: Project, clocks: list[WallClock], to_broker: Proxy) -> None:
        super().__init__(project, clocks, to_broker)
        self._version: dict[str, Any] = {HEART: {"every": 1}, "a": {"every": 2}}
        self._has: list[dict[str, Any]] = [{}, {}]
        self._spans: list[dict[str, Span]] = [{}, {}]
        for number in range(2):
            self._start_version(number, time.time())

    def close(self) -> None:
        """Do nothing: no other process is at work."""

    def start_again(self, number: int) -> None:
        self.start(number, self._has[number])

    def deploy(self) -> None:
        """Give the replicas another version, one after the other or at the same time."""
        self._version = self._next_version()
        numbers = self.chance.sample((0, 1), 2)
        self.told.append(f"deploy to {numbers}: {self._version}")
        is_rolling = self.chance.random() < 0.7
        ended = {}
        for number in numbers:
            asked_at = time.time()
            self.end_beat(number, is_killed=self.chance.random() < 0.3)
            ended[number] = asked_at, time.time()
            time.sleep(self.chance.uniform(0.0, 3.0))
            if is_rolling:
                self._replace(number, *ended[number])
                time.sleep(self.chance.uniform(0.0, 6.0))
        if not is_rolling:
            for number in numbers:
                self._replace(number, *ended[number])

    def _next_version(self) -> dict[str, Any]:
        version = dict(self._version)
        for name in self.chance.sample(NAMES, 2):
            version.pop(name, None)
            if self.chance.random() < 0.7:
                version[name] = {"every": self.chance.choice(EVERY)}
        unnamed = [name for name, spec in version.items() if spec.get("unnamed")]
        if unnamed and self.chance.random() < 0.5:
            del version[unnamed[0]]
        if self.chance.random() < 0.5:
            # Each of them has other arguments, so it is another entry.
            more = {"every": self.chance.choice(EVERY), "unnamed": True}
            version[f"unnamed-{len(self.spans)}"] = more
        return version

    def _replace(self, number: int, asked_at: float, ended_at: float) -> None:
        for name, span in list(self._spans[number].items()):
            if self._version.get(name) != self._has[number][name]:
                self.end_span(span, asked_at, ended_at)
                del self._spans[number][name]
        self._start_version(number, ended_at)

    def _start_version(self, number: int, earliest: float) -> None:
        self._has[number] = dict(self._version)
        self.start_again(number)
        ready_at = time.time()
        for name, spec in self._version.items():
            if name not in self._spans[number]:
                began = Between(earliest, ready_at)
                self._spans[number][name] = self.begin(name, began, every=spec["every"])


@pytest.fixture
def clocks(new_wall_clock: Callable[[], WallClock]) -> list[WallClock]:
    """The clocks of two replicas, which differ, and of the nodes."""
    clocks = [new_wall_clock() for _ in range(3)]
    for clock, ahead in zip(clocks, (APART_S, -APART_S), strict=False):
        clock.step(ahead)
    return clocks


@pytest.fixture
def broker(servers: StartServers) -> Server:
    [broker] = servers(1)
    return broker


@pytest.fixture
def to_broker(broker: Server, proxy_for: Callable[[Server], Proxy]) -> Proxy:
    """The replicas' way to the broker."""
    return proxy_for(broker)


@pytest.fixture
def project(
    broker: Server,
    clocks: list[WallClock],
    new_wall_clock: Callable[[], WallClock],
    tmp_path: Path,
) -> Iterator[Project]:
    """A project with a worker whose clock is off."""
    with ExitStack() as stack:
        nodes = stack.enter_context(Servers(Server(env=clocks[-1].env) for _ in range(3)))
        clock = new_wall_clock()
        clock.step(random.Random(SEED).choice((-WORKER_AHEAD_S, WORKER_AHEAD_S)))
        project = Project(
            "tests.integration.apps.ticking", tmp_path, f"{broker.url}/0", f"{broker.url}/1", nodes
        )
        stack.enter_context(project)
        project.start_worker(pool="threads", concurrency=8, env=clock.env)
        yield project


@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.parametrize("kind", [Rows, RedBeats, Deploys], ids=["rows", "redbeat", "deploys"])
def test_each_slot_in_force_is_executed_once_whatever_changes(
    kind: type[Rows | RedBeats | Deploys],
    to_broker: Proxy,
    project: Project,
    clocks: list[WallClock],
    capsys: pytest.CaptureFixture[str],
) -> None:
    installation = kind(project, clocks, to_broker)
    begin = time.time() + 2
    while time.time() < begin + SECONDS:
        installation.happen()
    installation.close()
    end = time.time()

    def judged() -> Judgement:
        return judge(installation.spans, installation.published(), begin, end)

    # Replicas that stood still have looked by then; what was published twice would be executed.
    time.sleep(LOOK_S + LATE_S)
    with suppress(AssertionError):  # what is lost is shown below
        eventually(lambda: not judged().lost)
    time.sleep(LATE_S)
    judgement = judged()
    story = "\n".join(installation.told)
    assert all(beat.is_running for beat in installation.beats)
    figures = {
        "events": sum(installation.events.values()),
        "slots_in_force": judgement.due,
        "messages": installation.messages(),
        "old": len(judgement.old),
        "lost": len(judgement.lost),
        "doubled": len(judgement.doubled),
    }
    with capsys.disabled():
        print(f"\n{kind.__name__}: {figures}, {dict(installation.events)}")  # noqa: T201
    name = kind.__name__.lower()
    record(f"beat_changes--{name}", **{figure: {name: n} for figure, n in figures.items()})
    assert judgement.is_right, f"{judgement}\n{story}"
