"""Which worker and process hold a lock, and with which arguments."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from celery import Celery

from celery_redlock.operate import running, workers
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
    told = running_tasks(target(app), locks)
    reserved = held_by("t-1", is_reservation=True)
    told.tell([*locks, reserved])
    assert reserved.execution is None
    assert [str(lock.execution) for lock in locks] == ["w1@a (pid 7)", "w2@b (pid 7)", "None"]
    assert told.problem is None
    assert told.why_unknown == "no worker that answered runs it"
    assert label_of(long_id) in told.executions


@pytest.mark.parametrize("is_shown", [False, True])
def test_arguments_are_kept_only_if_they_may_be_shown(
    app: Celery, monkeypatch: pytest.MonkeyPatch, *, is_shown: bool
) -> None:
    Told(app, monkeypatch, {"w1@a": [active("t-1")]})
    told = running_tasks(target(app, shows_arguments=is_shown), [held_by("t-1")])
    assert told.executions["t-1"].arguments == ("(42,)" if is_shown else None)
    assert ("42" in repr(told)) is is_shown


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
    unstarted, other = active("t-1", time_start=None), active("t-1", time_start=3.0)
    Told(app, monkeypatch, {"w0@a": [unstarted, late, early, other]})
    found = running_tasks(target(app), [held_by("t-1")]).executions
    assert found["t-1"].pid == 8


def test_a_process_that_is_not_told_is_unknown(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    Told(app, monkeypatch, {"w0@a": [active("t-1", worker_pid="7")]})
    found = running_tasks(target(app), [held_by("t-1")]).executions
    assert str(found["t-1"]) == "w0@a"


def test_nobody_is_asked_about_what_no_worker_runs(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(app, monkeypatch)
    nobody = lock_of("bank.sync:42", [Busy("an owner that names nobody", 1000, T)])
    assert nobody
    locks = [
        held_by("t-1", is_reservation=True), held_by("t-1", is_period=True), held_by("pid-77"),
        nobody,
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


@pytest.mark.parametrize(
    ("broker", "reason"),
    [
        ("redis://127.0.0.1:1", "ConnectionError: Connection refused"),
        ("redis://:sec/ret@host", "ValueError"),
    ],
)
def test_a_broker_that_is_away_is_the_reason(broker: str, reason: str) -> None:
    with Celery("bank", broker=broker, set_as_current=False) as app:
        problem = running_tasks(target(app), [held_by("t-1")]).problem
    assert problem == f"the broker can't be asked ({reason})"


@pytest.mark.timeout(30)
def test_a_broker_that_hangs_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_CONNECT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as frozen:  # its kernel accepts connections
        broker = f"redis://127.0.0.1:{frozen.getsockname()[1]}"
        with Celery("bank", broker=broker, set_as_current=False) as app:
            problem = running_tasks(target(app), [held_by("t-1")]).problem
    assert problem == "the broker can't be asked (TimeoutError)"


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


def test_a_watch_waits_for_the_first_answers_only(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, may_answer, asked = 100.0, threading.Event(), list[str]()
    others, waits = threading.enumerate(), list[float | None]()

    class Noted(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            waits.append(timeout)

    def slowly(*_: object) -> Running:
        asked.append(threading.current_thread().name)
        assert may_answer.wait(60)
        return Running(problem="no worker")

    monkeypatch.setattr(running, "running_tasks", slowly)
    parts = SimpleNamespace(Thread=Noted, Lock=threading.Lock)
    monkeypatch.setattr(running, "threading", parts)
    watch, lock = Watch(target(app), lambda: now), held_by("t-1")
    assert watch.tell([lock]).problem == "the workers have not answered yet"
    assert waits == [running.ANSWER_WITHIN_S]
    assert all(one.daemon for one in threading.enumerate() if one not in others)
    now += 9.0
    assert watch.tell([lock]).problem == "the workers have not answered yet"
    assert len(asked) == 1, "the last question is not answered yet"
    assert len(waits) == 1
    may_answer.set()
    eventually(lambda: watch.tell([lock]).problem == "no worker")
