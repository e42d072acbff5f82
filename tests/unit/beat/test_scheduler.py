"""Schedulers of one app, on hosts whose clocks differ, and what they publish together."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from itertools import chain, pairwise, repeat
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from celery import Celery
from celery.beat import PersistentScheduler, ScheduleEntry, Scheduler
from celery.schedules import BaseSchedule, crontab
from django_celery_beat.clockedschedule import clocked
from kombu.exceptions import OperationalError

from celery_redlock.beat import redbeat
from celery_redlock.beat.claiming import ClaimsTicks
from celery_redlock.beat.clock_check import Trust
from celery_redlock.beat.liveness import LivenessFile
from celery_redlock.beat.redbeat import ClaimsRedBeatTicks
from celery_redlock.beat.scheduler import RedlockScheduler, base_of
from celery_redlock.beat.slots import EPOCH, Moment
from celery_redlock.beat.ticks import MISSED
from celery_redlock.messages.headers import placement_in
from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.redlock.lease import task_of
from celery_redlock.signals import tick_processed
from tests.support.fakes.fake_clock import FakeClock
from tests.support.fakes.fake_redlock import FakeNodes, FakeRedlock

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
MOST_IN_A_ROW = 500
START = 300 * HOUR + 20 * MINUTE
"""Seconds since the epoch, at twenty past."""


def moment(seconds: float) -> Moment:
    return EPOCH + dt.timedelta(seconds=seconds)


class Odd(BaseSchedule):
    """A schedule class whose slots nobody knows."""


class Once(BaseSchedule):
    """Due once, and from then on whenever it is asked, as django-celery-beat's clocked."""

    def __init__(self, at: Moment, app: Any, again: float) -> None:
        super().__init__(nowfun=app.now, app=app)
        self.at = at
        self.again = again

    def redlock_slots(self, after: Moment, until: Moment) -> list[Moment]:
        return [self.at]

    def is_due(self, last_run_at: Any) -> Any:
        left = (self.at - self.now()).total_seconds()
        return left <= 0, left if left > 0 else self.again

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Once) and self.at == other.at

    def __hash__(self) -> int:
        return hash(self.at)


class SharedState(Scheduler):
    """One whose replicas know what the others did, as RedBeat's; it asks all entries at once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.advanced: list[str] = []
        super().__init__(*args, **kwargs)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        for entry in list(self.schedule.values()):
            if self.is_due(entry)[0]:
                self.apply_async(entry)
        return 1.0

    def reserve(self, entry: Any) -> Any:
        self.advanced.append(entry.name)
        return super().reserve(entry)


class RedBeatsEntry(ScheduleEntry):
    """An entry that its scheduler asks itself, and that says on a server when it ran."""

    enabled = True
    told: ClassVar[list[tuple[str, float]]] = []

    def _next_instance(self, last_run_at: Any = None) -> Any:
        self.told.append((str(self.name), last_run_at.timestamp() - START))
        self.reschedule(last_run_at)
        return self

    def reschedule(self, last_run_at: Any) -> None:
        self.last_run_at = last_run_at
        due: Any = self.schedule
        assert due.remaining_estimate(last_run_at) is not None

    @classmethod
    def from_key(cls, key: str, app: Any) -> Any:
        raise KeyError(key)

    @staticmethod
    def generate_key(app: Any, name: str) -> str:
        return name


class OnceOnly(ScheduleEntry):
    """An entry as django-celery-beat's, that is taken out of the schedule when it has run once."""

    model = SimpleNamespace(one_off=True, start_time=None)
    all_entries: ClassVar[dict[str, Any]]

    def is_due(self) -> Any:
        if not self.total_run_count:
            return super().is_due()
        self.all_entries.pop(str(self.name), None)
        return False, DAY


class LikeRedBeat(Scheduler):
    """One without a heap, which asks its entries at each tick."""

    Entry = RedBeatsEntry
    lock_key = "redbeat::lock"

    def maybe_due(self, entry: Any, *, producer: Any) -> float:
        is_due, left = entry.is_due() if entry.enabled else (False, 5.0)
        if is_due:
            self.apply_async(entry, producer=producer)
        return float(left)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        return min(self.maybe_due(entry, producer=None) for entry in list(self.schedule.values()))


class LikeRedBeatsServer(LikeRedBeat):
    """One whose settings are stored where all replicas find them, once."""

    stored: ClassVar[dict[str, Any]] = {}

    class Entry(RedBeatsEntry):
        @classmethod
        def from_key(cls, key: str, app: Any) -> Any:
            assert app
            return LikeRedBeatsServer.stored[key.partition(app.main)[2]]

        @staticmethod
        def generate_key(app: Any, name: str) -> str:
            return f"{app.main}{name}"

    def setup_schedule(self) -> None:
        self.data = self.stored
        for name, fields in self.app.conf.beat_schedule.items():
            self.update_from_dict({name: fields})

    def update_from_dict(self, dict_: Any) -> None:
        for name, fields in dict_.items():
            entry = self.Entry(**fields, name=name, app=self.app)
            if name in self.stored:
                entry.last_run_at = self.stored[name].last_run_at
            self.stored[name] = entry

    def tick(self, *args: Any, **kwargs: Any) -> float:
        entries = list(self.stored.values())
        return min([1.0, *(self.maybe_due(entry, producer=None) for entry in entries)])


class LikeDjangos(Scheduler):
    """One whose entries are in a table, which it changes to what the settings say."""

    stored: ClassVar[dict[str, Any]] = {}
    update_from_dict: Any = LikeRedBeatsServer.update_from_dict

    def setup_schedule(self) -> None:
        self.data = self.stored
        self.update_from_dict(self.app.conf.beat_schedule)


class Host:
    """One replica on one host; it notes what it publishes: the entry, and the slot since START."""

    def __init__(self, redlock: FakeRedlock, app: Any) -> None:
        self.redlock = redlock
        self.published: list[tuple[str, float]] = []
        self.publishing_takes = 0.0
        self.has_broker = True
        self.due_at = redlock.clock.now()
        app.now = lambda: moment(redlock.clock.wall_us() / 1e6)
        app.send_task = self._send_task
        self.scheduler: Any = RedlockScheduler(
            app, schedule_filename=app.conf.beat_schedule_filename
        )
        vars(self.scheduler)["producer"] = None

    def _send_task(self, name: str, args: Any, kwargs: Any, **options: Any) -> None:
        if not self.has_broker:
            raise OperationalError("refused")
        assert options["producer"] is self.scheduler._producer is not None
        self.redlock.clock.sleep(self.publishing_takes)
        slot = Moment.fromisoformat(options["headers"]["redlock_tick"].replace("Z", "+00:00"))
        assert placement_in(options["headers"])[1] == str(self.redlock.placement)
        self.published.append((args[0], slot.timestamp() - START))

    def slots(self, entry: str = "entry") -> list[float]:
        return [slot for name, slot in self.published if name == entry]


NewHost = Callable[..., Host]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def nodes(clock: FakeClock) -> FakeNodes:
    return FakeNodes(clock)


@pytest.fixture
def scheduler() -> type[Scheduler]:
    """What replicas are built on, unless a test says otherwise: the installed Celery's.

    `make versions` runs these tests with each kind of its tick, and so does the simulation.
    """
    return Scheduler


@pytest.fixture
def new_host(
    nodes: FakeNodes, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, scheduler: type[Scheduler]
) -> NewHost:
    """Start one more replica: `new_host(hourly=3600, ahead=0.9, redlock_beat_scheduler=…)`."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    redlocks: dict[Celery, FakeRedlock] = {}
    monkeypatch.setattr("celery_redlock.beat.claiming.redlock_of", redlocks.__getitem__)
    stored = LikeRedBeatsServer.stored
    monkeypatch.setattr(
        "celery_redlock.beat.redbeat.all_keys", lambda app: [f"{app.main}{name}" for name in stored]
    )

    def new(*, ahead: float = 0.0, conf: dict[str, Any] | None = None, **entries: Any) -> Host:
        app = Celery("app", broker="memory://", set_as_current=False)
        app.conf.update(
            {
                "redlock_nodes": ["redis://a"],
                "redlock_beat_scheduler": scheduler,
                "beat_schedule": {
                    name: {"task": "task", "schedule": every, "args": (name,)}
                    for name, every in entries.items()
                },
            }
            | (conf or {})
        )
        redlocks[app] = nodes.redlock(ahead)
        return Host(redlocks[app], app)

    return new


def run(clock: FakeClock, seconds: float, *hosts: Host) -> None:
    """Let so much time pass, and each replica tick when it wants to."""
    end = clock.now() + seconds
    in_a_row = 0
    while (host := min(hosts, key=lambda host: host.due_at)).due_at <= end:
        in_a_row = 0 if host.due_at > clock.now() else in_a_row + 1
        assert in_a_row < MOST_IN_A_ROW, "beat spins"
        clock.move(max(0.0, host.due_at - clock.now()))
        pause = host.scheduler.tick()
        host.due_at = clock.now() + pause
    clock.move(max(0.0, end - clock.now()))


def stall(clock: FakeClock, seconds: float, *hosts: Host) -> None:
    """Stop these hosts for a while."""
    clock.move(seconds)
    for host in hosts:
        host.due_at = max(host.due_at, clock.now())


def together(*hosts: Host) -> list[tuple[str, float]]:
    return sorted([tick for host in hosts for tick in host.published], key=lambda tick: tick[::-1])


def every(seconds: float, until: float, entry: str = "entry") -> list[tuple[str, float]]:
    return [(entry, n * seconds) for n in range(1, int(until / seconds) + 1)]


# --- slots and replicas ---------------------------------------------------------------------------


@pytest.mark.parametrize("conf", [{}, {"redlock_beat_scheduler": SharedState}])
def test_replicas_whose_clocks_differ_publish_each_tick_once(
    new_host: NewHost, clock: FakeClock, conf: dict[str, Any]
) -> None:
    hosts = [
        new_host(a=1.0, b=5.0, c=crontab(), ahead=ahead, conf=conf) for ahead in (-0.9, 0.0, 0.9)
    ]
    clock.move(1)
    run(clock, 125, *hosts)
    expected = every(1, 126, "a") + every(5, 125, "b") + every(60, 120, "c")
    assert set(expected) <= set(together(*hosts))
    assert len(together(*hosts)) == len(set(together(*hosts)))
    for host in hosts:
        assert host.published == sorted(host.published, key=lambda tick: tick[1])


@pytest.mark.parametrize("base", [Scheduler, SharedState, LikeRedBeat])
def test_what_wraps_publishing_is_called_once_a_tick(
    new_host: NewHost, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, base: type[Scheduler]
) -> None:
    # As Sentry Crons does, which opens a check-in for each call.
    of, name = (base, "apply_async") if base is LikeRedBeat else (Scheduler, "apply_entry")
    original: Any = getattr(of, name)
    called: list[str] = []

    def wrapper(scheduler: Any, entry: Any, *args: Any, **kwargs: Any) -> Any:
        called.append(str(entry.options["headers"]["redlock_tick"]))
        entry.options["headers"]["check-in"] = "1"
        return original(scheduler, entry, *args, **kwargs)

    monkeypatch.setattr(of, name, wrapper)
    hosts = [new_host(entry=5.0, conf={"redlock_beat_scheduler": base}) for _ in range(3)]
    clock.move(1)
    run(clock, 60, *hosts)
    assert len(called) == len(set(called)) == len(together(*hosts)) >= 11
    for host in hosts:
        for entry in host.scheduler.schedule.values():
            assert "headers" not in entry.options


def test_a_failed_publish_is_logged_as_one_failed_tick(
    new_host: NewHost, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    host = new_host(entry=5.0)
    host.has_broker = False
    run(clock, 7, host)
    assert [record.getMessage().partition(" ")[0] for record in caplog.records] == ["tick"]
    assert len(host.scheduler._queue) == 1


@pytest.mark.parametrize(
    "name",
    [
        "celery_once.tasks.AlreadyQueued",
        "celery_singleton.exceptions.DuplicateTaskError",
        "celery_heimdall.errors.AlreadyQueuedError",
    ],
)
def test_a_tick_that_another_packages_lock_refuses_is_not_tried_again(
    name: str, new_host: NewHost, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    module, _, cls = name.rpartition(".")
    error = type(cls, (Exception,), {"__module__": module})
    host = new_host(entry=5.0)
    tried: list[float] = []

    def refuse(*_: Any, **__: Any) -> None:
        tried.append(clock.now())
        raise error

    host.scheduler.app.send_task = refuse
    run(clock, 17, host)
    assert len(tried) == len(set(tried)) == 3
    assert len(host.scheduler._queue) == 0
    said = [record.getMessage() for record in caplog.records]
    told = "tick is a duplicate for another package entry=entry error=Couldn't apply scheduled task"
    assert sum(line.startswith(told) for line in said) == 3


def test_apps_of_one_name_on_other_brokers_keep_their_ticks(
    new_host: NewHost, clock: FakeClock
) -> None:
    one = new_host(entry=5.0)
    other = new_host(entry=5.0, conf={"broker_url": "memory://elsewhere"})
    run(clock, 12, one, other)
    assert one.slots() == other.slots() == [5, 10]


def test_an_interval_is_due_at_its_slots_whenever_beat_started(
    new_host: NewHost, clock: FakeClock
) -> None:
    host = new_host(entry=HOUR)
    run(clock, 3 * HOUR, host)
    assert host.slots() == [40 * MINUTE, 100 * MINUTE, 160 * MINUTE]


def test_one_that_was_late_is_in_time_the_next_time(new_host: NewHost, clock: FakeClock) -> None:
    host = new_host(entry=600.0)
    run(clock, 595, host)
    stall(clock, 45, host)
    run(clock, 0, host)
    assert host.slots() == [600]
    run(clock, 559.9, host)
    assert host.slots() == [600]
    run(clock, 0.2, host)
    assert host.slots() == [600, 1200]


def test_slots_a_stopped_replica_missed_are_published_in_order(
    new_host: NewHost, clock: FakeClock
) -> None:
    host = new_host(a=2.0, b=5.0)
    run(clock, 10, host)
    stall(clock, 15, host)
    run(clock, 1, host)
    assert [slot for _, slot in host.published] == sorted(slot for _, slot in host.published)
    assert together(host) == sorted(every(2, 26, "a") + every(5, 26, "b"), key=lambda t: t[::-1])


def test_what_is_later_than_the_grace_is_passed_over(
    new_host: NewHost, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    host = new_host(entry=600.0, conf={"redlock_beat_misfire_grace_time": 30})
    run(clock, 10, host)
    stall(clock, 625, host)
    run(clock, 1000, host)
    assert host.slots() == [1200]
    assert [r.getMessage() for r in caplog.records] == [
        "ticks skipped as too old entry=entry from=1970-01-13 12:30:00+00:00"
    ]


def test_ticks_missed_while_all_replicas_were_down_are_counted(
    new_host: NewHost, nodes: FakeNodes, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[str, str]] = []

    def note(entry: Any, slot: str, **_: Any) -> None:
        told.append((entry.name, slot))

    host = new_host(entry=600.0, conf={"redlock_beat_misfire_grace_time": 30})
    run(clock, 10, host)
    stall(clock, 1250, host)
    tick_processed.connect(note)
    try:
        run(clock, 1, host)
    finally:
        tick_processed.disconnect(note)
    assert told == [("entry", "1970-01-13T12:30:00Z"), ("entry", "1970-01-13T12:40:00Z")]
    # The last one tells enough: there may be very many.
    noted = f"%beat:{host.scheduler._identity}:entry:1970-01-13T12:40:00Z:missed"
    assert [key for key in nodes.held if key.endswith(MISSED)] == [noted]
    [record] = caplog.records
    assert record.levelname == "ERROR"


def test_not_every_tick_of_a_long_absence_is_told(new_host: NewHost, clock: FakeClock) -> None:
    told: list[str] = []

    def note(outcome: str, **_: Any) -> None:
        told.append(outcome)

    host = new_host(entry=1.0, other=HOUR, conf={"redlock_beat_misfire_grace_time": 30})
    run(clock, 10, host)
    stall(clock, 10 * DAY, host)
    tick_processed.connect(note)
    try:
        run(clock, 0, host)
    finally:
        tick_processed.disconnect(note)
    assert told.count("missed") == 1000 + 24


@pytest.mark.parametrize(("period", "first"), [(5.0, 15.0), (600.0, 600.0), (HOUR, 40 * MINUTE)])
def test_ticks_that_another_replica_published_were_not_missed(
    new_host: NewHost,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
    period: float,
    first: float,
) -> None:
    caplog.set_level("INFO", "celery_redlock.beat.claiming")
    host, other = (
        new_host(entry=period, conf={"redlock_beat_misfire_grace_time": 30}) for _ in range(2)
    )
    run(clock, 10, host, other)
    run(clock, 2.5 * period + 100, other)
    host.due_at = clock.now()
    run(clock, 1, host)
    [line] = [r for r in caplog.records if r.name.endswith("beat.claiming")]
    assert (line.levelname, line.getMessage()) == (
        "INFO", f"ticks left to other replicas entry=entry from={moment(START + first)}"
    )  # fmt: skip


def test_ticks_that_no_replica_published_are_missed_by_the_first(
    new_host: NewHost, clock: FakeClock, nodes: FakeNodes, caplog: pytest.LogCaptureFixture
) -> None:
    conf = {"redlock_beat_misfire_grace_time": 30}
    first, second = (new_host(entry=600.0, conf=conf) for _ in range(2))
    run(clock, 10, first, second)
    stall(clock, 1900, first, second)
    run(clock, 1000, first)
    assert caplog.text.count("ticks skipped as too old") == 1
    notes = [owner for key, (owner, _) in nodes.held.items() if key.endswith(MISSED)]
    assert list(map(task_of, notes)) == ["no beat"]
    second.due_at = clock.now()
    nodes.is_up = False  # then it can't tell
    second.scheduler._clock_check.check = lambda: Trust.RIGHT
    run(clock, 1, second)
    assert caplog.text.count("ticks skipped as too old") == 2


def test_an_entry_that_ran_years_ago_is_no_burden(new_host: NewHost, clock: FakeClock) -> None:
    host = new_host(entry=1.0)
    run(clock, 0, host)
    host.scheduler.schedule["entry"].last_run_at = EPOCH
    host.scheduler._heap = None
    host.due_at = clock.now()
    run(clock, 0.5, host)
    assert host.slots() == list(range(-59, 1))


def test_beat_comes_back_in_time_for_what_waits(
    new_host: NewHost, nodes: FakeNodes, clock: FakeClock
) -> None:
    host = new_host(entry=HOUR)
    run(clock, 5, host)
    nodes.is_up = False
    run(clock, 40 * MINUTE - 4, host)
    nodes.is_up = True
    run(clock, 1, host)
    assert host.slots() == [40 * MINUTE]


def test_an_entry_that_comes_back_has_missed_nothing(new_host: NewHost, clock: FakeClock) -> None:
    host = new_host(entry=1.0, other=1.0)
    run(clock, 5, host)
    away = host.scheduler.schedule.pop("entry")
    run(clock, 20, host)
    back = host.scheduler.Entry(**dict(away, last_run_at=moment(clock.now())))
    host.scheduler.schedule["entry"] = back
    run(clock, 5, host)
    assert host.slots() == [1, 2, 3, 4, 5, 26, 27, 28, 29, 30]
    assert host.slots("other") == list(range(1, 31))


def test_an_entry_added_while_beat_runs_has_its_ticks(new_host: NewHost, clock: FakeClock) -> None:
    host = new_host(entry=1.0)
    run(clock, 3, host)
    host.scheduler.update_from_dict({"more": {"task": "task", "schedule": 1.0, "args": ("more",)}})
    run(clock, 2, host)
    assert host.slots("more") == [4, 5]


def test_an_entry_that_never_ran_has_missed_nothing(new_host: NewHost, clock: FakeClock) -> None:
    host = new_host(entry=5.0)
    new = host.scheduler.schedule.pop("entry")
    new.last_run_at = None
    clock.move(2)
    host.scheduler.apply_async(new, advance=False)
    assert host.scheduler._unadvanced == {}
    run(clock, 0, host)
    assert host.slots() == [0]


def test_a_waiting_tick_is_not_in_the_shared_scheduler_state(
    new_host: NewHost, nodes: FakeNodes, clock: FakeClock
) -> None:
    host = new_host(entry=5.0, conf={"redlock_beat_scheduler": SharedState})
    run(clock, 1, host)
    nodes.is_up = False
    run(clock, 20, host)
    assert (host.published, host.scheduler.advanced) == ([], [])
    nodes.is_up = True
    run(clock, 2, host)
    assert host.slots() == [5, 10, 15, 20]
    assert host.scheduler.advanced == ["entry"]


def test_ticks_do_not_wait_for_ticks_that_never_end(new_host: NewHost, clock: FakeClock) -> None:
    host = new_host(**{f"entry-{n}": 1.0 for n in range(300)})
    clock.move(1)
    for _ in range(150):
        assert host.scheduler.tick() == 0
    assert len(host.published) >= 100


def test_slots_that_come_while_others_are_published_are_in_time(
    new_host: NewHost, clock: FakeClock
) -> None:
    host = new_host(entry=5.0)
    host.publishing_takes = 6.0
    run(clock, 5, host)
    host.publishing_takes = 0.0
    run(clock, 0.5, host)
    assert host.slots() == [5, 10]


def test_a_busy_replica_is_late_but_misses_nothing(
    new_host: NewHost, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"entry-{n}" for n in range(75)]
    host = new_host(**dict.fromkeys(names, 600.0), conf={"redlock_beat_misfire_grace_time": 30})
    host.publishing_takes = 2.0
    run(clock, 1190, host)
    assert sorted(host.published) == sorted((name, 600) for name in names)
    assert not caplog.records
    # By then, not by the last work: it may have been stopped since.
    stall(clock, 50, host)
    run(clock, 0, host)
    assert len(host.published) == 75


def test_a_busy_replica_publishes_no_tick_after_the_next_one_of_its_entry(
    new_host: NewHost, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Other replicas' marks end then."""
    host = new_host(**{f"entry-{n}": 60.0 for n in range(75)})
    host.publishing_takes = 2.0
    late: list[float] = []
    send = host.scheduler.app.send_task

    def send_task(*args: Any, **options: Any) -> None:
        slot = Moment.fromisoformat(options["headers"]["redlock_tick"].replace("Z", "+00:00"))
        late.append(host.redlock.clock.wall_us() / 1e6 - slot.timestamp())
        send(*args, **options)

    host.scheduler.app.send_task = send_task
    while clock.now() < START + 400:
        clock.move(host.scheduler.tick())
    assert 60 < max(late) <= 120
    assert "tick missed" in caplog.text


def test_new_entries_meet_their_slots_while_other_ticks_wait(
    new_host: NewHost, clock: FakeClock
) -> None:
    host = new_host(rare=crontab(minute=21), entry=1.0)
    run(clock, MINUTE - 1, host)
    host.has_broker = False
    run(clock, 3, host)
    host.scheduler.schedule["new"] = host.scheduler.Entry(
        name="new", task="task", schedule=1.0, args=("new",), app=host.scheduler.app
    )
    run(clock, 5, host)
    host.has_broker = True
    run(clock, 20, host)
    assert host.slots("rare") == [MINUTE]
    assert host.slots() == list(range(1, 88))
    assert host.slots("new") == list(range(63, 88))


@pytest.mark.parametrize("again", [DAY, 0.0])
def test_an_entry_always_due_is_queued_once_while_it_waits(
    new_host: NewHost, clock: FakeClock, again: float
) -> None:
    host = new_host(entry=1.0)
    at = Once(moment(START + 3), host.scheduler.app, again)
    host.scheduler.schedule["once"] = host.scheduler.Entry(
        name="once", task="task", schedule=at, args=("once",), app=host.scheduler.app
    )
    host.has_broker = False
    run(clock, 5, host)
    host.scheduler.schedule["new"] = host.scheduler.Entry(
        name="new", task="task", schedule=HOUR, args=("new",), app=host.scheduler.app
    )
    run(clock, 5, host)
    host.has_broker = True
    run(clock, 10, host)
    assert host.slots("once") == [3]
    # Of two entries that are due together Celery 5.5 asks one, left to chance, and then pauses: the
    # last tick may come later.
    assert host.slots()[:19] == list(range(1, 20))


def add_one_off(host: Host, every_s: float, last_run: float) -> None:
    kind: Any = type("OnceOnly", (OnceOnly,), {"all_entries": host.scheduler.schedule})
    host.scheduler.schedule["once"] = kind(
        name="once", task="task", schedule=every_s, args=("once",), app=host.scheduler.app,
        last_run_at=moment(last_run),
    )  # fmt: skip


def test_a_one_off_entry_that_waits_for_the_broker_runs_once(
    new_host: NewHost, clock: FakeClock
) -> None:
    host = new_host(entry=1.0)
    add_one_off(host, 5.0, clock.now())
    host.has_broker = False
    run(clock, 17, host)
    host.has_broker = True
    run(clock, 20, host)
    assert host.slots("once") == [5]
    assert host.slots() == list(range(1, 38))


def test_a_one_off_entry_that_all_replicas_missed_runs_once(
    new_host: NewHost, clock: FakeClock
) -> None:
    hosts = [new_host(entry=1.0) for _ in range(2)]
    clock.move(17.5)
    for host in hosts:
        add_one_off(host, 5.0, START)
        host.due_at = clock.now()
    run(clock, 20, *hosts)
    assert [tick for tick in together(*hosts) if tick[0] == "once"] == [("once", 5)]


@pytest.mark.parametrize(("made_after", "slots"), [(0.005, [3]), (3599.0, [3]), (3601.0, [])])
def test_a_clocked_entry_for_now_is_published(
    new_host: NewHost,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
    made_after: float,
    slots: list[float],
) -> None:
    host = new_host(other=HOUR)
    run(clock, 3 + made_after, host)
    kind: Any = type("OnceOnly", (OnceOnly,), {"all_entries": host.scheduler.schedule})
    host.scheduler.schedule["once"] = kind(
        name="once", task="task", args=("once",), app=host.scheduler.app,
        schedule=clocked(moment(START + 3), app=host.scheduler.app),
        last_run_at=moment(clock.now()),
    )  # fmt: skip
    host.due_at = clock.now()
    run(clock, 0.5, host)
    assert host.slots("once") == slots
    assert ("ticks skipped as too old entry=once" in caplog.text) == (not slots)


# --- the grace of each entry ----------------------------------------------------------------------


def new_graced(new_host: NewHost, schedule: Any, grace: float | None = None, **conf: Any) -> Host:
    headers = {} if grace is None else {"redlock_beat_misfire_grace_time": grace}
    entry = {
        "task": "task", "schedule": schedule, "args": ("entry",), "options": {"headers": headers}
    }  # fmt: skip
    return new_host(other=1.0, conf={"beat_schedule": {"entry": entry}} | conf)


@pytest.mark.parametrize(
    ("schedule", "grace", "late", "is_published"),
    [
        (crontab(hour=13, minute=0), None, 3590, True),
        (crontab(hour=13, minute=0), None, 3610, False),
        (crontab(hour=13, minute=0), 5 * HOUR, 4 * HOUR, True),
        (crontab(hour=13, minute=0), 60, 90, False),
        (crontab(minute=0), None, 140, True),
        (crontab(minute=0), None, 160, False),
        (HOUR, 600, 590, True),
        (HOUR, 600, 610, False),
    ],
)
def test_an_entry_missed_by_all_replicas_is_made_up_for_within_its_grace(
    new_host: NewHost,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
    schedule: Any,
    grace: float | None,
    late: float,
    *,
    is_published: bool,
) -> None:
    hosts = [new_graced(new_host, schedule, grace) for _ in range(2)]
    run(clock, 10, *hosts)
    stall(clock, 40 * MINUTE - 10 + late, *hosts)
    run(clock, 2, *hosts)
    due = 40 * MINUTE
    made_up = [tick for tick in together(*hosts) if tick == ("entry", due)]
    assert made_up == [("entry", due)] * is_published
    assert ("ticks skipped as too old entry=entry" in caplog.text) != is_published


def test_the_setting_is_the_grace_of_entries_that_name_none(
    new_host: NewHost, clock: FakeClock
) -> None:
    conf = {"redlock_beat_misfire_grace_time": 30}
    hosts = [new_graced(new_host, HOUR, own, **conf) for own in (None, 90)]
    run(clock, 10, *hosts)
    stall(clock, 40 * MINUTE + 50, *hosts)
    run(clock, 2, *hosts)
    assert [40 * MINUTE in host.slots() for host in hosts] == [False, True]


def test_ticks_with_different_graces_that_another_replica_published_were_not_missed(
    new_host: NewHost, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    # That of 13:00 is too late a minute after, that of 13:05 an hour after.
    host, other = (new_graced(new_host, crontab(hour=13, minute="0,5")) for _ in range(2))
    run(clock, 10, host, other)
    run(clock, 90 * MINUTE, other)
    host.due_at = clock.now()
    run(clock, 1, host)
    assert together(host, other).count(("entry", 40 * MINUTE)) == 1
    assert together(host, other).count(("entry", 45 * MINUTE)) == 1
    assert not [r for r in caplog.records if r.levelname == "ERROR"]


@pytest.mark.parametrize(("slot", "until_next"), [(40 * MINUTE, 300.0), (45 * MINUTE, DAY - 300)])
def test_a_mark_outlasts_the_next_slot_by_the_longer_grace(
    new_host: NewHost, slot: float, until_next: float
) -> None:
    host = new_graced(new_host, crontab(hour=13, minute="0,5"))
    tick = host.scheduler._tick(host.scheduler.schedule["entry"], moment(START + slot))
    assert tick.kept == until_next + (DAY - 300) / 24


def test_a_grace_that_is_not_valid_is_refused_at_the_start(new_host: NewHost) -> None:
    with pytest.raises(ConfigurationError, match=r"beat entry 'entry': .* without quotes"):
        new_graced(new_host, HOUR, "3600")  # type: ignore[arg-type]


# --- entries that change --------------------------------------------------------------------------


def new_entry(host: Host, name: str, every_s: float, last_run: float | None = None) -> Any:
    """Return an entry that ran last at this time, s; None: now."""
    at = host.redlock.clock.wall_us() / 1e6 if last_run is None else last_run
    return host.scheduler.Entry(
        name=name, task="task", schedule=every_s, args=(name,), app=host.scheduler.app,
        last_run_at=moment(at),
    )  # fmt: skip


def test_an_interval_is_counted_from_the_start_time_of_its_row(
    new_host: NewHost, nodes: FakeNodes, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    host = new_host(other=HOUR)
    row = SimpleNamespace(one_off=False, start_time=moment(START + 7))
    host.scheduler.Entry = type("Entry", (ScheduleEntry,), {"model": row})
    host.scheduler.schedule["entry"] = new_entry(host, "entry", 5.0)
    run(clock, 20, host)
    assert host.slots() == [7, 12, 17]
    stall(clock, 75, host)
    run(clock, 0, host)
    assert host.slots()[3:] == list(range(37, 97, 5))
    said = f"ticks skipped as too old entry=entry from={moment(START + 22)}"
    assert [record.getMessage() for record in caplog.records] == [said]
    [noted] = [key for key in nodes.held if key.endswith(MISSED)]
    assert noted.endswith(f":{moment(START + 32):%Y-%m-%dT%H:%M:%SZ}{MISSED}")


def test_a_changed_schedule_has_missed_nothing_before_the_change(
    new_host: NewHost, clock: FakeClock
) -> None:
    host = new_host(entry=HOUR, other=5.0)
    run(clock, 30, host)
    host.scheduler.schedule["entry"] = new_entry(host, "entry", 1.0, last_run=START - HOUR)
    run(clock, 10, host)
    # From the last look at which it was hourly.
    assert host.slots() == list(range(31, 41))


def test_an_entry_enabled_again_has_missed_nothing_in_between(
    new_host: NewHost, clock: FakeClock
) -> None:
    host = new_host(entry=1.0, other=1.0)
    run(clock, 5, host)
    away = host.scheduler.schedule.pop("entry")
    run(clock, 30, host)
    # Its row tells when it ran last, not when it was enabled.
    host.scheduler.schedule["entry"] = host.scheduler.Entry(**dict(away))
    run(clock, 5, host)
    assert host.slots() == [1, 2, 3, 4, 5, 36, 37, 38, 39, 40]


def test_a_schedule_changed_while_disabled_has_missed_nothing(
    new_host: NewHost, clock: FakeClock
) -> None:
    host = new_host(entry=5.0, other=1.0)
    run(clock, 5, host)
    del host.scheduler.schedule["entry"]
    run(clock, 30, host)
    host.scheduler.schedule["entry"] = new_entry(host, "entry", 2.0, last_run=START + 5)
    run(clock, 5, host)
    assert host.slots() == [5, 36, 38, 40]


def test_an_entry_with_the_same_schedule_is_not_a_new_one(
    new_host: NewHost, clock: FakeClock
) -> None:
    host = new_host(entry=1.0)
    run(clock, 5, host)
    host.has_broker = False
    run(clock, 5, host)
    changed = new_entry(host, "entry", 1.0, last_run=START)
    changed.kwargs = {"more": 1}
    host.scheduler.schedule["entry"] = changed
    run(clock, 5, host)
    host.has_broker = True
    run(clock, 5, host)
    assert host.slots() == list(range(1, 21))


@pytest.mark.parametrize("base", [PersistentScheduler, LikeDjangos])
def test_a_schedule_changed_by_a_restart_has_missed_nothing(
    new_host: NewHost, clock: FakeClock, tmp_path: Any, monkeypatch: pytest.MonkeyPatch,
    base: type[Scheduler],
) -> None:  # fmt: skip
    LikeDjangos.stored.clear()
    start = with_file(new_host, tmp_path, monkeypatch, base)
    host = start(entry=HOUR, other=2.0)
    run(clock, 30, host)
    host.scheduler.close()
    clock.move(3)
    host = start(entry=1.0, other=2.0)
    run(clock, 0, host)
    assert host.slots() == []
    host.scheduler.close()
    # Not with the next start either, though it has not run yet.
    clock.move(0.5)
    host = start(entry=1.0, other=2.0)
    run(clock, 4.5, host)
    host.scheduler.close()
    assert host.slots() == [34, 35, 36, 37, 38]
    assert host.slots("other") == [34, 36, 38]


# --- the broker -----------------------------------------------------------------------------------


def test_a_producer_whose_publish_failed_is_not_used_again(
    new_host: NewHost, clock: FakeClock
) -> None:
    host = new_host(entry=5.0)
    send = host.scheduler.app.send_task
    dead = host.scheduler._producer

    def send_unless_dead(*args: Any, producer: Any, **options: Any) -> None:
        if producer is dead:  # as with task_publish_retry = False
            raise ConnectionResetError("closed by the broker")
        send(*args, producer=producer, **options)

    host.scheduler.app.send_task = send_unless_dead
    run(clock, 12, host)
    assert host.slots() == [5, 10]


def test_a_connection_that_cannot_be_closed_is_dropped(new_host: NewHost, clock: FakeClock) -> None:
    host = new_host(entry=5.0)
    dead = host.scheduler.connection

    def collect(socket_timeout: float) -> None:
        assert socket_timeout == 1.0
        raise RuntimeError("half open")

    dead.collect = collect
    host.has_broker = False
    run(clock, 5, host)
    host.has_broker = True
    run(clock, 2, host)
    assert host.slots() == [5]
    assert host.scheduler.connection is not dead


def test_a_broker_that_refuses_the_connection_pauses_all_ticks(
    new_host: NewHost, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    host = new_host(a=1.0, b=1.0)

    def refuse(**_: Any) -> Any:
        raise PermissionError("NOT_ALLOWED - access to the virtual host refused")

    host.scheduler.connection.ensure_connection = refuse
    run(clock, 1, host)
    [line] = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert line.startswith("tick publishing paused reason=no broker")
    assert "NOT_ALLOWED" in line


def test_beat_shows_no_life_while_it_cannot_publish(
    new_host: NewHost, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats: list[tuple[LivenessFile, float]] = []
    monkeypatch.setattr(LivenessFile, "touch", lambda self: beats.append((self, clock.now())))
    cut_off, other = new_host(entry=5.0), new_host(entry=5.0)
    cut_off.has_broker = False
    run(clock, 100, cut_off, other)
    shown = {
        host: [at - START for file, at in beats if file is host.scheduler._liveness]
        for host in (cut_off, other)
    }
    assert max(shown[cut_off]) <= 5
    assert max(shown[other]) > 90
    # One failure is not for good, also if the other replica is quicker from now on.
    cut_off.has_broker = True
    cut_off.due_at = clock.now() + 1
    beats.clear()
    run(clock, 45, other, cut_off)
    assert any(file is cut_off.scheduler._liveness for file, _ in beats)


# --- the clock ------------------------------------------------------------------------------------


def test_by_a_wrong_clock_nothing_is_published_or_noted(
    new_host: NewHost, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    conf = {"redlock_beat_scheduler": SharedState, "redlock_beat_on_unavailable": "publish"}
    host = new_host(entry=5.0, ahead=HOUR, conf=conf)
    run(clock, 20, host)
    assert (host.published, host.scheduler.advanced) == ([], [])
    assert [r.levelname for r in caplog.records if "clock off" in r.getMessage()] == ["ERROR"]


def test_when_the_clock_is_right_again_beat_goes_on(new_host: NewHost, clock: FakeClock) -> None:
    host = new_host(entry=5.0)
    run(clock, 12, host)
    host.redlock.clock.ahead = 7200.0
    run(clock, 20, host)
    assert host.slots() == [5, 10]
    host.redlock.clock.ahead = 0.5
    run(clock, 10, host)
    assert host.slots() == [5, 10, 15, 20, 25, 30, 35, 40]


def test_a_clock_that_nobody_has_compared_is_not_gone_by(
    new_host: NewHost, nodes: FakeNodes, clock: FakeClock
) -> None:
    nodes.tell_time = False
    host = new_host(entry=5.0, ahead=HOUR)
    run(clock, 7, host)
    assert host.published == []
    nodes.is_up = False
    careless = new_host(entry=5.0, conf={"redlock_beat_on_unavailable": "publish"})
    run(clock, 7, host, careless)
    assert (host.slots(), careless.slots()) == ([], [10])


def ahead_with_the_nodes(host: Host, seconds: float) -> None:
    """Put the wall clocks of the whole installation ahead, or right again."""
    host.redlock.nodes.ahead = host.redlock.clock.ahead = seconds
    host.due_at = host.redlock.clock.now()


def test_a_clock_set_back_everywhere_is_no_silence(
    new_host: NewHost, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    host = new_host(entry=1.0, rare=HOUR)
    run(clock, 2, host)
    ahead_with_the_nodes(host, HOUR)
    run(clock, 3, host)
    ahead_with_the_nodes(host, 0)
    run(clock, 5, host)
    assert host.slots()[-5:] == [6, 7, 8, 9, 10]
    lines = [r.getMessage() for r in caplog.records if "set back" in r.getMessage()]
    assert lines == ["clock set back, slots from now on are due entries=2 by_s=3600.0"]


def test_a_clock_set_back_a_little_is_let_be(
    new_host: NewHost, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    host = new_host(entry=1.0, ahead=0.9)
    run(clock, 3, host)
    host.redlock.clock.ahead = -0.9
    run(clock, 3, host)
    assert host.slots() == [1, 2, 3, 4, 5]
    assert not caplog.records


def test_ticks_queued_for_a_time_to_come_are_dropped(new_host: NewHost, clock: FakeClock) -> None:
    host = new_host(entry=5.0)
    run(clock, 1, host)
    host.has_broker = False
    ahead_with_the_nodes(host, 600)
    run(clock, 12, host)
    ahead_with_the_nodes(host, 0)
    host.has_broker = True
    run(clock, 8, host)
    assert host.slots() == [15, 20]


def test_a_last_run_in_time_to_come_is_no_silence(
    new_host: NewHost, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    host = new_host(entry=1.0)
    run(clock, 0, host)
    host.scheduler.schedule["entry"].last_run_at = moment(START + 600)
    host.scheduler._heap = None
    run(clock, 3, host)
    assert host.slots() == [1, 2, 3]
    assert "clock set back" in caplog.text


def with_file(
    new_host: NewHost, tmp_path: Any, monkeypatch: pytest.MonkeyPatch,
    base: type[Scheduler] = PersistentScheduler,
) -> NewHost:  # fmt: skip
    """Return `new_host` for replicas that take turns with one file."""
    conf = {
        "redlock_beat_scheduler": base,
        "beat_schedule_filename": str(tmp_path / "schedule"),
    }

    def new(**entries: Any) -> Host:
        host = new_host(conf=conf, **entries)
        # Entries read from the file have the current app.
        monkeypatch.setattr("celery._state._tls.current_app", host.scheduler.app)
        return host

    return new


@pytest.mark.parametrize("off", [-HOUR, -30.0, 30.0, HOUR])
def test_a_new_entry_begins_with_beat_whatever_its_clock_said(
    new_host: NewHost, clock: FakeClock, off: float
) -> None:
    host = new_host(entry=1.0, ahead=off)
    run(clock, 5, host)
    assert host.published == []
    host.redlock.clock.ahead = 0.0
    run(clock, 3, host)
    assert host.slots() == list(range(1, 9))


def test_nothing_begins_before_the_clock_was_compared(
    new_host: NewHost, nodes: FakeNodes, clock: FakeClock
) -> None:
    nodes.tell_time = False
    host = new_host(entry=1.0)
    run(clock, 5, host)
    assert host.scheduler._in_force.looked_at is None
    nodes.tell_time = True
    run(clock, 3, host)
    assert host.slots() == list(range(1, 9))


def killed(host: Host) -> None:
    """Let the replica write nothing more to its file."""
    host.scheduler._store.cache.clear()


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_last_run_ahead_is_corrected_where_it_is_stored(
    new_host: NewHost,
    clock: FakeClock,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    is_restarted: bool,
) -> None:
    start = with_file(new_host, tmp_path, monkeypatch)
    host = start(entry=1.0)
    ahead_with_the_nodes(host, HOUR)
    run(clock, 2, host)
    host.scheduler.sync()
    if is_restarted:
        killed(host)
        host = start(entry=1.0)
    ahead_with_the_nodes(host, 0)
    run(clock, 0, host)
    killed(host)
    clock.move(5)
    host = start(entry=1.0)
    run(clock, 2, host)
    host.scheduler.close()
    assert host.slots() == list(range(3, 10))


def test_the_beginning_of_each_row_is_stored_by_the_first_right_clock(
    new_host: NewHost, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[tuple[str, float]] = []

    def store(entry: Any) -> None:
        stored.append((entry.name, entry.last_run_at.timestamp() - START))

    monkeypatch.setattr("celery_redlock.beat.claiming.store_beginning", store)
    host = new_host(a=1.0, b=HOUR, ahead=-30.0)
    run(clock, 2, host)
    assert stored == []
    host.redlock.clock.ahead = 0.0
    run(clock, 3, host)
    assert sorted(stored) == [("a", 0.0), ("b", -30.0)]  # no slot of the other has come


def test_the_beginning_of_a_new_entry_is_stored(
    new_host: NewHost, clock: FakeClock, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = with_file(new_host, tmp_path, monkeypatch)
    host = start(entry=600.0, ahead=-30.0)
    host.redlock.clock.ahead = 0.0
    run(clock, 0, host)
    killed(host)
    clock.move(7)
    host = start(entry=600.0)
    run(clock, 2, host)
    host.scheduler.close()
    assert host.published == []


# --- what is refused ------------------------------------------------------------------------------


def test_a_schedule_without_slots_is_refused_at_the_start(new_host: NewHost) -> None:
    with pytest.raises(ConfigurationError, match=r"beat entry 'odd': .*Odd.* redlock_slots"):
        new_host(fine=5.0, odd=Odd())


def test_a_stored_schedule_without_slots_is_refused_at_the_start(new_host: NewHost) -> None:
    class Stored(Scheduler):
        def setup_schedule(self) -> None:
            super().setup_schedule()
            self.schedule["odd"] = self.Entry("odd", "task", schedule=Odd(), app=self.app)

    with pytest.raises(ConfigurationError, match=r"beat entry 'odd': .*Odd.* redlock_slots"):
        new_host(fine=5.0, conf={"redlock_beat_scheduler": Stored})


def test_a_name_that_differs_by_process_is_refused_at_the_start(new_host: NewHost) -> None:
    with pytest.raises(ConfigurationError, match=r"beat entry 'task\(<object.*pass a name"):
        new_host(**{f"task({object()!r})": 5.0})


def test_a_node_that_can_never_count_is_refused_at_the_start(
    new_host: NewHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(self: FakeRedlock) -> dict[str, str]:
        raise ConfigurationError("a is a replica")

    monkeypatch.setattr(FakeRedlock, "check", check)
    with pytest.raises(ConfigurationError, match="a is a replica"):
        new_host(fine=5.0)


@pytest.mark.parametrize(
    ("chosen", "problem"),
    [
        ("no.such:Scheduler", "No module named 'no'"),
        ("celery.beat:Service", "not a subclass"),
        ("redlock", "not a subclass"),
        ("celery.beat:Missing", "no attribute 'Missing'"),
        (int, "not a subclass"),
    ],
)
def test_what_is_no_scheduler_is_refused(new_host: NewHost, chosen: object, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=f"redlock_beat_scheduler.*{problem}"):
        new_host(entry=5.0, conf={"redlock_beat_scheduler": chosen})


# --- what it is built on --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "base"),
    [
        (None, PersistentScheduler),
        (Scheduler, Scheduler),
        ("celery.beat:PersistentScheduler", PersistentScheduler),
        ("celery.beat.Scheduler", Scheduler),
        ("plain", Scheduler),
    ],
)
def test_it_is_built_on_the_scheduler_that_the_settings_name(
    monkeypatch: pytest.MonkeyPatch, chosen: object, base: type[Scheduler]
) -> None:
    named = {"celery.beat_schedulers": [("plain", "celery.beat:Scheduler")]}
    monkeypatch.setattr(f"{base_of.__module__}.load_extension_class_names", named.__getitem__)
    app = Celery("app", set_as_current=False)
    app.conf.update(redlock_nodes=["redis://a"], redlock_beat_scheduler=chosen)
    built = RedlockScheduler(app, lazy=True)
    assert type(built).__bases__ == (ClaimsTicks, base)


@pytest.mark.parametrize("base", [Scheduler, LikeRedBeat])
@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_arguments_of_a_scheduler_reach_its_base(
    base: type[Scheduler], *, is_enabled: bool
) -> None:
    app = Celery("app", set_as_current=False)
    app.conf.update(
        redlock_nodes=["redis://a"], redlock_beat_scheduler=base, redlock_enabled=is_enabled
    )
    built: Any = RedlockScheduler(app, {"entry": 1}, max_interval=7, lazy=True)
    assert (built.app, built.data, built.max_interval) == (app, {"entry": 1}, 7)
    assert type(built).__name__ == f"Redlock{base.__name__}"


def test_entries_that_redbeat_asks_itself_are_due_at_their_slots(
    new_host: NewHost, clock: FakeClock
) -> None:
    RedBeatsEntry.told.clear()
    host = new_host(entry=HOUR, conf={"redlock_beat_scheduler": LikeRedBeat})
    run(clock, 3 * HOUR, host)
    assert host.slots() == [40 * MINUTE, 100 * MINUTE, 160 * MINUTE]
    assert RedBeatsEntry.told == [("entry", slot) for slot in host.slots()]


def test_all_replicas_are_told_until_when_this_one_has_looked(
    new_host: NewHost, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    RedBeatsEntry.told.clear()
    host = new_host(entry=5.0, conf={"redlock_beat_scheduler": LikeRedBeat})
    reserve = host.redlock.reserve

    def reserve_slowly(*args: Any, **kwargs: Any) -> Any:
        clock.move(8)
        return reserve(*args, **kwargs)

    monkeypatch.setattr(host.redlock, "reserve", reserve_slowly)
    run(clock, 5, host)
    assert RedBeatsEntry.told == [("entry", 5)]


def test_an_entry_that_redbeat_enables_again_has_missed_nothing(
    new_host: NewHost, clock: FakeClock
) -> None:
    host = new_host(entry=1.0, conf={"redlock_beat_scheduler": LikeRedBeat})
    entry = host.scheduler.schedule["entry"]
    run(clock, 3, host)
    entry.enabled = False
    run(clock, 20, host)
    entry.enabled = True
    run(clock, 4, host)
    assert host.slots()[:3] == [1, 2, 3]
    assert 18 <= host.slots()[3] <= 24


@pytest.mark.parametrize("looks_in_vain", [0, 5])
def test_entries_of_redbeat_are_made_up_for_when_all_replicas_were_down(
    new_host: NewHost, clock: FakeClock, looks_in_vain: int
) -> None:
    host = new_host(entry=1.0, conf={"redlock_beat_scheduler": LikeRedBeat})
    host.scheduler.schedule["entry"] = new_entry(host, "entry", 1.0, last_run=START - 8)
    trusts = chain([Trust.OFF] * looks_in_vain, repeat(Trust.RIGHT))
    host.scheduler._clock_check.check = lambda: next(trusts)
    run(clock, 9, host)
    assert host.slots() == list(range(-7, 10))


def test_an_entry_that_redbeat_has_anew_has_missed_nothing(
    new_host: NewHost, clock: FakeClock
) -> None:
    host = new_host(entry=1.0, conf={"redlock_beat_scheduler": LikeRedBeat})
    run(clock, 3, host)
    host.scheduler.schedule.pop("entry")
    clock.move(27)
    host.scheduler.schedule["entry"] = new_entry(host, "entry", 1.0)
    host.due_at = clock.now()
    run(clock, 4, host)
    assert host.slots() == [1, 2, 3, 31, 32, 33, 34]


@pytest.mark.parametrize("was_listed", [False, True])
def test_a_schedule_that_redbeat_has_changed_has_missed_nothing(
    new_host: NewHost, clock: FakeClock, was_listed: bool
) -> None:
    host = new_host(entry=HOUR, other=5.0, conf={"redlock_beat_scheduler": LikeRedBeat})
    if not was_listed:  # RedBeat lists entries shortly before they are due
        host.scheduler.schedule.pop("entry")
    run(clock, 30, host)
    entry = new_entry(host, "entry", 1.0, last_run=START - HOUR)
    host.scheduler.schedule["entry"] = entry
    run(clock, 10, host)
    assert host.slots() == list(range(31, 41))


def test_an_entry_that_redbeat_did_not_list_has_its_ticks(
    new_host: NewHost, clock: FakeClock
) -> None:
    host = new_host(entry=60.0, other=5.0, conf={"redlock_beat_scheduler": LikeRedBeat})
    entry = host.scheduler.schedule.pop("entry")
    run(clock, 80, host)
    entry.last_run_at = moment(START + 30)
    # By its own reckoning it is due 60 s after it was made.
    host.scheduler.schedule["entry"] = entry
    run(clock, 41, host)
    assert host.slots() == [60, 120]


@pytest.mark.parametrize("off", [-30.0, 30.0])
def test_by_a_wrong_clock_no_entry_of_redbeat_is_stored(
    new_host: NewHost, clock: FakeClock, off: float
) -> None:
    LikeRedBeatsServer.stored.clear()
    conf = {"redlock_beat_scheduler": LikeRedBeatsServer}
    wrong = new_host(entry=1.0, ahead=off, conf=conf)
    run(clock, 2, wrong)
    assert LikeRedBeatsServer.stored == {}
    right = new_host(entry=1.0, conf=conf)
    run(clock, 3, wrong, right)
    assert (wrong.slots(), right.slots()) == ([], [3, 4, 5])
    wrong.redlock.clock.ahead = 0.0
    run(clock, 3, wrong, right)
    assert together(wrong, right) == every(1, 8)[2:]


def test_a_schedule_of_redbeat_changed_by_a_restart_begins_with_it(
    new_host: NewHost, clock: FakeClock
) -> None:
    LikeRedBeatsServer.stored.clear()
    conf = {"redlock_beat_scheduler": LikeRedBeatsServer}
    run(clock, 2, new_host(entry=HOUR, conf=conf))
    clock.move(30)
    host = new_host(entry=1.0, ahead=-30.0, conf=conf)
    run(clock, 3, host)
    assert LikeRedBeatsServer.stored["entry"].schedule.run_every == dt.timedelta(hours=1)
    host.redlock.clock.ahead = 0.0
    run(clock, 2, host)
    assert host.slots() == [33, 34, 35, 36, 37]


def test_an_entry_of_redbeat_is_made_up_for_after_a_restart(
    new_host: NewHost, clock: FakeClock
) -> None:
    LikeRedBeatsServer.stored.clear()
    conf = {"redlock_beat_scheduler": LikeRedBeatsServer}
    run(clock, 2, new_host(entry=1.0, other=HOUR, conf=conf))
    assert set(LikeRedBeatsServer.stored) == {"entry", "other"}
    clock.move(5)
    host = new_host(entry=1.0, conf=conf)
    run(clock, 1, host)
    assert host.slots() == [3, 4, 5, 6, 7, 8]
    more = {"task": "task", "schedule": 1.0, "args": ("more",)}
    host.scheduler.update_from_dict({"more": more})
    assert set(LikeRedBeatsServer.stored) == {"entry", "other", "more"}


def test_an_entry_of_redbeat_that_never_ran_is_asked(new_host: NewHost) -> None:
    host = new_host(entry=1.0, conf={"redlock_beat_scheduler": LikeRedBeat})
    never_ran = SimpleNamespace(
        name="new", enabled=True, last_run_at=None, schedule=None, is_due=lambda: (False, 7.0)
    )
    assert host.scheduler.maybe_due(never_ran, producer=None) == 7.0


def test_all_entries_that_redbeat_keeps_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def zrange(key: str, first: int, last: int) -> list[str]:
        assert (key, first) == ("redbeat::schedule", 0)
        return ["a", "b", "c"][first : last + 1 or None]

    app: Any = SimpleNamespace(redbeat_conf=SimpleNamespace(schedule_key="redbeat::schedule"))
    monkeypatch.setattr(
        "redbeat.schedulers.get_redis", lambda of: SimpleNamespace(zrange=zrange) if of else None
    )
    assert redbeat.all_keys(app) == ["a", "b", "c"]


def test_a_last_run_that_redbeat_stored_by_a_clock_ahead_is_put_right(
    new_host: NewHost, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    LikeRedBeatsServer.stored.clear()
    conf = {"redlock_beat_scheduler": LikeRedBeatsServer}
    host = new_host(entry=1.0, conf=conf)
    run(clock, 2, host)
    entry = LikeRedBeatsServer.stored["entry"]
    entry.last_run_at = moment(START + HOUR)
    run(clock, 2, host)
    assert host.slots() == [1, 2]
    again = new_host(entry=1.0, conf=conf)
    run(clock, 3, again)
    assert "clock set back, slots from now on are due entries=1" in caplog.text
    assert again.slots() == [5, 6, 7]
    # This one has seen nothing by that clock: another replica has.
    entry = LikeRedBeatsServer.stored["entry"]
    entry.last_run_at = moment(START + HOUR)
    again.scheduler._in_force.looked_at = moment(START + HOUR)
    run(clock, 3, again)
    assert again.slots() == [5, 6, 7, 9, 10]


def test_redbeat_is_found_by_its_name_and_does_without_a_leader() -> None:
    app = Celery("app", set_as_current=False)
    app.conf.update(
        redlock_nodes=["redis://a"],
        redlock_beat_scheduler="redbeat:RedBeatScheduler",
        redbeat_redis_url="redis://b",
    )
    built = RedlockScheduler(app, lazy=True)
    assert isinstance(built, ClaimsRedBeatTicks)
    assert built.lock_key is None


def test_switched_off_it_is_the_base_scheduler_with_liveness(
    new_host: NewHost, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats: list[float] = []
    monkeypatch.setattr(LivenessFile, "touch", lambda self: beats.append(clock.now()))
    hosts = [new_host(entry=5.0, conf={"redlock_enabled": False}) for _ in range(2)]
    assert not any(isinstance(host.scheduler, ClaimsTicks) for host in hosts)
    for host in hosts:
        assert host.scheduler.tick() <= 10
    assert len(beats) == 2
    assert hosts[0].redlock.asked == []


def test_beat_shows_that_it_ticks_also_when_it_waits(
    new_host: NewHost, clock: FakeClock, nodes: FakeNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats: list[float] = []
    monkeypatch.setattr(LivenessFile, "touch", lambda self: beats.append(clock.now()))
    host = new_host(yearly=crontab("0", "4", day_of_month="29", month_of_year="2"))
    run(clock, 100, host)
    assert 10 <= len(beats) <= 30
    nodes.is_up = False
    host.redlock.clock.ahead = 0.5
    beats.clear()
    run(clock, 100, host)
    assert max(b - a for a, b in pairwise(beats)) <= 10
