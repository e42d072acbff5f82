"""Who renews the lease of a run, for how long, and who is told how it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery.utils.dispatch import Signal

from celery_redlock import QuorumUnavailable, signals
from celery_redlock.execution import run as run_module
from celery_redlock.execution.run import Run
from celery_redlock.execution.running import deferred_to_main
from celery_redlock.messages.headers import PUBLICATION_HEADER
from celery_redlock.pools import interrupt, pool_process
from celery_redlock.pools.orphaned_leases import PROVISIONAL_S
from celery_redlock.redlock import Lease
from celery_redlock.redlock.errors import LeaseLost
from celery_redlock.redlock.lease import is_reservation, new_owner, publication_of, task_of
from celery_redlock.redlock.lock import DAY_S
from tests.support.fakes.forged import NewTask, message_of
from tests.support.fakes.one_node import OneNode

NONCE = "0123456789abcdef"
NewRun = Callable[..., Run]


class Told:
    """What takes down how it is called: `(method, *arguments)`."""

    def __init__(self, answer: object = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answer = answer

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **how: Any) -> object:
            self.calls.append((name, *args, *([how] if how else [])))
            return self.answer

        return call


class Client(Told):
    """A pool process's client of the keeper in its main process."""

    def __init__(self, redlock: OneNode, *, has_room: bool = True) -> None:
        super().__init__(has_room)
        self.redlock = redlock


@pytest.fixture
def new_run(new_task: NewTask, node: OneNode) -> NewRun:
    """Make a run: `new_run(options, **request)`, of a lease that was acquired a second ago."""

    def new(options: dict[str, Any] | None = None, **request: Any) -> Run:
        request = {"headers": {PUBLICATION_HEADER: NONCE}, **request}
        message = message_of(new_task(**(options or {})), **request)
        lease = node._take("t", new_owner("task-1", publication=NONCE), 30.0, None)
        node.clock.move(1.0)
        return Run(message, lease)

    return new


@pytest.fixture
def keeper(node: OneNode) -> Told:
    """The keeper of this process."""
    node.keeper = told = Told()
    return told


@pytest.fixture
def client(node: OneNode, monkeypatch: pytest.MonkeyPatch) -> Client:
    """The client of the main process's keeper: this is a pool process."""
    client = Client(node)
    monkeypatch.setattr(pool_process, "_client", client)
    return client


@pytest.fixture
def interrupts(monkeypatch: pytest.MonkeyPatch) -> Told:
    """The interrupt of the body."""
    told = Told()
    monkeypatch.setattr(interrupt, "new_interrupt", lambda: told)
    return told


@pytest.fixture
def sent() -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """What receivers of the lock's signals were sent."""
    told: list[tuple[str, dict[str, Any]]] = []
    receivers: list[tuple[Signal, Callable[..., None]]] = []
    for name in ("lock_acquired", "lock_released", "lock_lost"):

        def note(name: str = name, **fields: Any) -> None:
            fields.pop("signal")
            told.append((name, fields))

        receivers.append((getattr(signals, name), note))
    for signal, receiver in receivers:
        signal.connect(receiver, weak=False)
    yield told
    for signal, receiver in receivers:
        signal.disconnect(receiver)


# --- in whose hands -------------------------------------------------------------------------------


def test_in_a_pool_process_the_main_process_keeps_the_lease(
    new_run: NewRun, client: Client, keeper: Told, interrupts: Told
) -> None:
    run = new_run({"lock_min_hold": 5.0, "acks_late": True, "reject_on_worker_lost": True})
    run.begin()
    held_until = run.lease.acquired_at + 5.0
    mark = f"task-1/0/{NONCE}"
    assert client.calls == [
        ("register", run.lease, held_until, mark, {"will_be_redelivered": True, "successor": ""})
    ]
    assert keeper.calls == []
    run._on_lost(run.lease)
    assert interrupts.calls == [], "there is a signal for that"


def test_the_main_process_knows_whether_the_message_comes_again(
    new_run: NewRun, client: Client
) -> None:
    new_run({"acks_late": True}).begin()
    [(*_, how)] = client.calls
    assert how["will_be_redelivered"] is False


LOST = {"retry_on_worker_lost": True, "lock_lifetime": "until_executed", "max_retries": 3}


@pytest.mark.parametrize(
    ("options", "retries", "expected"),
    [
        ({}, 0, True),
        ({}, 2, True),
        ({}, 3, False),
        ({"max_retries": None}, 1000, True),
        ({"max_retries": 0}, 0, False),
        ({"retry_on_worker_lost": False}, 0, False),
        ({"lock_lifetime": "while_executing"}, 0, False),
    ],
)
def test_the_main_process_knows_the_successor_of_a_run_that_celery_retries(
    new_run: NewRun, client: Client, options: dict[str, Any], retries: int, expected: bool
) -> None:
    new_run(LOST | options, retries=retries).begin()
    [(*_, how)] = client.calls
    assert bool(how["successor"]) is expected
    if expected:
        assert is_reservation(how["successor"])
        assert task_of(how["successor"]) == "task-1"
        assert publication_of(how["successor"]) == NONCE


def test_what_the_main_process_has_no_room_for_is_kept_here(
    new_run: NewRun, client: Client, keeper: Told, interrupts: Told
) -> None:
    client.answer = False
    run = new_run()
    run.begin()
    assert keeper.calls == [("keep", run.lease, {"on_lost": run._on_lost})]
    run._on_lost(run.lease)
    assert interrupts.calls == [("trigger",)]


def test_the_lock_of_another_app_is_kept_here(
    new_run: NewRun, keeper: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Client(OneNode())
    monkeypatch.setattr(pool_process, "_client", other)
    run = new_run()
    run.begin()
    assert other.calls == []
    assert [call[:2] for call in keeper.calls] == [("keep", run.lease)]


def test_outside_a_pool_it_is_kept_here(new_run: NewRun, keeper: Told) -> None:
    run = new_run()
    run.begin()
    assert keeper.calls == [("keep", run.lease, {"on_lost": run._on_lost})]


@pytest.mark.parametrize(
    ("options", "limits", "seconds"),
    [
        ({"lock_max_hold": 50.0}, [400.0, None], 50.0),
        ({}, None, DAY_S),
        ({}, [None, None], DAY_S),
        ({"time_limit": 300}, None, 300.0),
        ({"time_limit": 300}, [400.0, 1.0], 400.0),
        # Not every pool enforces it.
        ({"time_limit": 300}, [200.0, None], 300.0),
        ({"time_limit": 0.25}, None, 0.25),
    ],
    ids=str,
)
def test_it_is_kept_for_as_long_as_a_body_may_run(
    new_run: NewRun, options: dict[str, Any], limits: Any, seconds: float
) -> None:
    run = new_run(options, timelimit=limits)
    run.begin()
    assert run.lease.hold_until == run.lease.acquired_at + seconds


# --- its end --------------------------------------------------------------------------------------


def test_a_pool_process_tells_before_and_after_its_release(
    new_run: NewRun, client: Client, node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run()
    run.begin()
    client.calls.clear()
    monkeypatch.setattr(node, "release", lambda *_, **__: client.calls.append(("release",)))
    run.end(None)
    assert client.calls == [("begin_release", run.lease), ("release",), ("end_release", run.lease)]


def test_a_release_that_fails_is_left_to_the_main_process(
    new_run: NewRun, client: Client, node: OneNode
) -> None:
    run = new_run({"lock_min_hold": 7.0, "acks_late": True})
    run.begin()
    client.calls.clear()
    node.is_up = False
    run.end(None)
    kept_until = run.lease.acquired_at + 7.0
    assert client.calls == [
        ("begin_release", run.lease),
        ("leave_release", run.lease, kept_until, run._done),
    ]
    assert run._done


def test_a_late_release_that_fails_is_left_with_its_lock_delay(
    new_run: NewRun, client: Client, node: OneNode
) -> None:
    run = new_run()
    run.begin()
    run.lease.lock_delay_ms = 5_000
    node.clock.move(run.lease.deadline - node.clock.now() + 1.0)
    client.calls.clear()
    node.is_up = False
    run.end(None)
    assert client.calls[-1] == ("leave_release", run.lease, run.lease.deadline + 5.0, None)


def test_what_an_exiting_pool_process_holds_is_left_to_the_main_process(
    new_run: NewRun, client: Client, node: OneNode
) -> None:
    run = new_run()
    run.begin()
    client.calls.clear()
    run.end(SystemExit())
    assert deferred_to_main.pop() is run
    assert client.calls == []
    assert node.owner_of("t") == run.lease.owner
    run.end(None)
    assert node.owner_of("t") == run.lease.owner, "it has ended"
    run.end_after_exit()
    assert node.owner_of("t") is None


def test_an_exiting_process_releases_what_it_keeps_itself(
    new_run: NewRun, node: OneNode, keeper: Told
) -> None:
    run = new_run()
    run.begin()
    run.end(SystemExit())
    assert deferred_to_main == []
    assert node.owner_of("t") is None


def test_a_run_is_not_interrupted_in_its_end(
    new_run: NewRun, keeper: Told, interrupts: Told
) -> None:
    run = new_run()
    run.begin()
    run.end(None)
    assert interrupts.calls == [("disarm",)]
    run._on_lost(run.lease)
    assert interrupts.calls == [("disarm",)]


def test_the_mark_of_a_release_is_provisional(
    new_run: NewRun, node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(node, "release", lambda _, **how: asked.append(how))
    run = new_run({"acks_late": True})
    run.end(None)
    assert asked == [{"keep": 0.0, "done": f"task-1/0/{NONCE}", "done_ttl": PROVISIONAL_S}]


@pytest.mark.parametrize(("passed", "kept"), [(0.0, 4.0), (3.5, 0.5), (4.0, 0.0), (20.0, 0.0)])
def test_a_lock_stays_for_the_rest_of_its_min_hold(
    new_run: NewRun, node: OneNode, monkeypatch: pytest.MonkeyPatch, passed: float, kept: float
) -> None:
    asked: list[float] = []
    monkeypatch.setattr(node, "release", lambda _, keep, **__: asked.append(keep))
    run = new_run({"lock_min_hold": 5.0})
    node.clock.move(passed)
    run.end(None)
    assert asked == [kept]


# --- its loss -------------------------------------------------------------------------------------


def test_receivers_are_told_of_each_lease_once(
    new_run: NewRun, keeper: Told, sent: list[tuple[str, dict[str, Any]]]
) -> None:
    run = new_run()
    run.begin()
    run._on_lost(run.lease)
    run._on_lost(run.lease)
    run.end(LeaseLost("t"))
    about = {"sender": run.message.task, "task_id": "task-1", "lease": run.lease}
    assert sent == [("lock_acquired", about), ("lock_lost", about), ("lock_released", about)]


def test_a_loss_is_known_and_logged_once(new_run: NewRun, keeper: Told, log: Any) -> None:
    run = new_run()
    run._on_lost(run.lease)
    assert run.lease.backing.is_lost
    run.report_loss()
    assert log() == [
        ("ERROR", "lease lost under a running task key=t task=t task_id=task-1 on_lost=abort")
    ]


def test_a_body_that_is_to_go_on_is_not_interrupted(
    new_run: NewRun, keeper: Told, interrupts: Told
) -> None:
    run = new_run({"lock_on_lost": "continue"})
    run.begin()
    run._on_lost(run.lease)
    assert interrupts.calls == []
    assert run.lease.backing.is_lost


@pytest.mark.parametrize("is_lost", [False, True])
def test_monitors_are_told_of_a_loss_at_the_end(
    new_run: NewRun, keeper: Told, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    events: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        run_module, "send_event", lambda *args, **fields: events.append((*args, fields))
    )
    run = new_run()
    run.begin()
    if is_lost:
        run._on_lost(run.lease)
    assert events == [], "this thread renews other leases"
    run.end(None)
    told = (run.message.delivery, "task-lock-lost", {"key": "t"})
    assert events == [told] * is_lost


@pytest.fixture
def probes(node: OneNode, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """How runs that have lost their lease ask who has it."""
    asked: list[tuple[Any, ...]] = []

    def acquire(*args: Any, **how: Any) -> Lease:
        asked.append((*args, how))
        raise QuorumUnavailable("t", {"a": "down"}, 1)

    monkeypatch.setattr(node, "acquire_for_task", acquire)
    return asked


def test_a_run_asks_for_its_lost_lock_as_its_message(
    new_run: NewRun, probes: list[tuple[Any, ...]], log: Any
) -> None:
    run = new_run({"acks_late": True}, redelivered=True)
    run.lease.backing.is_lost = True
    run.end(LeaseLost("t"))
    how = {
        "label": "task-1",
        "publication": NONCE,
        "supersedes": run.lease.owner,
        "unless_done": run.message.delivery.marks_to_check[:1],
    }
    assert how["unless_done"]
    assert probes == [("t", 30.0, how)]
    level, line = log()[0]
    assert level == "WARNING"
    assert line.startswith(
        "holder of the lost lease unknown, no copy assumed key=t error=cannot lock"
    )


def test_a_run_leaves_its_lost_lock_alone_during_the_lock_delay(
    new_run: NewRun, node: OneNode, probes: list[tuple[Any, ...]]
) -> None:
    run = new_run()
    run.lease.lock_delay_ms = 5_000
    node.clock.move(run.lease.deadline - node.clock.now() + 4.9)
    run.end(LeaseLost("t"))
    assert probes == []


def test_a_run_asks_for_its_lost_lock_after_the_lock_delay(
    new_run: NewRun, node: OneNode, probes: list[tuple[Any, ...]]
) -> None:
    run = new_run()
    run.lease.lock_delay_ms = 5_000
    node.clock.move(run.lease.deadline - node.clock.now() + 5.1)
    run.end(LeaseLost("t"))
    assert len(probes) == 1


def test_an_eager_run_looks_for_no_copy(new_run: NewRun, probes: list[tuple[Any, ...]]) -> None:
    run = new_run(is_eager=True)
    run.lease.backing.is_lost = True
    run.end(LeaseLost("t"))
    assert probes == []


def test_a_probe_that_can_not_be_released_ends_by_itself(
    new_run: NewRun, node: OneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run()
    run.lease.backing.is_lost = True
    owner = new_owner("task-1")
    monkeypatch.setattr(
        node, "acquire_for_task", lambda key, ttl, **_: Lease(key, owner, 2, 1, ttl, node.clock)
    )
    asked: list[str] = []

    def release(lease: Lease, **_: Any) -> None:
        asked.append(lease.owner)
        raise QuorumUnavailable("t", {"a": "down"}, 1)

    monkeypatch.setattr(node, "release", release)
    run.end(LeaseLost("t"))
    assert asked == [owner, run.lease.owner]
    assert not run.is_superseded_by_copy
