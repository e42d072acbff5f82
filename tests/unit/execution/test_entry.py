"""Entry of an execution: what each lifetime acquires and releases before the body."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Ignore, Reject

from celery_redlock import LockHeld, QuorumUnavailable, SingletonTask
from celery_redlock.execution.entry import enter
from celery_redlock.messages.headers import (
    COPY_HEADER,
    PLACEMENT_HEADER,
    PUBLICATION_HEADER,
    TICK_HEADER,
)
from celery_redlock.messages.headers import RESERVATION_HEADER as HEADER
from celery_redlock.messages.reservation import Reservation
from celery_redlock.redlock.lease import is_period, is_reservation, new_owner, publication_of
from tests.support.fakes.forged import (
    PERIOD,
    RESERVED_PERIOD,
    WAITING,
    NewTask,
    deliver,
    message_of,
)
from tests.support.fakes.one_node import OneNode

NONCE = "0123456789abcdef"
MARK = "task-1/0/" + NONCE
OWN = new_owner("task-1", publication=NONCE, is_reservation=True)
OWN_PERIOD = new_owner("task-1", publication=NONCE, is_reservation=True, is_period=True)
OTHER = f"{'2' * 32}~:nobody@host"
EXPIRED = "reservation expired in queue, running task anyway key={} task_id=task-1"
Enter = Callable[..., Any]


@pytest.fixture
def enter_with(new_task: NewTask) -> Enter:
    """Enter an execution: `enter_with(options, headers, **request)`."""

    def entering(
        options: dict[str, Any],
        headers: dict[str, Any] | None = None,
        *,
        as_message: bool = False,
        **request: Any,
    ) -> Any:
        headers = {PUBLICATION_HEADER: NONCE, **(headers or {})}
        message = message_of(new_task(**options), headers=headers, **request)
        lease = enter(message)
        return message if as_message else lease

    return entering


# --- a lease for the body -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lifetime", ["while_executing", "until_executed", "until_and_while_executing"]
)
def test_a_lifetime_that_covers_the_body_enters_with_a_lease(
    enter_with: Enter, node: OneNode, lifetime: str
) -> None:
    lease = enter_with({"lock_lifetime": lifetime})
    assert node.owner_of("t") == lease.owner
    assert lease.token == 1


def test_the_pending_slot_is_released_before_the_body(enter_with: Enter, node: OneNode) -> None:
    node.held["t%next"] = OWN, 1e9
    lifetime = {"lock_lifetime": "until_and_while_executing"}
    lease = enter_with(lifetime, Reservation("t%next", OWN).header)
    assert node.held.keys() == {"t"}
    assert node.owner_of("t") == lease.owner


def test_without_a_quorum_for_the_slot_the_lease_is_released(
    enter_with: Enter, node: OneNode
) -> None:
    node.unanswered.add("t%next")
    lifetime = {"lock_lifetime": "until_and_while_executing"}
    with pytest.raises(Exception, match="cannot release 't%next'"):
        enter_with(lifetime, Reservation("t%next", OWN).header)
    assert node.held == {}


@pytest.mark.parametrize(
    ("lifetime", "key"), [("until_executed", "t"), ("until_and_while_executing", "t%next")]
)
def test_a_reservation_that_expired_is_logged_and_the_task_runs(
    enter_with: Enter, log: Any, lifetime: str, key: str
) -> None:
    assert enter_with({"lock_lifetime": lifetime}, Reservation(key, OWN).header)
    assert log() == [("WARNING", EXPIRED.format(key))]


@pytest.mark.parametrize(
    ("lifetime", "key"), [("until_executed", "t"), ("until_and_while_executing", "t%next")]
)
def test_a_reservation_that_was_held_is_not_logged(
    enter_with: Enter, node: OneNode, log: Any, lifetime: str, key: str
) -> None:
    node.held[key] = OWN, 1e9
    assert enter_with({"lock_lifetime": lifetime}, Reservation(key, OWN).header)
    assert log() == []


@pytest.mark.parametrize(
    "request_",
    [{"retries": 1}, {"redelivered": True}, {"headers": {TICK_HEADER: "2026-11-22T14:00:00"}}],
    ids=str,
)
def test_a_reservation_that_another_copy_used_is_not_logged(
    enter_with: Enter, log: Any, request_: dict[str, Any]
) -> None:
    headers = {**Reservation("t", OWN).header, **request_.pop("headers", {})}
    assert enter_with({"lock_lifetime": "until_executed"}, headers, **request_)
    assert log() == []


def test_a_slot_of_a_requeued_duplicate_may_expire_unlogged(enter_with: Enter, log: Any) -> None:
    """Only a slot reserved at publish has been in the queue for its whole ttl."""
    options = {"lock_on_conflict": "coalesce"}
    assert enter_with(options, Reservation("t%next", OWN).header)
    assert log() == []


def test_a_reservation_of_another_key_of_the_task_is_released(
    enter_with: Enter, node: OneNode
) -> None:
    """The task has changed since the message was published."""
    node.held["t:7"] = OWN, 1e9
    assert enter_with({"lock_lifetime": "until_executed"}, Reservation("t:7", OWN).header)
    assert node.held.keys() == {"t"}


# --- a newcomer yields to the pending message -----------------------------------------------------


COALESCE = {"lock_on_conflict": "coalesce"}


def test_a_newcomer_yields_to_the_pending_message(enter_with: Enter, node: OneNode) -> None:
    node.held["t%next"] = WAITING, 1e9
    with pytest.raises(LockHeld) as caught:
        enter_with(COALESCE)
    assert (caught.value.key, caught.value.owner) == ("t%next", WAITING)
    assert node.held.keys() == {"t%next"}


@pytest.mark.parametrize(
    ("options", "request_"),
    [
        (COALESCE, {"retries": 1}),
        (COALESCE, {"redelivered": True}),
        (COALESCE, {"is_eager": True}),
        (COALESCE, {"headers": {COPY_HEADER: True}}),
        (COALESCE | {"lock_lifetime": "until_and_while_executing"}, {}),
        ({"lock_on_conflict": "reschedule"}, {}),
    ],
    ids=str,
)
def test_only_a_newcomer_yields_to_the_pending_message(
    enter_with: Enter, node: OneNode, options: dict[str, Any], request_: dict[str, Any]
) -> None:
    node.held["t%next"] = WAITING, 1e9
    assert enter_with(options, **request_)
    assert node.owner_of("t%next") == WAITING


def test_the_pending_message_itself_does_not_yield(enter_with: Enter, node: OneNode) -> None:
    node.held["t%next"] = OWN, 1e9
    assert enter_with(COALESCE, Reservation("t%next", OWN).header)
    assert node.held.keys() == {"t"}


def test_a_newcomer_does_not_yield_to_a_contended_slot(enter_with: Enter, node: OneNode) -> None:
    node.held["t%next"] = WAITING, 1e9
    node.split.add("t%next")
    assert enter_with(COALESCE)


@pytest.mark.parametrize("request_", [{"redelivered": True}, {"headers": {COPY_HEADER: True}}])
def test_a_copy_releases_the_slot_that_a_dead_delivery_left(
    enter_with: Enter, node: OneNode, request_: dict[str, Any]
) -> None:
    node.held["t%next"] = OWN, 1e9
    assert enter_with(COALESCE, **request_)
    assert node.held.keys() == {"t"}


@pytest.mark.parametrize(
    ("options", "request_"),
    [({"lock_on_conflict": "reschedule"}, {"redelivered": True}), (COALESCE, {"retries": 1})],
    ids=str,
)
def test_only_a_copy_that_coalesces_asks_about_the_slot(
    enter_with: Enter, node: OneNode, options: dict[str, Any], request_: dict[str, Any]
) -> None:
    node.unanswered.add("t%next")
    assert enter_with(options, **request_)


# --- another copy has run -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [{}, {HEADER: ["t%next", WAITING]}, {HEADER: ["t", WAITING]}, {HEADER: ["t:7", WAITING]}],
    ids=str,
)
def test_a_slot_that_the_headers_do_not_name_is_released(
    enter_with: Enter, node: OneNode, given: dict[str, Any]
) -> None:
    node.held |= {"t%next": (OWN, 1e9), "t:7": (WAITING, 1e9)}
    options = {"lock_lifetime": "until_and_while_executing"}
    assert enter_with(options, {PLACEMENT_HEADER: "1 x", **given})
    assert node.owner_of("t%next") is None


def test_a_slot_that_the_headers_name_costs_no_look(enter_with: Enter, node: OneNode) -> None:
    node.held["t%next"] = OWN, 1e9
    looked: list[str] = []
    node.read_holder = looked.append  # type: ignore[method-assign,assignment]
    options = {"lock_lifetime": "until_and_while_executing"}
    assert enter_with(options, {PLACEMENT_HEADER: "1 x", HEADER: ["t%next", OWN]})
    assert looked == []


def test_a_copy_that_holds_the_slot_runs_again(new_task: NewTask, node: OneNode) -> None:
    """Messages that were skipped for it rely on one more run."""
    task = new_task(**COALESCE)
    node.done.add(("t", MARK))
    node.held["t%next"] = OWN, 1e9
    headers = {PUBLICATION_HEADER: NONCE, HEADER: ["t%next", OWN]}
    deliver(task, **headers)
    deliver(task, **headers)
    assert task.runs == [1]
    assert node.held == {}


def test_a_copy_that_runs_again_retries_under_another_mark(
    enter_with: Enter, node: OneNode
) -> None:
    """The retry of the run before has left a mark of its own, for which this one would not run."""
    node.done |= {("t", MARK), ("t", MARK.replace("/0/", "/1/"))}
    node.held["t%next"] = OWN, 1e9
    message = enter_with(COALESCE, Reservation("t%next", OWN).header, as_message=True)
    request = message.request
    label = message.delivery.done_label
    assert label.startswith(f"task-1/0/{NONCE}+")
    assert ("t", label.replace("/0/", "/1/")) not in node.done
    # It is still the same message as its other copies.
    assert request.headers[PUBLICATION_HEADER] == NONCE


def test_a_copy_with_the_slot_is_parked_while_the_first_runs(
    new_task: NewTask, node: OneNode, published: Any
) -> None:
    task = new_task(**COALESCE)
    node.done.add(("t", MARK))
    node.done_for = 10.0
    node.held["t%next"] = OWN, 1e9
    deliver(task, **{PUBLICATION_HEADER: NONCE, HEADER: ["t%next", OWN]})
    assert task.runs == []
    [headers] = published
    assert headers[HEADER] == ["t%next", OWN]
    assert node.owner_of("t%next") == OWN


# --- until_executing ------------------------------------------------------------------------------


@pytest.fixture
def queued(app: Celery, node: OneNode) -> Any:
    """A task `until_executing` that notes in `seen` who holds its key as its body runs."""
    seen: list[str | None] = []

    @app.task(base=SingletonTask, name="t", lock_key=[], lock_lifetime="until_executing")
    def body() -> None:
        seen.append(node.owner_of("t"))

    body.seen = seen
    return body


def test_a_reservation_is_released_before_the_body(queued: Any, node: OneNode, log: Any) -> None:
    node.held["t"] = OWN, 1e9
    deliver(queued, **Reservation("t", OWN).header)
    assert queued.seen == [None]
    assert log() == []


def test_an_expired_reservation_does_not_end_that_of_the_next(
    queued: Any, node: OneNode, log: Any
) -> None:
    node.held["t"] = WAITING, 1e9
    deliver(queued, **Reservation("t", OWN).header)
    assert queued.seen == [WAITING]
    assert node.owner_of("t") == WAITING
    assert log() == [("WARNING", EXPIRED.format("t"))]


@pytest.mark.parametrize("given", [["t", OTHER], ["t:7", WAITING]], ids=str)
def test_a_reservation_is_released_though_the_headers_name_another(
    new_task: NewTask, node: OneNode, given: list[str]
) -> None:
    node.held |= {"t": (OWN, 1e9), "t:7": (WAITING, 1e9)}
    task = new_task(lock_lifetime="until_executing")
    deliver(task, **{HEADER: given, PUBLICATION_HEADER: NONCE})
    assert len(task.runs) == 1
    assert node.owner_of("t") is None


@pytest.mark.parametrize("ending", [None, ValueError(), Ignore(), Reject(requeue=True)], ids=repr)
def test_a_reservation_is_released_after_the_body_if_not_before(
    app: Celery, node: OneNode, log: Any, ending: Exception | None
) -> None:
    @app.task(base=SingletonTask, name="t", lock_key=[], lock_lifetime="until_executing")
    def body() -> None:
        node.is_up = True
        if ending:
            raise ending

    node.held["t"] = OWN, 1e9
    node.is_up = False
    deliver(body, **Reservation("t", OWN).header)
    assert node.held == {}
    (level, line), *_ = log()
    assert level == "WARNING"
    failed = (
        "reservation not released before the body, released after it key=t error=cannot release"
    )
    assert line.startswith(failed)


def test_an_unreserved_message_holds_nothing_in_its_body(queued: Any, node: OneNode) -> None:
    deliver(queued)
    assert queued.seen == [None]


def test_an_unreserved_message_is_a_duplicate_of_a_reserved_one(queued: Any, node: OneNode) -> None:
    node.held["t"] = WAITING, 1e9
    deliver(queued)
    assert queued.seen == []
    assert queued.AsyncResult("task-1").state == "REVOKED"
    assert node.owner_of("t") == WAITING


# --- until_expired --------------------------------------------------------------------------------


THROTTLE = {"lock_lifetime": "until_expired", "lock_ttl": 60}


def test_a_throttle_begins_a_period_that_outlasts_the_body(
    new_task: NewTask, node: OneNode
) -> None:
    task = new_task(**THROTTLE)
    deliver(task, **{PUBLICATION_HEADER: NONCE})
    assert task.runs == [None]
    owner, ends = node.held["t"]
    assert not is_reservation(owner)
    assert publication_of(owner) == NONCE
    assert ends == node.clock.now() + 60


def test_a_message_within_anothers_period_is_skipped(new_task: NewTask, node: OneNode) -> None:
    task = new_task(**THROTTLE)
    deliver(task, id="first")
    deliver(task)
    assert task.AsyncResult("task-1").state == "REVOKED"
    assert len(task.runs) == 1
    node.clock.move(61)
    deliver(task)
    assert len(task.runs) == 2


@pytest.mark.parametrize("carried", [{}, {HEADER: ["t:7", WAITING]}], ids=str)
def test_an_unreserved_message_yields_to_a_reserved_period(
    new_task: NewTask, node: OneNode, carried: dict[str, Any]
) -> None:
    task = new_task(**THROTTLE)
    node.held["t"] = WAITING, 1e9
    deliver(task, **carried)
    assert task.runs == []
    assert task.AsyncResult("task-1").state == "REVOKED"
    assert node.owner_of("t") == WAITING


def test_a_reserved_period_continues_under_its_message(new_task: NewTask, node: OneNode) -> None:
    task = new_task(**THROTTLE)
    ends = node.clock.now() + 20
    node.held["t"] = OWN_PERIOD, ends
    deliver(task, **Reservation("t", OWN_PERIOD).header)
    assert task.runs == [None]
    assert node.held["t"][1] == ends
    assert not is_reservation(node.owner_of("t"))


def test_a_throttle_lets_copies_and_retries_of_its_message_pass(
    new_task: NewTask, node: OneNode
) -> None:
    throttled = new_task(**THROTTLE)
    node.held["t"] = RESERVED_PERIOD, node.clock.now() + 30
    said = {"id": "waiting", HEADER: ["t", RESERVED_PERIOD]}
    deliver(throttled, **said)
    deliver(throttled, **said, embed={"delivery_info": {"redelivered": True}})
    deliver(throttled, **said, retries=1)
    assert len(throttled.runs) == 3
    assert node.held["t"][1] == node.clock.now() + 30, "since it was published"


@pytest.mark.parametrize("left", [20, 1e9])
def test_a_message_whose_throttle_expired_runs_for_the_next(
    new_task: NewTask, node: OneNode, left: float
) -> None:
    throttled = new_task(**THROTTLE)
    node.held["t"] = WAITING, node.clock.now() + left
    deliver(throttled, id="expired", **{HEADER: ["t", OTHER]})
    deliver(throttled, id="waiting", **{HEADER: ["t", WAITING]})
    assert len(throttled.runs) == 1
    assert not is_reservation(node.owner_of("t"))
    assert node.held["t"][1] == node.clock.now() + 60


@pytest.mark.parametrize(
    ("owner", "left"), [(WAITING, 3600), (WAITING, 20), (RESERVED_PERIOD, 3600)]
)
def test_what_was_reserved_otherwise_becomes_a_whole_period(
    new_task: NewTask, node: OneNode, owner: str, left: float
) -> None:
    """Reserved with another lifetime, or for a longer period."""
    throttled = new_task(**THROTTLE)
    node.held["t"] = owner, node.clock.now() + left
    deliver(throttled, id="waiting", **{HEADER: ["t", owner]})
    assert len(throttled.runs) == 1
    assert is_period(node.owner_of("t"))
    assert node.held["t"][1] == node.clock.now() + 60


@pytest.mark.parametrize("key", ["t%next", "t:7"])
@pytest.mark.parametrize("is_skipped", [False, True])
def test_a_throttle_releases_what_is_reserved_under_another_key(
    new_task: NewTask, node: OneNode, key: str, is_skipped: bool
) -> None:
    throttled = new_task(**THROTTLE)
    node.held[key] = WAITING, 1e9
    if is_skipped:
        node.held["t"] = PERIOD, 1e9
    deliver(throttled, **{HEADER: [key, WAITING]})
    assert len(throttled.runs) is not is_skipped
    assert node.held.keys() == {"t"}


def test_a_slot_not_released_before_a_throttle_s_body_is_after_it(
    app: Celery, node: OneNode
) -> None:
    @app.task(base=SingletonTask, name="t", lock_key=[], lock_lifetime="until_expired", lock_ttl=60)
    def body() -> None:
        node.unanswered.clear()

    node.held["t%next"] = WAITING, 1e9
    node.unanswered.add("t%next")
    deliver(body, **{HEADER: ["t%next", WAITING]})
    assert node.held.keys() == {"t"}


OWN_RUN = new_owner("task-1", publication=NONCE)
RETRY = {PUBLICATION_HEADER: NONCE, HEADER: ["t", OWN], "retries": 1}


@pytest.mark.parametrize("options", [THROTTLE, {"lock_lifetime": "until_executing"}], ids=str)
def test_a_retry_waits_for_its_run_under_an_older_lifetime(
    new_task: NewTask, node: OneNode, options: dict[str, Any]
) -> None:
    """The run hands its lock over as it ends: to a reservation that nobody would release then."""
    task = new_task(**options)
    node.held["t"] = OWN_RUN, node.clock.now() + 0.5
    deliver(task, **RETRY)
    assert len(task.runs) == 1
    if options is THROTTLE:
        assert is_period(node.owner_of("t"))
        assert node.held["t"][1] == node.clock.now() + 60
    else:
        assert node.owner_of("t") is None


@pytest.mark.parametrize("options", [THROTTLE, {"lock_lifetime": "until_executing"}], ids=str)
def test_a_message_that_runs_under_an_older_lifetime_is_parked(
    new_task: NewTask, node: OneNode, published: Any, options: dict[str, Any]
) -> None:
    task = new_task(**options)
    node.held["t"] = OWN_RUN, node.clock.now() + 30
    deliver(task, **RETRY)
    assert task.runs == []
    assert [headers[COPY_HEADER] for headers in published] == [True]
    assert node.owner_of("t") == OWN_RUN


def test_a_throttle_that_can_t_begin_leaves_no_lease(
    new_task: NewTask, node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, reserve, asked = new_task(**THROTTLE), node.reserve, list[str]()

    def refuse(key: str, ttl: float, **how: Any) -> Any:
        asked.append(key)
        if len(asked) > 1:
            raise QuorumUnavailable(key, {}, 1, "lock")
        return reserve(key, ttl, **how)

    node.held["t"] = OWN_RUN, node.clock.now() + 0.5
    monkeypatch.setattr(node, "reserve", refuse)
    deliver(task, **RETRY)
    assert task.runs == []
    assert node.owner_of("t") is None


@pytest.mark.parametrize(
    "lifetime",
    ["while_executing", "until_executed", "until_and_while_executing", "until_executing"],
)
def test_a_retry_supersedes_the_period_of_its_run_as_a_throttle(
    new_task: NewTask, node: OneNode, lifetime: str
) -> None:
    task = new_task(lock_lifetime=lifetime)
    node.held["t"] = new_owner("task-1", publication=NONCE, is_period=True), 1e9
    deliver(task, **{PUBLICATION_HEADER: NONCE, "retries": 1})
    assert len(task.runs) == 1
    assert node.owner_of("t") is None
