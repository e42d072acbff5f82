"""Each trap of an app is found by its settings and tasks, and not beside it."""

from __future__ import annotations

import datetime as dt
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from celery import Celery
from celery.signals import import_modules
from kombu import Exchange, Queue
from kombu.common import Broadcast
from kombu.transport.virtual.exchange import TopicExchange

from celery_redlock import singleton_task
from celery_redlock.beat import RedlockScheduler
from celery_redlock.config.identity import identity_of
from celery_redlock.operate.doctor import diagnose
from celery_redlock.operate.doctor.app import app_findings
from celery_redlock.operate.doctor.traps import TRAPS
from celery_redlock.operate.node_set import NodeSet
from celery_redlock.operate.node_status import NodeStatus
from celery_redlock.operate.target import target_of_app
from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.redlock.inspection import State
from celery_redlock.redlock.lease import new_owner
from tests.support.fakes.operated import Operated

NewApp = Callable[..., Celery]
Found = tuple[str, str, str, str]


@pytest.fixture
def new_app(three: Operated, monkeypatch: pytest.MonkeyPatch) -> Iterator[NewApp]:
    """Make an app whose nodes are healthy; nothing connects to its broker."""
    apps: list[Celery] = []
    monkeypatch.setattr("celery_redlock.operate.doctor.app.worker_findings", lambda *_: ())

    def new(broker: str = "redis://127.0.0.1:1", **conf: Any) -> Celery:
        app = Celery("bank", broker=broker, set_as_current=False)
        app.conf.update(redlock_nodes=three.urls, **conf)
        apps.append(app)
        return app

    yield new
    for app in apps:
        app.close()


def plain(account_id: int) -> None: ...


def with_now(account_id: int, now: str) -> None: ...


def annotated(annotation: Any) -> Callable[..., None]:
    def body(account_id: int, at: Any) -> None: ...

    body.__annotations__["at"] = annotation
    return body


def add(app: Celery, body: Callable[..., None] = plain, **options: Any) -> None:
    singleton_task(**{"app": app, "shared": False, "name": "bank.t", **options})(body)


def found(app: Celery) -> list[Found]:
    return [
        (one.trap.code, one.severity.value, one.where, one.what)
        for one in diagnose(target_of_app(app))
    ]


def codes(app: Celery) -> list[str]:
    return [code for code, *_ in found(app)]


def test_a_healthy_app_has_no_finding(new_app: NewApp) -> None:
    app = new_app(beat_schedule=None)
    add(app, acks_late=True, reject_on_worker_lost=True, time_limit=60, lock_max_hold=60)
    assert found(app) == []


def test_locking_that_is_switched_off_is_a_warning(new_app: NewApp) -> None:
    assert found(new_app(redlock_enabled=False)) == [
        ("RL201", "warning", "redlock_enabled", "False")
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"lock_max_hold": 60, "time_limit": 60}, None),
        ({"lock_max_hold": 59}, None),
        ({"lock_max_hold": 59, "time_limit": 60}, "lock_max_hold = 59 s is shorter"),
        ({"lock_on_conflict": "wait", "lock_wait": 59, "time_limit": 60}, None),
        ({"lock_on_conflict": "wait", "lock_wait": 60}, None),
        (
            {"lock_on_conflict": "wait", "lock_wait": 60, "time_limit": 60},
            "lock_wait = 60 s is not shorter than its time limit, 60 s",
        ),
    ],
)
def test_hold_and_wait_fit_the_time_limit(
    new_app: NewApp, options: dict[str, Any], says: str | None
) -> None:
    app = new_app()
    add(app, **options)
    findings = found(app)
    assert [one[:3] for one in findings] == ([("RL202", "warning", "bank.t")] if says else [])
    assert all(str(says) in what for *_, what in findings)


def test_the_app_s_time_limit_counts_as_the_task_s(new_app: NewApp) -> None:
    app = new_app(task_time_limit=60)
    add(app, lock_max_hold=59)
    app.tasks["bank.t"].time_limit = None  # Celery 5.6 does not copy it
    assert codes(app) == ["RL202"]


def test_options_that_are_refused_are_an_error(new_app: NewApp) -> None:
    app = new_app(redlock_max_ttl=10.0)
    add(app, lock_ttl=30)
    [(code, severity, where, what)] = found(app)
    assert (code, severity, where) == ("RL202", "error", "bank.t")
    assert "'bank.t'" in what
    assert "lock_ttl = 30 is longer than redlock_max_ttl" in what


@pytest.mark.parametrize("shared", [False, True])
def test_a_task_that_is_refused_hides_no_finding(new_app: NewApp, *, shared: bool) -> None:
    app = new_app()
    for name, options in (
        ("bank.a", {"acks_late": True}),
        ("bank.b", {"lock_tll": 10}),
        ("bank.c", {"lock_on_conflict": "skip", "lock_wait": 5}),
        ("bank.d", {"acks_late": True}),
    ):
        where: dict[str, Any] = {} if shared else {"app": app, "shared": False}
        singleton_task(name=name, **where, **options)(plain)
    assert [(code, where) for code, _, where, _ in found(app)] == [
        ("RL202", "bank.b"),
        ("RL202", "bank.c"),
        ("RL205", "bank.a"),
        ("RL205", "bank.d"),
    ]
    # Only the doctor is lenient.
    with pytest.raises(ConfigurationError, match="lock_tll"):
        app.tasks["bank.b"].delay(1)


def test_a_module_that_fails_as_it_is_imported_is_an_error(new_app: NewApp) -> None:
    app = new_app()

    def fail(**_: Any) -> None:
        raise ConfigurationError("singleton_task got no function")

    import_modules.connect(fail, sender=app)
    assert found(app) == [("RL202", "error", "tasks", "singleton_task got no function")]


@pytest.mark.parametrize(
    ("latencies", "options", "expected"),
    [
        ((0.01, 0.03, 9.0), {"lock_ttl": 0.3}, []),
        ((0.01, 0.03001, None), {"lock_ttl": 0.3}, ["warning"]),
        ((0.01, 0.294, 9.0), {"lock_ttl": 0.3}, ["warning"]),
        ((0.01, 0.295, 9.0), {"lock_ttl": 0.3}, ["error"]),
        ((0.01, 0.31, 9.0), {"lock_ttl": 0.3, "lock_lifetime": "until_expired"}, []),
        ((0.01, None, None), {"lock_ttl": 0.01}, []),
    ],
)
def test_a_ttl_outlasts_ten_round_trips(
    new_app: NewApp, latencies: tuple[float | None, ...], options: dict[str, Any],
    expected: list[str],
) -> None:  # fmt: skip
    app = new_app()
    add(app, **options)
    target = target_of_app(app)
    statuses = [
        NodeStatus(name, State.VOTES, latency=each)
        for name, each in zip("abc", latencies, strict=True)
    ]
    with NodeSet(target.urls, 1.0) as nodes:
        findings = list(app_findings(target, nodes, statuses))
    assert [one.severity.value for one in findings] == expected
    assert all(one.trap.code == "RL207" and one.where == "bank.t" for one in findings)
    assert {one.what for one in findings} <= {
        "lock_ttl = 0.3 s, and a quorum answers in 30 ms",
        "lock_ttl = 0.3 s, and a quorum answers in 294 ms",
        "lock_ttl = 0.3 s, and a quorum answers in 295 ms",
    }


@pytest.mark.parametrize(
    ("body", "lock_key", "says"),
    [
        (plain, None, None),
        (with_now, None, "the argument 'now' is part of the key"),
        (with_now, ["account_id"], None),
        (with_now, ["account_id", "now"], "the argument 'now' is part of the key"),
        (with_now, "{account_id}", None),
        (with_now, "{account_id}/{now}", "the argument 'now' is part of the key"),
        # Which arguments a function uses is not known.
        (with_now, lambda account_id, now: now, None),
        (annotated(dt.datetime), None, "the argument 'at' (datetime) is part of the key"),
        pytest.param(
            annotated("lib.dt.datetime"), None,
            "the argument 'at' (datetime) is part of the key", id="as text",
        ),
        (annotated(dt.datetime), ["account_id"], None),
    ],
)  # fmt: skip
def test_an_argument_that_always_differs_is_not_part_of_a_key(
    new_app: NewApp, body: Callable[..., None], lock_key: Any, says: str | None
) -> None:
    app = new_app()
    add(app, body, lock_key=lock_key)
    assert found(app) == ([("RL203", "warning", "bank.t", says)] if says else [])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"acks_late": True, "time_limit": 60}, None),
        ({"acks_late": True, "time_limit": 61}, "its time limit is 61 s, visibility_timeout 60 s"),
        ({"time_limit": 61}, None),
        ({"acks_late": True}, None),
        ({"default_retry_delay": 60}, None),
        ({"default_retry_delay": None}, None),
        (
            {"default_retry_delay": 61},
            "its retries wait for up to 61 s, visibility_timeout is 60 s",
        ),
        (
            {"autoretry_for": (OSError,), "retry_backoff": True},
            "its retries wait for up to 600 s, visibility_timeout is 60 s",
        ),
        ({"autoretry_for": (OSError,), "retry_backoff": True, "retry_backoff_max": 60}, None),
    ],
)
def test_a_task_does_not_outlast_the_visibility_timeout(
    new_app: NewApp, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], says: str | None
) -> None:
    options = {"default_retry_delay": 10, "reject_on_worker_lost": True} | options
    app = new_app(broker_transport_options={"visibility_timeout": 60})
    add(app, **options)
    for driver in ("redis", "sqs", "amqp"):
        monkeypatch.setattr(
            "celery_redlock.operate.doctor.app._driver_type", lambda _, is_=driver: is_
        )
        expected = [("RL204", "warning", "bank.t", says)] if says and driver != "amqp" else []
        assert found(app) == expected


def test_a_beat_entry_counts_down_within_the_visibility_timeout(
    new_app: NewApp,
) -> None:
    def entry(countdown: float | None, task: str = "bank.t") -> dict[str, Any]:
        return {"task": task, "schedule": 1, "options": {"countdown": countdown}}

    app = new_app(
        broker_transport_options={"visibility_timeout": 600},
        beat_scheduler="redlock",
        beat_schedule={
            "without": {"task": "bank.t", "schedule": 1},
            "none": entry(None),
            "shorter": entry(600),
            "longer": entry(601),
            "other": entry(601, "no.lock"),
            "own class": object(),
        },
    )
    add(app)
    assert found(app) == [
        (
            "RL204",
            "warning",
            "beat entry longer",
            "its countdown is 601 s, visibility_timeout 600 s",
        )
    ]


def test_the_visibility_timeout_is_an_hour_by_default(new_app: NewApp) -> None:
    late: dict[str, Any] = {"acks_late": True, "reject_on_worker_lost": True}
    shorter, longer = new_app(), new_app()
    add(shorter, time_limit=3600, **late)
    add(longer, time_limit=3601, **late)
    assert (codes(shorter), codes(longer)) == ([], ["RL204"])


@pytest.mark.parametrize(
    ("conf", "options", "is_found"),
    [
        ({}, {"acks_late": True}, True),
        ({"task_acks_late": True}, {}, True),
        ({}, {"acks_late": True, "reject_on_worker_lost": True}, False),
        ({"task_reject_on_worker_lost": True}, {"acks_late": True}, False),
        (
            {"task_reject_on_worker_lost": True},
            {"acks_late": True, "reject_on_worker_lost": False},
            True,
        ),
        ({}, {}, False),
    ],
)
def test_a_late_acknowledgement_needs_reject_on_worker_lost(
    new_app: NewApp, conf: dict[str, Any], options: dict[str, Any], is_found: bool
) -> None:
    app = new_app(**conf)
    add(app, **options)
    says = "acks_late is set, reject_on_worker_lost is not"
    assert found(app) == ([("RL205", "warning", "bank.t", says)] if is_found else [])


@pytest.mark.parametrize(
    ("kind", "exchange", "conf", "expected"),
    [
        ("quorum", "topic", {}, []),
        ("classic", "direct", {"worker_detect_quorum_queues": False}, []),
        ("quorum", "direct", {}, [
            ("RL206", "warning", "q",
             "queue q is bound to a direct exchange: countdowns are not delayed"),
        ]),
        (
            "quorum",
            "topic",
            {"worker_detect_quorum_queues": False},
            [("RL206", "error", "worker_detect_quorum_queues",
              "queue q is a quorum queue, worker_detect_quorum_queues is False")],
        ),
    ],
)  # fmt: skip
def test_settings_fit_a_quorum_queue(
    new_app: NewApp, kind: str, exchange: str, conf: dict[str, Any], expected: list[Any]
) -> None:
    queue = Queue(
        "q", Exchange("q", type=exchange), routing_key="q", queue_arguments={"x-queue-type": kind}
    )
    assert found(new_app("amqp://127.0.0.1:1", task_queues=[queue], **conf)) == expected


WORK = Exchange("work", type="topic")
DECLARED = [
    Broadcast("all"),
    Queue("orders", WORK, routing_key="orders"),
    Queue("audit", WORK, routing_key="orders.#"),
    Queue("log", WORK, routing_key="*"),
    Queue("rest", WORK, routing_key="#"),
    *(Queue(name, Exchange("q", type="direct"), routing_key="q") for name in ("q", "copy")),
]
# To an older kombu, whose own brokers deliver by this, a star is any number of words.
OF_TWO_WORDS = "log, rest" if re.fullmatch(TopicExchange.wildcards["*"], "a.b") else None


@pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")  # the attributes
@pytest.mark.parametrize(
    ("options", "route", "copied_to"),
    [
        ({}, {"queue": "all"}, "all"),
        ({"queue": "all"}, None, "all"),
        ({"exchange": "all", "routing_key": "any"}, None, "all"),
        ({}, {"queue": "orders"}, "log, orders, rest"),
        ({"exchange": "work", "routing_key": "orders"}, None, "log, orders, rest"),
        ({}, {"exchange": "work", "routing_key": "orders"}, "log, orders, rest"),
        ({}, {"exchange": "work", "routing_key": "payments.new"}, OF_TWO_WORDS),
        ({}, {"exchange": "work", "routing_key": "payments"}, "log, rest"),
        ({}, {"exchange": "work"}, None),
        ({}, {"routing_key": "orders"}, None),
        ({}, {"queue": "q"}, None),
        ({}, None, None),
    ],
)
def test_a_task_that_is_sent_to_several_queues_is_named(
    new_app: NewApp,
    options: dict[str, Any],
    route: dict[str, str] | None,
    copied_to: str | None,
) -> None:
    app = new_app(task_queues=DECLARED, task_routes={"bank.t": route} if route else None)
    add(app, **options)
    exchange = "all" if copied_to == "all" else "work"
    what = f"the exchange {exchange} delivers its messages to every queue of: {copied_to}"
    assert found(app) == ([("RL209", "warning", "bank.t", what)] if copied_to else [])


def test_a_router_that_needs_a_real_call_is_left_alone(new_app: NewApp) -> None:
    def route(name: str, args: Any, kwargs: Any, options: Any, task: Any = None) -> Any:
        return {"queue": args[0]}

    def route_without_arguments(
        name: str, args: Any, kwargs: Any, options: Any, task: Any = None
    ) -> Any:
        return {"queue": "all"} if (args, kwargs, task.name) == ((), {}, name) else None

    for router, expected in ((route, []), (route_without_arguments, ["RL209"])):
        app = new_app(task_queues=DECLARED, task_routes=[router])
        add(app)
        assert codes(app) == expected


SCHEDULE = {"e": {"task": "bank.t", "schedule": 1}}


@pytest.mark.parametrize(
    ("conf", "is_found"),
    [
        ({"beat_schedule": SCHEDULE}, True),
        ({}, False),
        ({"beat_schedule": SCHEDULE, "beat_scheduler": "redlock"}, False),
        (
            {"beat_schedule": SCHEDULE, "beat_scheduler": "celery_redlock.beat:RedlockScheduler"},
            False,
        ),
        ({"beat_schedule": SCHEDULE, "beat_scheduler": RedlockScheduler}, False),
    ],
)
def test_a_schedule_needs_the_scheduler_of_this_package(
    new_app: NewApp, conf: dict[str, Any], is_found: bool
) -> None:
    says = "beat_scheduler = 'celery.beat:PersistentScheduler', and no claim of a tick is on a node"
    expected = [("RL301", "warning", "beat_scheduler", says)] if is_found else []
    assert found(new_app(**conf)) == expected


def test_a_claim_on_the_nodes_tells_that_beat_has_the_scheduler(
    new_app: NewApp, three: Operated
) -> None:
    app = new_app(beat_schedule=SCHEDULE)
    three[1].take(new_owner("beat", is_reservation=True), key="%beat:other@0:e:s")
    assert codes(app) == ["RL301"]
    three[1].take(new_owner("beat", is_reservation=True), key=f"%beat:{identity_of(app)}:e:s")
    assert codes(app) == []


def test_missed_ticks_are_found_by_their_notes(new_app: NewApp, three: Operated) -> None:
    app = new_app(beat_schedule=SCHEDULE, beat_scheduler="redlock")
    redlock, beat = three.redlock(), f"%beat:{identity_of(app)}"
    redlock.reserve("%beat:other@0:night:2026-01-01T03:00:00Z:missed", 9, label="id")
    redlock.reserve(f"{beat}:night:2026-01-01T04:00:00Z", 120, label="id")
    assert codes(app) == []
    for slot in ("2026-01-01T03:00:00Z", "2026-01-01T02:00:00Z"):
        redlock.reserve(f"{beat}:night:{slot}:missed", 9, label="no quorum")
    redlock.reserve(f"{beat}:by%20day:2026-01-01T13:00:00Z:missed", 9, label="no beat")
    assert found(app) == [
        ("RL302", "warning", "beat entry by day",
         "2026-01-01T13:00:00Z: no beat; the last of 1 that were noted"),
        ("RL302", "warning", "beat entry night",
         "2026-01-01T03:00:00Z: no quorum; the last of 2 that were noted"),
    ]  # fmt: skip
    keys = [one.key for one in diagnose(target_of_app(app))]
    assert keys[1] == f"{beat}:night:2026-01-01T03:00:00Z:missed"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("on_unavailable", "wiat", "redlock_beat_on_unavailable = 'wiat' is unknown; "),
        ("misfire_grace_time", "60", "redlock_beat_misfire_grace_time = '60' is of type str"),
        ("scheduler", "no.such", "redlock_beat_scheduler must be a scheduler class, got 'no.such'"),
        ("scheduler", f"{__name__}:new_app", "redlock_beat_scheduler must be a scheduler class"),
    ],
)
def test_settings_with_which_beat_does_not_start_are_an_error(
    new_app: NewApp, name: str, value: str, says: str
) -> None:
    [(code, severity, where, what)] = found(new_app(**{f"redlock_beat_{name}": value}))
    assert (code, severity, where) == ("RL303", "error", "beat")
    assert what.startswith(says)


def test_beat_s_notes_that_no_quorum_shows_are_unknown(new_app: NewApp, three: Operated) -> None:
    app = new_app(beat_schedule=SCHEDULE)
    key = f"%beat:{identity_of(app)}:night:2026-01-01T03:00:00Z:missed"
    three.redlock().reserve(key, 9, label="no quorum")
    three[0].refused["SCAN"] = "NOPERM no permissions"
    assert [(code, severity) for code, severity, *_ in found(app)] == [("RL302", "warning")]
    three[1].refused["SCAN"] = three[2].refused["MGET"] = "NOPERM no permissions"
    three[2].refused["GETRANGE"] = "NOPERM no permissions"
    said = found(app)
    assert [(code, severity, where) for code, severity, where, _ in said] == [
        ("RL301", "unknown", "beat_scheduler"),
        ("RL302", "unknown", "beat"),
    ]
    why = "could not be read: 0 of 3 nodes answered, 2 are needed (127.0.0.1:7000: NOPERM"
    assert all(why in what for *_, what in said)


def test_the_workers_of_an_app_that_locks_are_asked(
    new_app: NewApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    apps = new_app(), new_app(redlock_enabled=False)

    def ask(*given: Any) -> tuple[()]:
        asked.append(given)
        return ()

    monkeypatch.setattr("celery_redlock.operate.doctor.app.worker_findings", ask)
    for app in apps:
        add(app)
        diagnose(target_of_app(app))
    [(target, nodes, statuses, tasks)] = asked
    assert (target.app, len(nodes), len(statuses), tasks) == (apps[0], 3, 3, ["bank.t"])


def test_every_trap_has_a_test_here() -> None:
    texts = [file.read_text(encoding="utf-8") for file in Path(__file__).parent.glob("test_*.py")]
    assert [trap.code for trap in TRAPS if f'"{trap.code}"' not in "".join(texts)] == []


@pytest.mark.parametrize("module", ["tenant_schemas_celery", "django_tenants"])
def test_tenants_share_the_keys_that_name_no_schema(
    new_app: NewApp, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = new_app()
    add(app, plain, name="bank.a")
    add(app, plain, name="bank.b", lock_key=lambda *args: ["schema", args])
    add(app, plain, name="bank.c")
    assert found(app) == []
    monkeypatch.setitem(sys.modules, module, ModuleType(module))
    what = f"{module} is loaded, and no schema is in the keys of bank.a, bank.c"
    assert found(app) == [("RL208", "warning", "lock_key", what)]
    app = new_app(redlock_key=lambda *args: ["schema", args])
    add(app, plain)
    assert found(app) == []
