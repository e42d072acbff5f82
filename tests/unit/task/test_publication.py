"""Publication of a call: what it reserves, and what a duplicate becomes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from celery import Celery, Task, chain
from celery.app.task import Context
from kombu.exceptions import OperationalError

from celery_redlock import ConfigurationError, LockHeld, QuorumUnavailable, SingletonTask
from celery_redlock.config.declared_options import lock_options
from celery_redlock.config.options import Lifetime
from celery_redlock.messages.headers import (
    PLACEMENT_HEADER,
    PUBLICATION_HEADER,
    TICK_HEADER,
    CarriedNonce,
    nonce_in,
    placement_in,
)
from celery_redlock.messages.headers import RESERVATION_HEADER as HEADER
from celery_redlock.redlock.lease import (
    is_reservation,
    new_owner,
    publication_of,
    task_of,
)
from celery_redlock.signals import lock_unavailable
from celery_redlock.task import publication
from celery_redlock.task.publication import is_from_beat, is_retry_of, message_ttl, reserved_key
from celery_redlock.throttled_log import ThrottledLog
from tests.support.fakes.forged import HOLDER, WAITING, NewTask, deliver
from tests.support.fakes.one_node import OneNode
from tests.support.garbage import frames_left_by

NONCE = "0123456789abcdef"
RESERVED = {
    "while_executing": None,
    "until_executing": "t",
    "until_executed": "t",
    "until_and_while_executing": "t%next",
    "until_expired": "t",
}
RESERVING = [lifetime for lifetime, key in RESERVED.items() if key]
TICK = {TICK_HEADER: "2026-11-22T14:00:00+00:00"}


@pytest.fixture(autouse=True)
def _unthrottled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "_unreserved", ThrottledLog())


# --- what a call reserves -------------------------------------------------------------------------


@pytest.mark.parametrize("lifetime", RESERVED)
def test_a_call_reserves_the_key_of_its_lifetime(
    new_task: NewTask, node: OneNode, published: Any, lifetime: str
) -> None:
    key = RESERVED[lifetime]
    assert reserved_key(Lifetime(lifetime), "t") == key
    result = new_task(lock_lifetime=lifetime).delay()
    [headers] = published
    assert set(node.held) == ({key} if key else set())
    if key:
        owner = node.owner_of(key)
        assert is_reservation(owner)
        assert publication_of(owner) == nonce_in(headers)
        assert task_of(owner) == result.id == headers["id"]
        assert headers[HEADER] == [key, owner]
        assert placement_in(headers)[1] == str(node.placement)
    else:
        assert HEADER not in headers
        assert PLACEMENT_HEADER not in headers


@pytest.mark.parametrize(
    "options",
    [
        {"group_id": "g"},
        {"chord": "c"},
        {"chain": [{}]},
        {"parent_id": "p"},
        {"root_id": "r"},
        {"link": "callback"},
        {"link_error": "errback"},
        {"replaced_task_nesting": 1},
    ],
    ids=str,
)
def test_a_message_of_a_canvas_reserves_nothing(options: dict[str, Any]) -> None:
    """Another task's result in its place would hang the canvas."""
    assert publication.is_in_canvas(options)


@pytest.mark.parametrize("options", [{}, {"link": None}, {"chain": []}, {"countdown": 1}], ids=str)
def test_a_single_message_is_in_no_canvas(options: dict[str, Any]) -> None:
    assert not publication.is_in_canvas(options)


def test_a_canvas_of_a_reserved_call_is_published(
    new_task: NewTask, node: OneNode, published: Any
) -> None:
    node.held["t"] = HOLDER, 1e9
    task = new_task(lock_lifetime="until_executed")
    chain(task.si(), task.si()).delay()
    task.apply_async(link=task.si())
    task.apply_async(link_error=task.si())
    assert [HEADER in headers for headers in published] == [False] * 3


@pytest.mark.parametrize("field", ["chain", "callbacks"])
def test_a_next_step_without_a_key_is_the_workers_to_fail(
    app: Celery, published: Any, field: str
) -> None:
    @app.task(base=SingletonTask, name="sync", lock_key="{order[id]}")
    def sync(order: Any) -> None: ...

    @app.task(name="make")
    def make() -> dict[str, int]:
        with pytest.raises(ConfigurationError, match="does not fit this call"):
            sync.delay({})
        return {}

    deliver(make, embed={field: [sync.s()]})
    assert make.AsyncResult("task-1").result == {}
    [headers] = published
    assert headers["parent_id"] == "task-1"
    deliver(sync, args=({},), id=headers["id"])
    assert isinstance(sync.AsyncResult(headers["id"]).result, ConfigurationError)


@pytest.mark.parametrize(
    ("running", "task_id", "options", "is_next"),
    [
        ({"id": "1"}, "2", {"parent_id": "1"}, True),
        ({"id": "1", "chord": {"task": "t"}}, "2", {"group_id": "g"}, True),
        ({"id": "1", "task": "celery.chord_unlock"}, "2", {}, True),
        ({"id": "1", "chord": {"task": "t"}}, None, {}, False),
        ({"id": "1"}, "2", {"chain": [{}]}, False),
        ({"id": "1", "chord": {"task": "t"}}, "1", {"retries": 1}, False),
        ({"id": "1"}, "1", {"retries": 2, "parent_id": "1"}, False),
        (None, "2", {"parent_id": "1"}, False),
    ],
    ids=str,
)
def test_a_worker_publishes_next_steps_not_the_calls_of_bodies(
    running: Any, task_id: str | None, options: dict[str, Any], is_next: bool
) -> None:
    context = None if running is None else Context(running)
    assert publication.is_next_step(context, task_id, options) == is_next


# --- arguments that another class changes ---------------------------------------------------------


def adding_tenant(kind: type[Any]) -> Any:
    """Return a company's class whose `apply_async` adds the tenant."""

    class Company(kind):  # type: ignore[misc]
        abstract = True
        tenant = "a"

        def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
            return super().apply_async(args, {**(kwargs or {}), "tenant": self.tenant}, **options)

    return Company


@pytest.mark.parametrize("lifetime", RESERVING)
def test_a_class_below_that_changes_the_key_is_refused(
    app: Celery, node: OneNode, published: Any, lifetime: str
) -> None:
    app.task_cls = adding_tenant(Task)

    @app.task(base=SingletonTask, name="t", lock_key="{tenant}:{k}", lock_lifetime=lifetime)
    def body(k: int, tenant: str = "") -> None: ...

    with pytest.raises(ConfigurationError, match=r"'t': Company\.apply_async .*; derive Company"):
        body.delay(1)
    assert (published, node.held) == ([], {})
    # The arguments that it adds may be no part of the key.
    body.lock_key = "{k}"
    assert body.delay(1).id == body.delay(1).id
    assert len(published) == 1


def test_a_class_above_that_changes_the_key_has_its_key_reserved(
    app: Celery, node: OneNode
) -> None:
    base = adding_tenant(SingletonTask)

    @app.task(base=base, name="t", lock_key="{tenant}:{k}", lock_lifetime="until_executed")
    def body(k: int, tenant: str = "") -> None: ...

    body.delay(1)
    body.tenant = "b"
    body.delay(1)
    assert set(node.held) == {"t:a:1", "t:b:1"}


def test_a_message_that_is_published_again_is_not_compared() -> None:
    owner = new_owner("id", is_reservation=True)
    headers: dict[str, Any] = {HEADER: ["t", owner]}
    assert publication.reserved_for({"headers": headers}) == "t"
    assert publication.reserved_for({"headers": headers, "retries": 1}) is None
    requeued = {**headers, PUBLICATION_HEADER: CarriedNonce(NONCE)}
    assert publication.reserved_for({"headers": requeued}) is None
    assert publication.reserved_for({}) is None


# --- for how long ---------------------------------------------------------------------------------


def at(seconds: float) -> dt.datetime:
    return dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("options", "ttl"),
    [
        ({}, 3600),
        ({"countdown": 0.5}, 3600.5),
        ({"countdown": 600}, 4200),
        ({"countdown": -600}, 3600),
        ({"expires": 600}, 601),
        ({"expires": 0.5}, 1.5),
        ({"expires": -600}, 1),
        ({"countdown": 600, "expires": 9000}, 4200),
    ],
    ids=str,
)
def test_a_reservation_lasts_as_long_as_its_message_may_wait(
    options: dict[str, Any], ttl: float
) -> None:
    lock = lock_options("t", {"lock_lifetime": "until_executed"}, {}, max_ttl=60.0)
    assert message_ttl(lock, options) == ttl


@pytest.mark.parametrize(("eta", "ttl"), [(1000, 4600), (-1000, 3600)])
def test_a_reservation_lasts_until_after_the_eta(eta: float, ttl: float) -> None:
    lock = lock_options("t", {"lock_lifetime": "until_executed"}, {}, max_ttl=60.0)
    assert message_ttl(lock, {"eta": at(eta)}) == pytest.approx(ttl, abs=60)


def test_a_task_that_expires_is_reserved_as_long(new_task: NewTask, node: OneNode) -> None:
    new_task(lock_lifetime="until_executed", expires=600).delay()
    assert node.held["t"][1] - node.clock.now() == pytest.approx(601)


def test_a_throttle_lasts_for_its_ttl_whatever_the_message() -> None:
    declared = {"lock_lifetime": "until_expired", "lock_ttl": 20}
    lock = lock_options("t", declared, {}, max_ttl=60.0)
    assert message_ttl(lock, {"countdown": 600, "expires": 5}) == 20


# --- a duplicate ----------------------------------------------------------------------------------


@pytest.mark.parametrize("lifetime", RESERVING)
@pytest.mark.parametrize("owner", [HOLDER, WAITING])
def test_a_duplicate_is_the_result_of_the_holders_message(
    new_task: NewTask, node: OneNode, published: Any, lifetime: str, owner: str
) -> None:
    node.held[str(RESERVED[lifetime])] = owner, 1e9
    assert new_task(lock_lifetime=lifetime).delay().id == task_of(owner)
    assert published == []


@pytest.mark.parametrize("lifetime", RESERVING)
@pytest.mark.parametrize(
    "owner",
    [new_owner(), new_owner("t" * 600, publication=NONCE), "another's", "another:client@host"],
    ids=["process", "long id", "value", "client"],
)
def test_a_duplicate_of_no_known_task_is_left_to_the_worker(
    new_task: NewTask, node: OneNode, published: Any, conflicts: Any, lifetime: str, owner: str
) -> None:
    """A result under the holder's name would never arrive."""
    node.held[str(RESERVED[lifetime])] = owner, 1e9
    task = new_task(lock_lifetime=lifetime)
    result = task.delay()
    [headers] = published
    assert (headers["id"], HEADER in headers) == (result.id, False)
    assert conflicts == [], "the worker tells of it"
    assert node.held == {RESERVED[lifetime]: (owner, 1e9)}
    task.lock_on_conflict = "raise"
    with pytest.raises(LockHeld):
        task.delay()
    assert len(published) == 1


def test_a_duplicate_is_announced_with_the_policy(
    new_task: NewTask, node: OneNode, conflicts: Any, log: Any
) -> None:
    node.held["t"] = HOLDER, node.clock.now() + 20
    new_task(lock_lifetime="until_executed").apply_async(task_id="mine")
    [told] = conflicts
    assert (told["task_id"], told["error"].key, told["outcome"]) == ("mine", "t", "skip")
    assert (told["sender"].name, told["at"]) == ("t", "publish")
    assert told["error"].task_name == "t"
    line = "not published key=t task=t holder_task_id=holder remaining_s=20.000 outcome=skip"
    assert log() == [("INFO", line)]


def test_a_duplicate_raises_if_the_policy_is_raise(
    new_task: NewTask, node: OneNode, published: Any
) -> None:
    node.held["t"] = HOLDER, 1e9
    with pytest.raises(LockHeld):
        new_task(lock_lifetime="until_executed", lock_on_conflict="raise").delay()
    assert published == []


@pytest.mark.parametrize("policy", ["skip", "raise"])
def test_a_duplicate_keeps_nothing_alive(new_task: NewTask, node: OneNode, policy: str) -> None:
    node.held["t"] = HOLDER, 1e9
    task = new_task(lock_lifetime="until_executed", lock_on_conflict=policy)
    assert frames_left_by(task.delay) == []


@pytest.mark.parametrize("headers", [TICK, {"celery_beat_task": True}], ids=str)
def test_a_duplicate_from_beat_never_raises(
    new_task: NewTask, node: OneNode, headers: dict[str, Any]
) -> None:
    assert is_from_beat({"headers": headers})
    node.held["t"] = HOLDER, 1e9
    task = new_task(lock_lifetime="until_executed", lock_on_conflict="raise")
    assert task.apply_async(headers=headers).id == "holder"


def test_a_tick_is_published_again_beside_its_own_reservation(
    new_task: NewTask, node: OneNode, published: Any
) -> None:
    """The replica of beat that reserved it may have died before it published the message."""
    node.held["t"] = new_owner("tick", is_reservation=True), 1e9
    task = new_task(lock_lifetime="until_executed")
    assert task.apply_async(task_id="tick", headers=TICK).id == "tick"
    assert len(published) == 1


def test_a_contended_reservation_does_not_make_a_duplicate(
    new_task: NewTask, node: OneNode, published: Any
) -> None:
    node.held["t"] = WAITING, 1e9
    node.split.add("t")
    assert new_task(lock_lifetime="until_executed").delay().id != "waiting"
    assert len(published) == 1


# --- failures -------------------------------------------------------------------------------------


def test_without_a_quorum_a_call_is_published_unreserved(
    new_task: NewTask, node: OneNode, published: Any, log: Any
) -> None:
    task = new_task(lock_lifetime="until_executed")
    node.is_up = False
    task.delay()
    task.delay()
    node.is_up = True
    task.delay()
    assert [HEADER in headers for headers in published] == [False, False, True]
    assert "error=cannot lock 't'" in log()[0][1]
    lines = [(level, line.partition(" error=")[0]) for level, line in log()]
    assert lines == [
        ("WARNING", "published without a reservation key=t count=1"),
        ("DEBUG", "published without a reservation key=t count=2"),
        ("WARNING", "published with reservations again count=2"),
    ]


def test_without_a_quorum_raise_refuses_the_call(
    new_task: NewTask, node: OneNode, published: Any
) -> None:
    node.is_up = False
    task = new_task(lock_lifetime="until_executed", lock_on_unavailable="raise")
    with pytest.raises(QuorumUnavailable):
        task.delay()
    assert published == []


@pytest.mark.parametrize(
    ("policy", "outcome"),
    [("raise", "raise"), ("reschedule", "unreserved"), ("run", "unreserved")],
)
def test_receivers_are_told_of_a_call_without_a_quorum(
    new_task: NewTask, node: OneNode, policy: str, outcome: str
) -> None:
    told: list[dict[str, Any]] = []

    def note(signal: Any, **fields: Any) -> None:
        told.append(fields)

    node.is_up = False
    task = new_task(lock_lifetime="until_executed", lock_on_unavailable=policy)
    lock_unavailable.connect(note)
    try:
        with suppress(QuorumUnavailable):
            assert task.apply_async(task_id="mine").id == "mine"
    finally:
        lock_unavailable.disconnect(note)
    [one] = told
    assert one.pop("sender").name == "t"
    assert isinstance(one.pop("error"), QuorumUnavailable)
    assert one == {"task_id": "mine", "outcome": outcome}


@pytest.mark.parametrize("error", [OperationalError, KeyboardInterrupt])
def test_a_call_that_is_not_published_releases_its_reservation(
    new_task: NewTask, node: OneNode, error: type[BaseException]
) -> None:
    class Refused(Task):  # type: ignore[type-arg]
        abstract = True

        def apply_async(self, *_: Any, **__: Any) -> Any:
            assert node.owner_of("t")
            raise error

    base = type("Base", (SingletonTask, Refused), {})
    with pytest.raises(error):
        new_task(base=base, lock_lifetime="until_executed").delay()
    assert node.held == {}


# --- the retry of a run whose process has died ----------------------------------------------------

LOST: dict[str, Any] = {
    "task_id": "task-1", "retries": 1, "root_id": "task-1", "countdown": 5,
    "headers": {PUBLICATION_HEADER: NONCE},
}  # fmt: skip
"""As Celery publishes it in the worker's main process."""
KEPT = new_owner("task-1", publication=NONCE, is_reservation=True)
"""Owner of the reservation with which the keeper has kept the lock for it."""


@pytest.mark.parametrize("holder", [None, KEPT], ids=["nobody", "the keeper"])
def test_the_retry_of_a_lost_run_has_a_reservation(
    new_task: NewTask, node: OneNode, published: Any, holder: str | None
) -> None:
    if holder:
        node.held["t"] = holder, 1e9
    new_task(lock_lifetime="until_executed").apply_async(**LOST)
    [headers] = published
    owner, ends = node.held["t"]
    assert headers[HEADER] == ["t", owner]
    assert owner != holder
    assert (task_of(owner), publication_of(owner)) == ("task-1", NONCE)
    assert ends - node.clock.now() == pytest.approx(3605)


@pytest.mark.parametrize(
    "holder",
    [
        HOLDER,
        WAITING,
        new_owner("task-1", publication=NONCE),
        new_owner("task-1", publication=NONCE[::-1], is_reservation=True),
        new_owner("task-2", publication=NONCE, is_reservation=True),
    ],
    ids=["another run", "another message", "a copy's run", "the id again", "another id"],
)
@pytest.mark.parametrize("policy", ["skip", "raise"])
def test_the_retry_of_a_lost_run_is_published_whoever_holds_the_lock(
    new_task: NewTask, node: OneNode, published: Any, conflicts: Any, holder: str, policy: str
) -> None:
    node.held["t"] = holder, 1e9
    result = new_task(lock_lifetime="until_executed", lock_on_conflict=policy).apply_async(**LOST)
    assert (result.id, [one["id"] for one in published]) == ("task-1", ["task-1"])
    assert HEADER not in published[0]
    assert node.owner_of("t") == holder
    assert conflicts == []


def test_the_retry_of_a_lost_run_is_published_without_a_quorum(
    new_task: NewTask, node: OneNode, published: Any
) -> None:
    node.is_up = False
    task = new_task(lock_lifetime="until_executed", lock_on_unavailable="raise")
    task.apply_async(**LOST)
    assert [one["id"] for one in published] == ["task-1"]


@pytest.mark.parametrize("lifetime", [one for one in RESERVING if one != "until_executed"])
def test_the_retry_of_a_lost_run_of_another_lifetime_reserves_nothing(
    new_task: NewTask, node: OneNode, published: Any, lifetime: str
) -> None:
    new_task(lock_lifetime=lifetime).apply_async(**LOST)
    assert (len(published), node.held) == (1, {})


def test_only_a_retry_takes_over_what_the_keeper_has_kept(
    new_task: NewTask, node: OneNode, published: Any
) -> None:
    """The same id published with the same headers is a duplicate of that retry."""
    node.held["t"] = KEPT, 1e9
    options = LOST | {"retries": 0, "root_id": None}
    new_task(lock_lifetime="until_executed").apply_async(**options)
    assert published == []


# --- a retry --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task_id", "retries", "expected"),
    [("task-1", 3, True), ("task-1", 2, False), ("other", 3, False), (None, 3, False)],
)
def test_a_retry_has_the_runs_id_and_more_retries(
    task_id: str | None, retries: int, expected: bool
) -> None:
    running = Context(id="task-1", retries=2)
    assert is_retry_of(running, task_id, {"retries": retries}) is expected
    first = Context(id="task-1")
    assert is_retry_of(first, task_id, {"retries": retries}) is (task_id == "task-1")
    assert not is_retry_of(first, task_id, {})


@pytest.fixture
def retrying(app: Celery) -> Callable[..., Any]:
    """Make a task whose first run retries: `retrying(**options)`."""

    def new(args: Any = None, **options: Any) -> Any:
        @app.task(base=SingletonTask, bind=True, name="t", **options)
        def body(self: SingletonTask, number: int = 0) -> None:
            self.retry(args=args, countdown=1)

        return body

    return new


def test_a_run_hands_its_lock_over_to_its_retry(
    retrying: Callable[..., Any], node: OneNode, published: Any
) -> None:
    carried = {PUBLICATION_HEADER: NONCE}
    deliver(retrying(lock_key=[], lock_lifetime="until_executed"), **carried)
    [headers] = published
    owner = node.owner_of("t")
    assert is_reservation(owner)
    assert headers[HEADER] == ["t", owner]
    assert task_of(owner) == headers["id"] == "task-1"
    assert publication_of(owner) == nonce_in(headers) == NONCE
    assert int(str(owner)[:12], 16) == pytest.approx(node.clock.wall_us() // 1000, abs=5000)
    assert node.held["t"][1] == pytest.approx(node.clock.now() + 3601, abs=5)


@pytest.mark.parametrize("is_over", [True, False])
def test_a_lock_is_not_handed_over_to_a_retry_that_has_expired(
    retrying: Callable[..., Any], node: OneNode, published: Any, is_over: bool
) -> None:
    """It is discarded, perhaps before the run ends: nobody would release the lock."""
    task = retrying(lock_key=[], lock_lifetime="until_executed")
    deliver(task, expires=at(-60.0 if is_over else 60.0).isoformat())
    [headers] = published
    assert (headers["retries"], HEADER in headers) == (1, not is_over)
    assert (node.held == {}) is is_over


@pytest.mark.parametrize("lifetime", ["while_executing", "until_and_while_executing"])
def test_a_run_of_another_lifetime_hands_nothing_over(
    retrying: Callable[..., Any], node: OneNode, published: Any, lifetime: str
) -> None:
    deliver(retrying(lock_key=[], lock_lifetime=lifetime))
    [headers] = published
    assert headers["id"] == "task-1"
    assert HEADER not in headers
    assert node.held == {}


def test_a_run_without_a_lock_hands_nothing_over(
    retrying: Callable[..., Any], node: OneNode, published: Any
) -> None:
    node.is_up = False
    options = {"lock_lifetime": "until_executed", "lock_on_unavailable": "run"}
    deliver(retrying(lock_key=[], **options))
    [headers] = published
    assert (headers["retries"], HEADER in headers) == (1, False)


def test_a_retry_with_other_arguments_does_not_get_the_lock(
    retrying: Callable[..., Any], node: OneNode, published: Any
) -> None:
    deliver(retrying(args=(5,), lock_key="{number}", lock_lifetime="until_executed"))
    [headers] = published
    assert HEADER not in headers
    assert node.held == {}
