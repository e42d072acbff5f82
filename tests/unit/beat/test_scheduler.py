"""Schedulers of one app, on hosts whose clocks differ, and what they publish together."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from celery import Celery
from celery.beat import PersistentScheduler, ScheduleEntry, Scheduler
from celery.schedules import BaseSchedule, crontab
from kombu.exceptions import OperationalError

from celery_redlock.beat.clock_check import Trust
from celery_redlock.beat.liveness import LivenessFile
from celery_redlock.beat.scheduler import (
    ClaimsRedBeatTicks,
    ClaimsTicks,
    RedlockScheduler,
)
from celery_redlock.beat.slots import EPOCH, Moment
from celery_redlock.redlock.errors import ConfigurationError
from tests.support.fakes.celery_ticks import Since57, Until56
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

    def __init__(self, at: Moment, app: Any) -> None:
        super().__init__(nowfun=app.now, app=app)
        self.at = at

    def redlock_slots(self, after: Moment, until: Moment) -> list[Moment]:
        return [self.at]

    def is_due(self, last_run_at: Any) -> Any:
        left = (self.at - self.now()).total_seconds()
        return left <= 0, left if left > 0 else DAY

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
        self.last_run_at = last_run_at
        return self


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

    def maybe_due(self, entry: Any, **kwargs: Any) -> float:
        is_due, left = entry.is_due() if entry.enabled else (False, 5.0)
        if is_due:
            self.apply_async(entry, **kwargs)
        return float(left)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        return min(self.maybe_due(entry) for entry in list(self.schedule.values()))


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
        self.scheduler: Any = RedlockScheduler(app)
        vars(self.scheduler)["producer"] = None

    def _send_task(self, name: str, args: Any, kwargs: Any, **options: Any) -> None:
        if not self.has_broker:
            raise OperationalError("refused")
        self.redlock.clock.sleep(self.publishing_takes)
        slot = Moment.fromisoformat(options["headers"]["redlock_tick"].replace("Z", "+00:00"))
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


@pytest.fixture(params=[Scheduler, Until56, Since57], ids=["installed", "5.6", "5.7"])
def scheduler(request: pytest.FixtureRequest) -> type[Scheduler]:
    """What replicas are built on, unless a test says otherwise: each kind of Celery's tick."""
    kind: type[Scheduler] = request.param
    return kind


@pytest.fixture
def new_host(
    nodes: FakeNodes, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, scheduler: type[Scheduler]
) -> NewHost:
    """Start one more replica: `new_host(hourly=3600, ahead=0.9, redlock_beat_scheduler=…)`."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    redlocks: dict[Celery, FakeRedlock] = {}
    monkeypatch.setattr("celery_redlock.beat.scheduler.redlock_of", redlocks.__getitem__)

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
    run(clock, 200, *hosts)
    expected = every(1, 201, "a") + every(5, 200, "b") + every(60, 200, "c")
    assert set(expected) <= set(together(*hosts))
    assert len(together(*hosts)) == len(set(together(*hosts)))
    for host in hosts:
        assert host.published == sorted(host.published, key=lambda tick: tick[1])


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


@pytest.mark.parametrize("period", [5.0, 600.0, HOUR, DAY])
def test_ticks_that_another_replica_published_were_not_missed(
    new_host: NewHost, clock: FakeClock, caplog: pytest.LogCaptureFixture, period: float
) -> None:
    caplog.set_level("INFO", "celery_redlock.beat.scheduler")
    host, other = (
        new_host(entry=period, conf={"redlock_beat_misfire_grace_time": 30}) for _ in range(2)
    )
    run(clock, 10, host, other)
    run(clock, 2.5 * period + 100, other)
    host.due_at = clock.now()
    run(clock, 1, host)
    [line] = [r for r in caplog.records if r.name.endswith("beat.scheduler")]
    assert (line.levelname, line.getMessage()[:44]) == (
        "INFO", "ticks left to other replicas entry=entry fro"
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
    second.due_at = clock.now()
    nodes.is_up = False  # then it can't tell
    second.scheduler._clock_check.look = lambda: Trust.RIGHT
    run(clock, 1, second)
    assert caplog.text.count("ticks skipped as too old") == 2


def test_an_entry_that_ran_years_ago_is_no_burden(new_host: NewHost, clock: FakeClock) -> None:
    host = new_host(entry=1.0)
    host.scheduler.schedule["entry"].last_run_at = EPOCH
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


def test_an_entry_that_never_ran_has_missed_nothing(new_host: NewHost, clock: FakeClock) -> None:
    host = new_host(entry=5.0)
    new = host.scheduler.schedule.pop("entry")
    new.last_run_at = None
    clock.move(2)
    host.scheduler.apply_async(new, advance=False)
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


def test_new_entries_meet_their_slots_while_other_ticks_wait(
    new_host: NewHost, clock: FakeClock
) -> None:
    host = new_host(rare=HOUR, entry=1.0)
    run(clock, 40 * MINUTE - 1, host)
    host.has_broker = False
    run(clock, 3, host)
    host.scheduler.schedule["new"] = host.scheduler.Entry(
        name="new", task="task", schedule=1.0, args=("new",), app=host.scheduler.app
    )
    run(clock, 5, host)
    host.has_broker = True
    run(clock, 20, host)
    end = 40 * MINUTE + 27
    assert host.slots("rare") == [40 * MINUTE]
    assert host.slots() == [float(n) for n in range(1, int(end) + 1)]
    assert host.slots("new") == [float(n) for n in range(int(end) - 24, int(end) + 1)]


def test_an_entry_always_due_is_queued_once_while_it_waits(
    new_host: NewHost, clock: FakeClock
) -> None:
    host = new_host(entry=1.0)
    at = Once(moment(START + 3), host.scheduler.app)
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
    assert host.slots() == list(range(1, 21))


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


# --- the clock ------------------------------------------------------------------------------------


def test_by_a_wrong_clock_nothing_is_published_or_noted(
    new_host: NewHost, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    host = new_host(entry=5.0, ahead=HOUR, conf={"redlock_beat_scheduler": SharedState})
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


# --- what is refused ------------------------------------------------------------------------------


def test_a_schedule_without_slots_is_refused_at_the_start(new_host: NewHost) -> None:
    with pytest.raises(ConfigurationError, match=r"beat entry 'odd': .*Odd.* redlock_slots"):
        new_host(fine=5.0, odd=Odd())


def test_a_node_that_can_never_count_is_refused_at_the_start(
    new_host: NewHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(self: FakeRedlock) -> dict[str, str]:
        raise ConfigurationError("a is a replica")

    monkeypatch.setattr(FakeRedlock, "check", check)
    with pytest.raises(ConfigurationError, match="a is a replica"):
        new_host(fine=5.0)


@pytest.mark.parametrize(
    "chosen", ["no.such:Scheduler", "celery.beat:Service", "redlock", "celery.beat:Missing", int]
)
def test_what_is_no_scheduler_is_refused(new_host: NewHost, chosen: object) -> None:
    with pytest.raises(ConfigurationError, match="redlock_beat_scheduler"):
        new_host(entry=5.0, conf={"redlock_beat_scheduler": chosen})


# --- what it is built on --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "base"),
    [
        (None, PersistentScheduler),
        (Scheduler, Scheduler),
        ("celery.beat:PersistentScheduler", PersistentScheduler),
        ("celery.beat.Scheduler", Scheduler),
    ],
)
def test_it_is_built_on_the_scheduler_that_the_settings_name(
    new_host: NewHost, chosen: object, base: type[Scheduler], tmp_path: Any
) -> None:
    app = Celery("app", set_as_current=False)
    app.conf.update(redlock_nodes=["redis://a"], redlock_beat_scheduler=chosen)
    built = RedlockScheduler(app, lazy=True)
    assert isinstance(built, base)
    assert isinstance(built, ClaimsTicks)
    assert not isinstance(built, ClaimsRedBeatTicks)


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
