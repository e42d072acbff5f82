"""Which worker and process hold a lock, and with which arguments."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from celery import Celery

from celery_redlock.operate import workers
from celery_redlock.operate.locks import Lock, lock_of
from celery_redlock.operate.running import Running, Watch, arguments_in, running_tasks
from celery_redlock.operate.target import Target
from celery_redlock.redlock.labels import label_of
from celery_redlock.redlock.lease import new_owner
from celery_redlock.redlock.protocol.replies import Busy
from tests.support.eventually import eventually
from tests.support.fakes.told import Told, active

T = 1_763_800_000_000_000


@pytest.fixture
def app() -> Iterator[Celery]:
    with Celery("bank", broker="memory://", set_as_current=False) as app:
        yield app


def target(app: Celery | None, *, shows_arguments: bool = False) -> Target:
    return Target(["redis://a"], app=app, shows_arguments=shows_arguments)


def held_by(label: str, *, is_reservation: bool = False, is_period: bool = False) -> Lock:
    owner = new_owner(label, is_reservation=is_reservation, is_period=is_period)
    lock = lock_of("bank.sync:42", [Busy(owner, 1000, T)])
    assert lock
    return lock


def test_a_running_task_has_a_worker_and_a_process(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_id = "long" * 200
    Told(app, monkeypatch, {"w1@a": [active("t-1"), active("t-0")], "w2@b": [active(long_id)]})
    locks = [held_by("t-1"), held_by(long_id), held_by("t-3")]
    running = running_tasks(target(app), locks)
    running.tell(locks)
    assert [str(lock.execution) for lock in locks] == ["w1@a (pid 7)", "w2@b (pid 7)", "None"]
    assert running.problem is None
    assert running.why_unknown == "no worker that answered runs it"
    assert label_of(long_id) in running.executions


@pytest.mark.parametrize("is_shown", [False, True])
def test_arguments_are_kept_only_if_they_may_be_shown(
    app: Celery, monkeypatch: pytest.MonkeyPatch, *, is_shown: bool
) -> None:
    Told(app, monkeypatch, {"w1@a": [active("t-1")]})
    running = running_tasks(target(app, shows_arguments=is_shown), [held_by("t-1")])
    assert running.executions["t-1"].arguments == ("(42,)" if is_shown else None)
    assert ("42" in repr(running)) is is_shown


def test_the_wait_ends_when_all_holders_are_found(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {"w1@a": [active("t-1")], "w2@b": [active("t-2")], "w3@c": [active("t-3")]}
    Told(app, monkeypatch, answers)
    found = running_tasks(target(app), [held_by("t-1"), held_by("t-2")]).executions
    assert found.keys() == {"t-1", "t-2"}


def test_of_two_copies_the_one_that_began_first_counts(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, early = active("t-1", time_start=9.0), active("t-1", time_start=3.0, worker_pid=8)
    unstarted = active("t-1", time_start=None)
    Told(app, monkeypatch, {"w0@a": [late, early, unstarted]})
    found = running_tasks(target(app), [held_by("t-1")]).executions
    assert found["t-1"].pid == 8


def test_nobody_is_asked_about_what_no_worker_runs(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(app, monkeypatch)
    locks = [
        held_by("t-1", is_reservation=True), held_by("t-1", is_period=True), held_by("pid-77"),
    ]  # fmt: skip
    assert running_tasks(target(app), locks) == Running()
    assert told.asked == 0
    assert running_tasks(target(None), [held_by("t-1")]) == Running()
    assert Watch(target(None)).tell([held_by("t-1")]) == Running()


def test_without_an_answer_the_reason_is_told(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    Told(app, monkeypatch)
    assert running_tasks(target(app), [held_by("t-1")]).why_unknown == (
        "no worker answered within 1 s"
    )
    Told(app, monkeypatch, {"w1@a": {"error": "no"}})
    assert running_tasks(target(app), [held_by("t-1")]).problem is None


def test_a_broker_that_is_away_is_the_reason() -> None:
    with Celery("bank", broker="redis://127.0.0.1:1", set_as_current=False) as app:
        problem = running_tasks(target(app), [held_by("t-1")]).problem
    assert problem
    assert problem.startswith("the broker can't be asked (")
    assert "refused" in problem


@pytest.mark.timeout(30)
def test_a_broker_that_hangs_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_CONNECT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as frozen:  # its kernel accepts connections
        broker = f"redis://127.0.0.1:{frozen.getsockname()[1]}"
        with Celery("bank", broker=broker, set_as_current=False) as app:
            problem = running_tasks(target(app), [held_by("t-1")]).problem
    assert problem
    assert problem.startswith("the broker can't be asked (")
    assert "Timeout" in problem


def test_a_broker_without_remote_control_is_the_reason(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    with app.connection_for_write() as connection:
        implements = connection.transport.implements
        limited = implements.extend(exchange_type=frozenset(["direct"]))
        monkeypatch.setattr(type(connection.transport), "implements", limited)
    problem = running_tasks(target(app), [held_by("t-1")]).problem
    assert problem == "the broker has no remote control"


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ({"args": "(42,)", "kwargs": "{}"}, "(42,)"),
        ({"args": "()", "kwargs": "{'a': 1}"}, "{'a': 1}"),
        ({"args": "(1,)", "kwargs": "{'a': 1}"}, "(1,) {'a': 1}"),
        ({"args": "()", "kwargs": "{}"}, "()"),
        ({"args": "('*****',)", "kwargs": "{}"}, "('*****',)"),
        ({"args": "", "kwargs": ""}, "not told by the publisher"),
        ({}, "not told by the publisher"),
        ({"args": "x" * 500, "kwargs": "{}"}, "x" * 100 + "… (500 characters)"),
        ({"args": "\x1b[2J", "kwargs": ""}, r"\x1b[2J"),
    ],
)
def test_arguments_are_those_the_publisher_shows(told: dict[str, object], shown: str) -> None:
    assert arguments_in(told) == shown


def test_a_watch_asks_again_after_two_seconds(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    told, now = Told(app, monkeypatch, {"w1@a": [active("t-1")]}), [100.0]
    watch = Watch(target(app), lambda: now[0])
    lock = held_by("t-1")
    assert watch.tell([held_by("t-1", is_reservation=True)]).problem is None
    assert watch.tell([lock]).problem is None
    assert str(lock.execution) == "w1@a (pid 7)"
    now[0] += 1.9
    watch.tell([lock])
    assert told.asked == 1
    told.answers = {"w2@b": [active("t-1")]}
    now[0] += 0.1

    def is_renewed() -> bool:
        watch.tell([lock])
        return str(lock.execution) == "w2@b (pid 7)"

    eventually(is_renewed)
    assert told.asked == 2
