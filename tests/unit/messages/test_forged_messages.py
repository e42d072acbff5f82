"""What a message can't do, whatever is written in it: switch its lock off, or choose its token."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from celery import Celery

from celery_redlock import SingletonTask
from celery_redlock.messages.headers import RESERVATION_HEADER as HEADER
from tests.support.fakes.forged import deliver
from tests.support.fakes.one_node import OneNode

NewTask = Callable[..., Any]
HOLDER = f"{'0' * 32}:holder@host"
WAITING = f"{'1' * 32}~:waiting@host"
NOBODY = f"{'2' * 32}~:nobody@host"
SURROGATE = "\ud800"
FORGED_RUNS: list[object] = [None, 0, "", "x", {}, True]


@pytest.fixture
def new_task(app: Celery) -> NewTask:
    """Make a task that takes down what it is called with: `new_task(**options)`."""

    def new(base: type[Any] = SingletonTask, **options: Any) -> Any:
        calls: list[Any] = []

        @app.task(bind=True, base=base, name="t", lock_key=[], **options)
        def body(self: Any, *, fencing_token: int | None = None, **more: Any) -> None:
            calls.append((fencing_token, self.lease, more))

        body.calls = calls
        return body

    return new


@pytest.mark.parametrize("name", ["redlock_run", "called_directly", "_protected", "is_eager"])
@pytest.mark.parametrize("value", FORGED_RUNS, ids=repr)
@pytest.mark.parametrize("where", ["headers", "embed"])
def test_no_header_switches_the_lock_off(
    new_task: NewTask, node: OneNode, name: str, value: object, where: str
) -> None:
    task = new_task()
    node.held["t"] = HOLDER, 1e9
    forged = {name: value}
    deliver(task, **(forged if where == "headers" else {"embed": forged}))
    assert task.calls == []
    assert node.owner_of("t") == HOLDER


@pytest.mark.parametrize("base", ["SingletonTask", "own __call__", "own __call__ below"])
def test_a_body_that_calls_itself_stays_under_its_lock(
    app: Celery, node: OneNode, base: str
) -> None:
    class Above(SingletonTask):
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

    class Below(app.Task):  # type: ignore[name-defined,misc]
        abstract = True

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            # Celery's own pushes a copy of the request.
            return super().__call__(*args, **kwargs)

    class Both(SingletonTask, Below):
        abstract = True

    bases: dict[str, Any] = {
        "SingletonTask": SingletonTask,
        "own __call__": Above,
        "own __call__ below": Both,
    }
    seen: list[Any] = []

    @app.task(bind=True, base=bases[base], name="t", lock_key=[])
    def body(self: Any, depth: int, *, fencing_token: int) -> None:
        seen.append((depth, fencing_token, self.fencing_token))
        if depth:
            self(depth - 1)

    deliver(body, args=(2,))
    assert seen == [(2, 1, 1), (1, 1, 1), (0, 1, 1)]
    assert node.owner_of("t") is None


def test_an_eager_call_in_a_body_is_an_execution_of_its_own(new_task: NewTask, app: Celery) -> None:
    inner = new_task()

    @app.task(base=SingletonTask, name="outer", lock_key=[])
    def outer() -> None:
        inner.apply(headers={"redlock_run": None})

    deliver(outer)
    [(token, _, _)] = inner.calls
    assert token == 2


def test_a_call_on_another_thread_is_a_plain_call(new_task: NewTask, app: Celery) -> None:
    inner = new_task()

    @app.task(base=SingletonTask, name="outer", lock_key=[])
    def outer() -> None:
        thread = threading.Thread(target=inner)
        thread.start()
        thread.join()

    deliver(outer)
    assert inner.calls == [(None, None, {})]


@pytest.mark.parametrize("is_enabled", [True, False])
def test_a_message_can_not_choose_its_token(
    new_task: NewTask, app: Celery, is_enabled: bool
) -> None:
    app.conf.redlock_enabled = is_enabled
    task = new_task()
    deliver(task, kwargs={"fencing_token": 10**18}, redlock_run=None)
    assert [token for token, *_ in task.calls] in ([], [None])


def test_a_direct_call_may_give_a_token_as_tests_do(new_task: NewTask) -> None:
    task = new_task()
    task(fencing_token=7)
    assert task.calls == [(7, None, {})]


# --- reservations ---------------------------------------------------------------------------------


@pytest.mark.parametrize("lifetime", ["while_executing", "until_executed", "until_executing"])
@pytest.mark.parametrize("key", ["t", "t:other", "t%next"])
def test_a_forged_reservation_does_not_touch_a_running_lock(
    new_task: NewTask, node: OneNode, lifetime: str, key: str
) -> None:
    task = new_task(lock_lifetime=lifetime)
    node.held[key] = HOLDER, 1e9
    deliver(task, **{HEADER: [key, HOLDER]})
    assert node.owner_of(key) == HOLDER
    assert (task.calls == []) is (key == "t")


@pytest.mark.parametrize("key", ["other", "t2:k", "t%3A:k", "", "T:k", "other%next"])
def test_a_forged_reservation_does_not_free_that_of_another_task(
    new_task: NewTask, app: Celery, node: OneNode, key: str
) -> None:
    node.held[key] = WAITING, 1e9
    task = new_task()
    deliver(task, **{HEADER: [key, WAITING]})
    app.conf.redlock_enabled = False
    deliver(task, **{HEADER: [key, WAITING]})
    assert node.owner_of(key) == WAITING


@pytest.mark.parametrize(
    "value",
    [
        None, 0, "x", [], ["t"], ["t", 1], [WAITING, WAITING, "x"], {"t": WAITING},
        ["t:" + SURROGATE, WAITING], ["t", WAITING + SURROGATE], ["t%next", NOBODY + SURROGATE],
        ["t", SURROGATE], ["t", "~:"], ["t", "x" * 32 + "~:a@b"],
    ],
    ids=ascii,
)  # fmt: skip
@pytest.mark.parametrize("lifetime", ["while_executing", "until_executed", "until_executing"])
def test_a_malformed_reservation_is_ignored(
    new_task: NewTask, node: OneNode, value: object, lifetime: str
) -> None:
    task = new_task(lock_lifetime=lifetime)
    deliver(task, **{HEADER: value})
    assert len(task.calls) == 1
    assert node.held == {}


@pytest.mark.parametrize(
    "forged",
    [
        {"id": SURROGATE}, {"retries": SURROGATE}, {"replaced_task_nesting": SURROGATE},
        {"headers": "x"}, {"headers": [1]}, {"headers": 1}, {"embed": {"delivery_info": "x"}},
        {"embed": {"delivery_info": [1]}}, {"headers": {"redlock_publication": SURROGATE}},
        {"headers": {"redlock_publication": {}}}, {"headers": {"x-death": SURROGATE}},
        {"timelimit": "ab"}, {"timelimit": 5}, {"timelimit": [SURROGATE, None]}, {"eta": SURROGATE},
        {"expires": SURROGATE}, {"get": 0}, {"update": 0}, {"children": 0}, {"hostname": SURROGATE},
        {"redlock_serializer": SURROGATE}, {"redlock_copy": SURROGATE}, {"redlock_tick": SURROGATE},
    ],
    ids=ascii,
)  # fmt: skip
@pytest.mark.parametrize("embeds", [False, True])
@pytest.mark.filterwarnings("ignore:Exception raised outside body")  # by Celery
def test_whatever_a_message_says_nothing_stays_locked(
    new_task: NewTask, node: OneNode, forged: dict[str, Any], embeds: bool
) -> None:
    task = new_task(acks_late=True)
    forged = {"headers": {"x-death": []}, **forged}
    with suppress(UnicodeEncodeError):  # Celery can store no result for such an id
        deliver(task, **({"embed": forged} if embeds and "embed" not in forged else forged))
    assert node.held == {}
    deliver(task, id="next")
    assert task.calls
    assert node.held == {}


@pytest.mark.parametrize("limit", [0.001, -1, 0, float("nan"), [], None])
def test_a_message_s_time_limit_does_not_end_the_lock_early(
    new_task: NewTask, app: Celery, limit: Any
) -> None:
    task = new_task(time_limit=600)
    deliver(task, timelimit=[limit, None])
    [(_, lease, _)] = task.calls
    assert lease.hold_until == lease.acquired_at + 600


def test_a_message_s_longer_time_limit_lengthens_the_hold(new_task: NewTask) -> None:
    task = new_task(time_limit=600)
    deliver(task, timelimit=[7200, None])
    [(_, lease, _)] = task.calls
    assert lease.hold_until == lease.acquired_at + 7200


# --- a throttle -----------------------------------------------------------------------------------


@pytest.fixture
def throttled(new_task: NewTask) -> Any:
    return new_task(lock_lifetime="until_expired", lock_ttl=600)


@pytest.mark.parametrize("owner", [NOBODY, WAITING, HOLDER])
def test_a_forged_reservation_does_not_get_past_a_throttle(throttled: Any, owner: str) -> None:
    deliver(throttled, id="first")
    deliver(throttled, id="forged", **{HEADER: ["t", owner]})
    deliver(throttled, id="first", redlock_publication="0123456789abcdef")
    assert len(throttled.calls) == 1
