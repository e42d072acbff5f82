"""Which reservations have no message: queued, or delivered and not acknowledged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from kombu import Connection

from celery_redlock import singleton_task
from celery_redlock.messages.reservation import Reservation
from celery_redlock.operate.orphans import orphans
from celery_redlock.operate.target import target_of_app
from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.task.typed_options import LifetimeName
from tests.support.fakes.operated import Operated

if TYPE_CHECKING:
    from typing_extensions import Self

_STEP = "\x06\x16"


class RedisBroker:
    """What kombu keeps in Redis: a list for each queue and priority, and what is unacknowledged.

    Attributes:
        lists: Messages of each list, as texts.
        unacked: Messages that were delivered.
        bound: Queues of each binding.
    """

    transport = SimpleNamespace(driver_type="redis")
    priority_steps = (0, 3)
    unacked_key = "unacked"

    def __init__(self) -> None:
        self.lists: dict[str, list[str]] = {}
        self.unacked: dict[str, str] = {}
        self.bound: dict[str, set[bytes]] = {}
        self.default_channel = self.client = self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def _q_for_pri(self, queue: str, step: int) -> str:
        return f"{queue}{_STEP}{step}" if step else queue

    def lrange(self, name: str, start: int, end: int) -> list[str]:
        return self.lists.get(name, [])[start : end + 1]

    def hscan_iter(self, name: str, count: int) -> Iterator[tuple[str, str]]:
        assert name == self.unacked_key
        yield from self.unacked.items()

    def scan_iter(self, pattern: str, count: int) -> Iterator[str]:
        assert pattern == "_kombu.binding.*"
        yield from self.bound

    def smembers(self, key: str) -> set[bytes]:
        return self.bound[key]


def message(key: str, owner: str) -> dict[str, Any]:
    return {"headers": Reservation(key, owner).header, "body": ""}


@pytest.fixture
def broker() -> RedisBroker:
    return RedisBroker()


@pytest.fixture
def app(three: Operated, broker: RedisBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    with Celery("bank", broker="memory://", set_as_current=False) as app:
        app.conf.update(redlock_nodes=three.urls)

        def body(a: str) -> None: ...

        lifetimes: dict[str, LifetimeName] = {
            "bank.report": "until_executed",
            "bank.both": "until_and_while_executing",
            "bank.ring": "until_expired",
        }
        for name, lifetime in lifetimes.items():
            singleton_task(
                app=app, shared=False, name=name, lock_key="{a}", lock_lifetime=lifetime
            )(body)
        monkeypatch.setattr(app, "connection_for_read", lambda: broker)
        yield app


@pytest.fixture
def redlock(three: Operated) -> TaskLock:
    return three.redlock()


Look = Callable[..., list[str]]


@pytest.fixture
def look(three: Operated, app: Celery) -> Look:
    """Return the keys of the orphans: `look(grace, sleep)`."""

    def look(grace: float = 0.0, sleep: Callable[[float], object] = three.sleep) -> list[str]:
        nodes = three.opened()
        return sorted(lock.key for lock in orphans(target_of_app(app), nodes, grace, sleep))

    return look


def test_a_reservation_is_an_orphan_without_a_message_only(
    redlock: TaskLock, broker: RedisBroker, look: Look
) -> None:
    places: Mapping[str, Callable[[str], None]] = {
        "queued": lambda text: broker.lists.__setitem__("celery", [text]),
        "urgent": lambda text: broker.lists.__setitem__(f"celery{_STEP}3", [text]),
        "elsewhere": lambda text: broker.lists.__setitem__("elsewhere", [text]),
        "delivered": lambda text: broker.unacked.__setitem__("tag", json.dumps([json.loads(text)])),
        "purged": lambda text: None,
    }
    broker.bound["_kombu.binding.x"] = {f"r{_STEP}{_STEP}elsewhere".encode()}
    for place, put in places.items():
        key = f"bank.report:{place}"
        put(json.dumps(message(key, redlock.reserve(key, 60).owner)))
    assert look() == ["bank.report:purged"]
    broker.lists.clear()
    assert look() == [f"bank.report:{key}" for key in ("elsewhere", "purged", "queued", "urgent")]


def test_only_reservations_of_the_app_s_messages_count(redlock: TaskLock, look: Look) -> None:
    redlock.reserve("bank.both:1%next", 60)
    redlock.reserve("bank.ring:1", 60)  # the period of a throttle
    redlock.reserve("other.task:1", 60)
    redlock.reserve("%beat:bank@0:e:s", 60)
    redlock.acquire("bank.report:held", 30)
    assert look() == ["bank.both:1%next"]


def test_a_message_of_another_owner_does_not_count(
    redlock: TaskLock, broker: RedisBroker, look: Look
) -> None:
    redlock.reserve("bank.report:1", 60)
    other = redlock.reserve("bank.report:2", 60).owner
    broker.lists["celery"] = [json.dumps(message("bank.report:1", other)), '{"headers": null}']
    assert look() == ["bank.report:1"]


def test_a_message_found_within_the_grace_clears_its_reservation(
    redlock: TaskLock, broker: RedisBroker, look: Look
) -> None:
    owner = redlock.reserve("bank.report:moving", 60).owner
    redlock.reserve("bank.report:purged", 60)
    slept: list[float] = []

    def arrive(seconds: float) -> None:
        slept.append(seconds)
        broker.lists["celery"] = [json.dumps(message("bank.report:moving", owner))]

    assert look(7.0, arrive) == ["bank.report:purged"]
    assert slept == [7.0]


def test_without_a_suspect_there_is_no_grace(redlock: TaskLock, look: Look) -> None:
    slept: list[float] = []
    assert look(7.0, slept.append) == []
    assert slept == []


def test_a_long_queue_is_read_to_its_end(
    redlock: TaskLock, broker: RedisBroker, look: Look
) -> None:
    owner = redlock.reserve("bank.report:last", 60).owner
    broker.lists["celery"] = ['{"headers": {}}'] * 1200 + [
        json.dumps(message("bank.report:last", owner))
    ]
    assert look() == []


def test_another_broker_shows_no_messages(
    app: Celery, redlock: TaskLock, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "connection_for_read", lambda: Connection("memory://"))
    with pytest.raises(ConfigurationError, match="the broker is memory: only with Redis"):
        look()
