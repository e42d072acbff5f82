"""Which reservations have no message: in a queue, or delivered and not acknowledged."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import pytest
from celery import Celery
from kombu import Connection

from celery_redlock import singleton_task
from celery_redlock.messages.reservation import Reservation
from celery_redlock.operate import brokers
from celery_redlock.operate.brokers import MessagesUnknown
from celery_redlock.operate.locks import Lock
from celery_redlock.operate.orphans import orphans
from celery_redlock.operate.target import target_of_app
from celery_redlock.redlock.task_lock import TaskLock
from tests.support.fakes.messages import Broker, RabbitMQ, RedisBroker, Workers
from tests.support.fakes.operated import Operated

TASKS: dict[str, dict[str, Any]] = {
    "bank.report": {"lock_lifetime": "until_executed"},
    "bank.both": {"lock_lifetime": "until_and_while_executing"},
    "bank.ring": {"lock_lifetime": "until_expired"},
    "bank.waits": {"lock_lifetime": "until_and_while_executing", "lock_on_conflict": "wait"},
    "bank.waits_late": {
        "lock_lifetime": "until_and_while_executing", "lock_on_conflict": "wait", "acks_late": True,
    },
}  # fmt: skip


def message(key: str, owner: str) -> dict[str, Any]:
    return {"headers": Reservation(key, owner).header, "body": ""}


@pytest.fixture
def broker() -> RedisBroker:
    return RedisBroker()


@pytest.fixture
def rabbitmq() -> RabbitMQ:
    return RabbitMQ()


@pytest.fixture
def workers() -> Workers:
    return Workers()


@pytest.fixture
def app(three: Operated, workers: Workers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    with Celery("bank", broker="memory://", set_as_current=False) as app:
        app.conf.update(redlock_nodes=three.urls, task_default_queue="work")

        def body(a: str) -> None: ...

        for name, options in TASKS.items():
            singleton_task(app=app, shared=False, name=name, lock_key="{a}", **options)(body)
        monkeypatch.setattr(app.control, "inspect", workers.inspect)
        yield app


@pytest.fixture
def redlock(three: Operated) -> TaskLock:
    return three.redlock()


Look = Callable[..., list[str]]
Find = Callable[..., tuple[list[Lock], list[str]]]


@pytest.fixture
def find(
    three: Operated, app: Celery, broker: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> Find:
    """Return the orphans: `find(grace, sleep, queues, read=…, write=…)`."""

    def find(
        grace: float = 0.0,
        sleep: Callable[[float], object] = three.sleep,
        queues: Collection[str] = (),
        *,
        read: Broker = broker,
        write: Broker | None = None,
    ) -> tuple[list[Lock], list[str]]:
        monkeypatch.setattr(app, "connection_for_read", lambda: read)
        monkeypatch.setattr(app, "connection_for_write", lambda: write or read)
        return orphans(target_of_app(app), three.opened(), grace, sleep, queues)

    return find


@pytest.fixture
def look(find: Find) -> Look:
    """Return the keys of the orphans: the arguments are those of `find`."""
    return lambda *args, **options: sorted(lock.key for lock in find(*args, **options)[0])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"global_keyprefix": "bank[1]:"},
        {"sep": ":", "priority_steps": (0, 5)},
        {"global_keyprefix": "bank:", "unacked_key": "delivered", "sep": "|"},
    ],
    ids=str,
)
def test_a_reservation_is_an_orphan_without_a_message_only(
    redlock: TaskLock, broker: RedisBroker, look: Look, options: Mapping[str, Any]
) -> None:
    vars(broker).update(options)
    start, urgent = broker.global_keyprefix, broker._q_for_pri("work", broker.priority_steps[1])
    places: Mapping[str, Callable[[Mapping[str, Any]], None]] = {
        "queued": lambda text: broker.queue(f"{start}work", text),
        "urgent": lambda text: broker.queue(start + urgent, text),
        "undeclared": lambda text: broker.queue(f"{start}elsewhere", text),
        "delivered": lambda text: broker.deliver(start + broker.unacked_key, text),
        "purged": lambda text: None,
    }
    for place, put in places.items():
        key = f"bank.report:{place}"
        put(message(key, redlock.reserve(key, 60).owner))
    broker.lists["log"] = ["not a message", "[1]", "{}"]
    broker.hashes[f"{start}log of {broker.unacked_key}"] = {"field": "1"}
    assert look() == ["bank.report:purged"]
    broker.lists.clear()
    assert look() == [f"bank.report:{key}" for key in ("purged", "queued", "undeclared", "urgent")]


def test_another_app_s_messages_in_the_database_count_as_well(
    redlock: TaskLock, broker: RedisBroker, look: Look
) -> None:
    # With the same nodes, it has the same locks.
    broker.global_keyprefix = "staging:"
    owners = {key: redlock.reserve(f"bank.report:{key}", 60).owner for key in ("queued", "had")}
    broker.queue("live:work", message("bank.report:queued", owners["queued"]))
    broker.deliver("live:unacked", message("bank.report:had", owners["had"]))
    assert look() == []
    broker.denied |= {"live:work"}
    assert look() == ["bank.report:queued"]
    broker.denied |= {"staging:work"}
    with pytest.raises(MessagesUnknown, match=r"can't be asked \(PermissionError\)"):
        look()


def test_only_reservations_of_the_app_s_messages_count(redlock: TaskLock, look: Look) -> None:
    redlock.reserve("bank.both:1%next", 60)
    redlock.reserve("bank.ring:1", 60, is_period=True)
    redlock.reserve("bank.report:1", 60, is_period=True)  # of when it was a throttle
    redlock.reserve("other.task:1", 60)
    redlock.reserve("%beat:bank@0:e:s", 60)
    redlock.acquire("bank.report:held", 30)
    redlock.reserve("bank.ring:2", 60)  # of before it was a throttle
    redlock.reserve("bank.ring:3%next", 60)
    assert look() == ["bank.both:1%next", "bank.ring:2", "bank.ring:3%next"]


def test_a_slot_whose_acknowledged_message_may_wait_in_a_worker_is_kept(
    redlock: TaskLock, look: Look
) -> None:
    for key in ("waits:1%next", "waits:2", "waits_late:1%next"):
        redlock.reserve(f"bank.{key}", 60)
    assert look() == ["bank.waits:2", "bank.waits_late:1%next"]


def test_a_message_of_another_owner_does_not_count(
    redlock: TaskLock, broker: RedisBroker, look: Look
) -> None:
    redlock.reserve("bank.report:1", 60)
    other = redlock.reserve("bank.report:2", 60).owner
    broker.queue("work", message("bank.report:1", other), {"headers": None})
    assert look() == ["bank.report:1"]


@pytest.mark.parametrize("question", ["scheduled", "reserved", "active"])
def test_what_a_worker_has_is_no_orphan(
    redlock: TaskLock, workers: Workers, look: Look, question: str
) -> None:
    for key in ("kept", "purged"):
        redlock.reserve(f"bank.report:{key}", 60, label=f"id of {key}")
    workers.consumed["w@1"] = ["work"]
    has: dict[str, Any] = {"id": "id of kept"}
    workers.answers[question] = {
        "w@1": [{"eta": "soon", "request": has}] if question == "scheduled" else [has]
    }
    assert look() == ["bank.report:purged"]
    assert workers.asked == ["active_queues", "scheduled", "reserved", "active"]


def test_a_worker_that_does_not_say_what_it_has_leaves_all_unknown(
    redlock: TaskLock, workers: Workers, look: Look
) -> None:
    redlock.reserve("bank.report:1", 60)
    workers.consumed.update({"w@1": ["work"], "w@2": ["work"]})
    workers.silent.add("w@2")
    with pytest.raises(MessagesUnknown, match=r"left: worker w@2 does not answer.*Nothing was rel"):
        look()
    workers.silent.clear()
    workers.answers["active"] = {"w@1": {"error": "no"}}
    with pytest.raises(MessagesUnknown, match="worker w@1 answered"):
        look()


def test_a_message_found_within_the_grace_clears_its_reservation(
    redlock: TaskLock, broker: RedisBroker, look: Look
) -> None:
    owner = redlock.reserve("bank.report:moving", 60).owner
    redlock.reserve("bank.report:purged", 60)
    slept: list[float] = []

    def arrive(seconds: float) -> None:
        slept.append(seconds)
        broker.queue("work", message("bank.report:moving", owner))

    assert look(7.0, arrive) == ["bank.report:purged"]
    assert slept == [7.0]


def test_without_a_suspect_there_is_no_grace(
    redlock: TaskLock, broker: RedisBroker, workers: Workers, look: Look
) -> None:
    slept: list[float] = []
    assert look(7.0, slept.append) == []
    assert (slept, workers.asked) == ([], [])
    broker.queue("work", message("bank.report:1", redlock.reserve("bank.report:1", 60).owner))
    assert look(7.0, slept.append) == []
    assert slept == []


def test_a_long_queue_is_read_to_its_end(
    redlock: TaskLock, broker: RedisBroker, look: Look
) -> None:
    owner = redlock.reserve("bank.report:last", 60).owner
    broker.queue("work", *[{"headers": {}}] * 1200, message("bank.report:last", owner))
    assert look() == []


@pytest.mark.parametrize("put", ["queue", "deliver"])
def test_more_messages_than_are_read_leave_all_unknown(
    redlock: TaskLock, broker: RedisBroker, look: Look, put: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokers, "MOST_MESSAGES", 4)
    redlock.reserve("bank.report:1", 60)
    broker.queue("elsewhere", *[{"headers": {}}] * 4)
    broker.lists["log"] = ["more than 4 of something else"] * 5
    assert look() == ["bank.report:1"]
    getattr(broker, put)({"queue": "other", "deliver": "unacked"}[put], {"headers": {}})
    with pytest.raises(MessagesUnknown, match="more than 4, too many to read"):
        look()


@pytest.mark.parametrize("count", ["llen", "hlen"])
def test_where_kombu_finds_more_all_is_unknown(
    redlock: TaskLock,
    broker: RedisBroker,
    look: Look,
    count: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    redlock.reserve("bank.report:1", 60)
    monkeypatch.setattr(broker, count, lambda name: 1)
    with pytest.raises(MessagesUnknown, match="kombu finds some"):
        look()


def test_messages_of_both_brokers_count(redlock: TaskLock, broker: RedisBroker, look: Look) -> None:
    other = RedisBroker("redis://other")
    for number, one in enumerate((broker, other)):
        key = f"bank.report:{number}"
        one.queue("work", message(key, redlock.reserve(key, 60).owner))
    assert look(write=other) == []
    assert look() == ["bank.report:1"]


def test_with_redis_nothing_is_unseen(redlock: TaskLock, find: Find) -> None:
    redlock.reserve("bank.report:1", 60)
    assert find()[1] == []


@pytest.mark.parametrize(
    ("set_up", "says"),
    [
        ({"ack_emulation": False}, "keeps none that was delivered"),
        ({"alt": ["redis://", "redis://other"]}, "there are several brokers"),
        ({"is_up": False}, r"can't be asked \(ConnectionRefusedError\)"),
    ],
    ids=str,
)
def test_what_hides_messages_leaves_all_unknown(
    redlock: TaskLock, broker: RedisBroker, look: Look, set_up: dict[str, Any], says: str
) -> None:
    redlock.reserve("bank.report:1", 60)
    vars(broker).update(set_up)
    with pytest.raises(MessagesUnknown, match=says):
        look()


def test_the_servers_of_sentinel_are_one_broker(
    redlock: TaskLock, broker: RedisBroker, look: Look
) -> None:
    redlock.reserve("bank.report:1", 60)
    broker.alt = ["sentinel://a", "sentinel://b"]
    assert look() == ["bank.report:1"]


def test_another_broker_shows_no_messages(look: Look) -> None:
    with pytest.raises(MessagesUnknown, match="the broker is memory, not Redis or RabbitMQ"):
        look(read=Connection("memory://"))


# ---- RabbitMQ


def test_with_empty_queues_all_are_orphans_but_what_workers_have(
    redlock: TaskLock, rabbitmq: RabbitMQ, workers: Workers, find: Find
) -> None:
    for key in ("kept", "purged"):
        redlock.reserve(f"bank.report:{key}", 60, label=f"id of {key}")
    rabbitmq.queues.update({"work": (0, 2), "elsewhere": (0, 1)})
    workers.consumed.update({"w@1": ["work"], "w@2": ["work", "elsewhere"]})
    workers.answers["reserved"] = {"w@2": [{"id": "id of kept"}]}
    found = find(read=rabbitmq, queues=["more"])
    assert [lock.key for lock in found[0]] == ["bank.report:purged"]
    [unseen] = found[1]
    assert unseen.startswith("the messages of a worker that is shutting down, and those in queues")
    assert unseen.endswith("queues other than elsewhere, more, work")


@pytest.mark.parametrize("queue", ["work", "elsewhere", "named", "celery_delayed_0",
                                   "celery_delayed_27"])  # fmt: skip
def test_a_message_in_any_queue_leaves_all_unknown(
    redlock: TaskLock, rabbitmq: RabbitMQ, workers: Workers, look: Look, queue: str
) -> None:
    redlock.reserve("bank.report:1", 60)
    workers.consumed["w@1"] = ["elsewhere"]
    rabbitmq.queues[queue] = (3, 0)
    with pytest.raises(MessagesUnknown, match=f"not show the 3 messages in queue {queue}"):
        look(read=rabbitmq, queues=["named"])


def test_a_consumer_that_tells_nothing_leaves_all_unknown(
    redlock: TaskLock, rabbitmq: RabbitMQ, workers: Workers, look: Look
) -> None:
    redlock.reserve("bank.report:1", 60)
    rabbitmq.queues["work"] = (0, 2)
    workers.consumed.update({"w@1": ["work"], "w@2": ["elsewhere"]})
    with pytest.raises(MessagesUnknown, match="work has 2 consumers, of which 1 tell"):
        look(read=rabbitmq)
    workers.consumed["w@2"] = ["work"]
    assert look(read=rabbitmq) == ["bank.report:1"]


def test_what_may_wait_for_a_rate_limit_is_kept(
    redlock: TaskLock, rabbitmq: RabbitMQ, broker: RedisBroker, workers: Workers, find: Find
) -> None:
    redlock.reserve("bank.report:1", 60)
    redlock.reserve("bank.both:1%next", 60)
    rabbitmq.queues["work"] = (0, 1)
    workers.consumed["w@1"] = ["work"]
    workers.answers["registered"] = {
        "w@1": ["bank.both", "bank.report [rate_limit=1/m]", "bank.waits [rate_limit=1/m]"]
    }
    found = find(read=rabbitmq)
    assert [lock.key for lock in found[0]] == ["bank.both:1%next"]
    assert found[1][1:] == [
        "those of bank.report that wait in a worker for its rate limit: its reservations are kept"
    ]
    assert len(find(read=broker)[0]) == 2  # which keeps what was delivered
