"""Attempts to acquire a lock: what they supersede, how long they wait, and what they leave."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded

from celery_redlock import LockHeld, QuorumUnavailable, signals
from celery_redlock.config import app_lock
from celery_redlock.execution.attempt import acquire, discard_grant, release
from celery_redlock.execution.message import Message
from celery_redlock.execution.run import Run
from celery_redlock.execution.running import current
from celery_redlock.messages.headers import COPY_HEADER, PUBLICATION_HEADER
from celery_redlock.messages.headers import RESERVATION_HEADER as HEADER
from celery_redlock.pools import pool_process
from celery_redlock.redlock import Lease
from celery_redlock.redlock.errors import AlreadyDone
from celery_redlock.redlock.lease import new_owner, publication_of, task_of
from tests.support.fakes.forged import HOLDER, WAITING, NewTask, message_of
from tests.support.fakes.one_node import OneNode

NONCE = "0123456789abcdef"
OWN = new_owner("task-1", publication=NONCE)
OWN_RESERVATION = new_owner("task-1", publication=NONCE, is_reservation=True)
MARK = "task-1/0/" + NONCE
MARK_OF_RETRY = "task-1/1/" + NONCE
NewMessage = Callable[..., Message]


@pytest.fixture
def new_message(new_task: NewTask) -> NewMessage:
    """Make a message: `new_message(options, headers, **request)`."""

    def new(
        options: dict[str, Any] | None = None,
        headers: dict[str, Any] | None = None,
        **request: Any,
    ) -> Message:
        headers = {PUBLICATION_HEADER: NONCE, **(headers or {})}
        return message_of(new_task(**(options or {})), headers=headers, **request)

    return new


def waited(node: OneNode, message: Message) -> float:
    """Have an attempt fail, and return for how long it has waited."""
    began = node.clock.now()
    with pytest.raises(LockHeld):
        acquire(message)
    return node.clock.now() - began


# --- what it asks for -----------------------------------------------------------------------------


def test_it_asks_for_the_lock_in_the_name_of_its_message(
    new_message: NewMessage, node: OneNode
) -> None:
    lease = acquire(new_message({"lock_ttl": 7}))
    assert task_of(lease.owner) == "task-1"
    assert publication_of(lease.owner) == NONCE
    assert lease.ttl_ms == 7000


def test_a_reserved_message_asks_once(
    new_message: NewMessage, node: OneNode, announced: list[Any]
) -> None:
    node.held["t"] = WAITING, 1e9
    acquire(new_message({"lock_lifetime": "until_executed"}, {HEADER: ["t", WAITING]}))
    assert len(announced) == 1


@pytest.fixture
def announced(node: OneNode, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float, str]]:
    """Key, ttl and owner of each request that the main process was told of in advance."""
    told: list[tuple[str, float, str]] = []

    def announcer(key: str, ttl: float) -> Callable[[str], None]:
        return lambda owner: told.append((key, ttl, owner))

    monkeypatch.setattr(pool_process, "_client", client_of(node, announcer))
    return told


def client_of(node: OneNode, announcer: Callable[..., Callable[[str], None]]) -> Any:
    """Return a keeper client of which an attempt needs the announcer."""
    return SimpleNamespace(
        redlock=node, announcer=announcer, is_shutting_down=bool, announce_wait=bool,
        is_wait_revoked=bool,
    )  # fmt: skip


def test_the_main_process_knows_each_request_before_the_nodes(
    new_message: NewMessage, node: OneNode, announced: list[tuple[str, float, str]]
) -> None:
    lease = acquire(new_message({"lock_ttl": 7}))
    assert announced == [("t", 7.0, lease.owner)]


def test_the_keeper_of_another_apps_lock_is_told_nothing(
    new_message: NewMessage, announced: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_process._client, "redlock", OneNode())
    acquire(new_message())
    assert announced == []


# --- what an attempt supersedes -------------------------------------------------------------------


def test_a_lease_supersedes_the_messages_reservation(
    new_message: NewMessage, node: OneNode
) -> None:
    node.held["t"] = WAITING, 1e9
    message = new_message({"lock_lifetime": "until_executed"}, {HEADER: ["t", WAITING]})
    lease = acquire(message)
    assert lease.took_over
    assert node.owner_of("t") == lease.owner == message.owner


def test_a_reservation_of_another_key_supersedes_nothing(
    new_message: NewMessage, node: OneNode
) -> None:
    node.held["t"] = WAITING, 1e9
    message = new_message({"lock_lifetime": "until_executed"}, {HEADER: ["t:7", WAITING]})
    with pytest.raises(LockHeld):
        acquire(message)


def test_an_earlier_attempt_to_publish_is_superseded(
    new_message: NewMessage, node: OneNode
) -> None:
    node.held["t"] = OWN_RESERVATION, 1e9
    lease = acquire(new_message({"lock_lifetime": "until_executed"}))
    assert node.owner_of("t") == lease.owner


def test_an_unreserved_message_yields_to_a_reserved_one(
    new_message: NewMessage, node: OneNode
) -> None:
    node.held["t"] = WAITING, 1e9
    with pytest.raises(LockHeld):
        acquire(new_message({"lock_lifetime": "until_executed"}))


def test_a_reserved_message_runs_though_a_later_one_reserved(
    new_message: NewMessage, node: OneNode
) -> None:
    """Its own reservation expired in the queue; yielding, no message of the queue would run."""
    node.held["t"] = WAITING, 1e9
    expired = {HEADER: ["t", OWN_RESERVATION]}
    lease = acquire(new_message({"lock_lifetime": "until_executed"}, expired))
    assert node.owner_of("t") == lease.owner


def test_a_reserved_message_does_not_supersede_a_running_one(
    new_message: NewMessage, node: OneNode
) -> None:
    node.held["t"] = HOLDER, 1e9
    expired = {HEADER: ["t", OWN_RESERVATION]}
    with pytest.raises(LockHeld):
        acquire(new_message({"lock_lifetime": "until_executed"}, expired))
    assert node.owner_of("t") == HOLDER


@pytest.mark.parametrize(
    ("request_", "reserved", "looks_first"),
    [({}, "t", False), ({"retries": 1}, "t", True), ({"retries": 1}, "t:7", False)],
)
def test_only_a_retry_with_the_lock_looks_first_whether_it_has_it_yet(
    new_message: NewMessage,
    node: OneNode,
    monkeypatch: pytest.MonkeyPatch,
    request_: dict[str, Any],
    reserved: str,
    looks_first: bool,
) -> None:
    asked: list[bool] = []
    ask = node.acquire_for_task

    def note(*args: Any, is_successor: bool = False, **how: Any) -> Lease:
        asked.append(is_successor)
        return ask(*args, **how)

    monkeypatch.setattr(node, "acquire_for_task", note)
    options = {"lock_lifetime": "until_executed"}
    acquire(new_message(options, {HEADER: [reserved, OWN_RESERVATION]}, **request_))
    assert asked == [looks_first]


# --- how long it waits ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "seconds"),
    [
        ({"retries": 1}, 1.0),
        ({"replaced_task_nesting": 1}, 1.0),
        ({"redelivered": True}, 1.0),
        # A parked copy, and a first delivery: nothing suggests that the holder is about to end.
        ({"headers": {COPY_HEADER: True}}, 0.0),
        ({}, 0.0),
    ],
    ids=str,
)
def test_a_message_waits_for_its_own_earlier_run_for_a_second(
    new_message: NewMessage, node: OneNode, request_: dict[str, Any], seconds: float
) -> None:
    node.held["t"] = OWN, 1e9
    assert waited(node, new_message({"lock_on_conflict": "wait"}, **request_)) == seconds


def test_a_retry_acquires_the_lock_that_its_run_releases(
    new_message: NewMessage, node: OneNode
) -> None:
    node.held["t"] = OWN, node.clock.now() + 0.5
    lease = acquire(new_message(retries=1))
    assert node.owner_of("t") == lease.owner


@pytest.mark.parametrize(
    ("options", "is_eager", "seconds"),
    [
        ({}, False, 0.0),
        ({"lock_on_conflict": "wait", "lock_wait": 5}, False, 5.0),
        ({"lock_on_conflict": "wait", "lock_wait": 5}, True, 5.0),
        ({"lock_on_conflict": "reschedule"}, False, 0.0),
        ({"lock_on_conflict": "coalesce"}, False, 0.0),
        # It has no queue to go back to.
        ({"lock_on_conflict": "reschedule", "lock_ttl": 7}, True, 7.0),
        ({"lock_on_conflict": "coalesce", "lock_ttl": 7}, True, 7.0),
        ({"lock_on_conflict": "skip"}, True, 0.0),
    ],
    ids=str,
)
def test_a_duplicate_waits_as_long_as_its_policy_says(
    new_message: NewMessage,
    node: OneNode,
    options: dict[str, Any],
    is_eager: bool,
    seconds: float,
) -> None:
    node.held["t"] = HOLDER, 1e9
    assert waited(node, new_message(options, is_eager=is_eager)) == seconds


@pytest.mark.parametrize("policy", ["wait", "reschedule", "coalesce"])
def test_a_body_that_calls_itself_does_not_wait_for_itself(
    new_message: NewMessage, node: OneNode, policy: str
) -> None:
    message = new_message({"lock_on_conflict": policy}, is_eager=True)
    lease = node.acquire("t", 30.0)
    run = Run(message, lease)
    before = current.set(run)
    try:
        assert waited(node, message) == 0.0
    finally:
        current.reset(before)


def test_without_lock_wait_a_duplicate_waits_for_the_lock(
    new_message: NewMessage, node: OneNode
) -> None:
    node.held["t"] = HOLDER, node.clock.now() + 1e6
    assert acquire(new_message({"lock_on_conflict": "wait"})).token == 1


@pytest.mark.parametrize(("is_eager", "seconds"), [(False, 0.0), (True, 5.0)])
def test_a_shutdown_ends_a_wait_unless_a_body_waits(
    new_message: NewMessage,
    node: OneNode,
    monkeypatch: pytest.MonkeyPatch,
    is_eager: bool,
    seconds: float,
) -> None:
    monkeypatch.setattr(pool_process, "_is_shutting_down", True)
    node.held["t"] = HOLDER, 1e9
    options = {"lock_on_conflict": "wait", "lock_wait": 5}
    assert waited(node, new_message(options, is_eager=is_eager)) == seconds


def test_a_shutdown_ends_a_wait_that_has_begun(
    new_message: NewMessage, node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without another request: the lock may be held for long."""
    asked: list[str] = []

    def note(owner: str) -> None:
        asked.append(owner)
        if len(asked) == 2:
            monkeypatch.setattr(pool_process, "_is_shutting_down", True)

    monkeypatch.setattr(pool_process, "_client", client_of(node, lambda *_: note))
    node.held["t"] = HOLDER, 1e9
    assert waited(node, new_message({"lock_on_conflict": "wait", "lock_wait": 5})) == 0.0
    assert len(asked) == 2


@pytest.fixture
def waits() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """What receivers were told of waits."""
    told: list[tuple[str, dict[str, Any]]] = []

    def note_began(signal: Any, **fields: Any) -> None:
        told.append(("began", fields))

    def note_ended(signal: Any, **fields: Any) -> None:
        told.append(("ended", fields))

    signals.lock_wait_began.connect(note_began)
    signals.lock_wait_ended.connect(note_ended)
    yield told
    signals.lock_wait_began.disconnect(note_began)
    signals.lock_wait_ended.disconnect(note_ended)


def test_receivers_are_told_of_a_wait(
    new_message: NewMessage, node: OneNode, waits: list[tuple[str, dict[str, Any]]]
) -> None:
    message = new_message({"lock_on_conflict": "wait"})
    node.held["t"] = HOLDER, node.clock.now() + 5.0
    acquire(message)
    about = {"sender": message.task, "task_id": "task-1"}
    [(_, began), ended] = waits
    assert began.pop("error").owner == HOLDER
    assert (began, ended) == (about, ("ended", {**about, "waited": 5.0}))


def test_receivers_are_told_of_no_wait_if_it_asks_again_at_once(
    new_message: NewMessage, node: OneNode, waits: list[Any]
) -> None:
    node.held["t"] = OWN_RESERVATION, 1e9
    acquire(new_message({"lock_lifetime": "until_executed"}))
    assert waits == []


# --- done marks -----------------------------------------------------------------------------------


def test_a_done_mark_of_the_message_ends_the_attempt(
    new_message: NewMessage, node: OneNode
) -> None:
    node.done.add(("t", MARK))
    message = new_message()
    with pytest.raises(AlreadyDone):
        acquire(message)
    assert node.held == {}


@pytest.mark.parametrize("label", ["task-1/0", "task-1/0/" + NONCE[::-1], MARK_OF_RETRY])
def test_a_done_mark_of_another_message_does_not_end_it(
    new_message: NewMessage, node: OneNode, label: str
) -> None:
    node.done.add(("t", label))
    assert acquire(new_message()).token == 1


def test_an_eager_execution_heeds_no_done_mark(new_message: NewMessage, node: OneNode) -> None:
    node.done.add(("t", MARK))
    assert acquire(new_message(is_eager=True)).token == 1


def test_a_copy_whose_retry_has_run_does_not_run(new_message: NewMessage, node: OneNode) -> None:
    message = new_message({"acks_late": True}, redelivered=True)
    node.done.add(("t", MARK_OF_RETRY))
    with pytest.raises(AlreadyDone):
        acquire(message)
    assert node.held == {}


# --- what it leaves -------------------------------------------------------------------------------


def test_a_refused_attempt_leaves_no_owner(new_message: NewMessage, node: OneNode) -> None:
    message = new_message()
    node.held["t"] = HOLDER, 1e9
    with pytest.raises(LockHeld):
        acquire(message)
    assert message.owner is None
    node.is_up = False
    with pytest.raises(QuorumUnavailable):
        acquire(message)
    assert message.owner is None


def test_a_released_lease_leaves_no_owner(new_message: NewMessage, node: OneNode) -> None:
    message = new_message()
    release(message, acquire(message))
    assert message.owner is None
    assert node.held == {}


class Striking(OneNode):
    """Grants, and is interrupted by a time limit before it returns the lease."""

    def acquire_for_task(self, *args: Any, **how: Any) -> Lease:
        super().acquire_for_task(*args, **how)
        raise SoftTimeLimitExceeded


@pytest.fixture
def striking(app: Celery) -> Striking:
    node = Striking()
    app_lock._redlocks[app] = node
    return node


def test_a_grant_that_no_lease_represents_is_discarded(
    striking: Striking, new_message: NewMessage
) -> None:
    message = new_message()
    with pytest.raises(SoftTimeLimitExceeded):
        acquire(message)
    assert striking.owner_of("t") == message.owner
    discard_grant(message)
    assert striking.held == {}


def test_a_grant_that_is_not_discarded_is_logged(
    striking: Striking, new_message: NewMessage, log: Any
) -> None:
    message = new_message()
    with pytest.raises(SoftTimeLimitExceeded):
        acquire(message)
    striking.is_up = False
    discard_grant(message)
    [(level, line)] = log()
    assert level == "WARNING"
    assert line.startswith("grant not discarded, it expires by its ttl key=t error=cannot")
