"""The run that holds a lock is ended by the workers, and the nodes tell what became of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import pytest
from celery import Celery

from celery_redlock.cli.end import end as command
from celery_redlock.operate.ending import (
    SIGNALS,
    Ending,
    Order,
    end,
    end_held_by,
    held_by_nothing,
    run_under,
)
from celery_redlock.operate.lock_view import view_of
from celery_redlock.operate.locks import Lock
from celery_redlock.redlock.errors import RedlockError
from celery_redlock.redlock.lease import owner_id
from celery_redlock.redlock.task_lock import TaskLock
from celery_redlock.worker import ending as of_workers
from tests.support.fakes.operated import Operated

ORDER = Order("alice@ops", "stuck", "KILL")


@pytest.fixture
def redlock(three: Operated) -> TaskLock:
    return three.redlock()


class Workers:
    """Workers that answer, and note what they are asked; the run ends at the `ends_after`-th look.

    Attributes:
        asked: What they were asked.
        answers: What they answer.
        when_asked: What happens when they have been asked; how often that was is given.
        act: What happens at each look at the nodes; how often that was is given.
        pauses: The pauses that were made.
    """

    def __init__(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.answers: list[dict[str, Any]] = []
        self.when_asked: Callable[[int], object] = lambda _: None
        self.act: Callable[[int], object] = lambda _: None
        self.pauses: list[float] = []
        monkeypatch.setattr(app.control, "broadcast", self._broadcast)

    def _broadcast(
        self, command: str, arguments: dict[str, Any], *, connection: Any, reply: bool,
        timeout: float,
    ) -> Any:  # fmt: skip
        assert connection.transport
        assert reply is True
        assert timeout == 2.0
        self.asked.append((command, arguments))
        heard = [{f"celery@{at}": said} for at, said in enumerate(self.answers)]
        self.when_asked(len(self.asked))
        return heard

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.act(len(self.pauses))


@pytest.fixture
def workers(app: Celery, monkeypatch: pytest.MonkeyPatch) -> Workers:
    return Workers(app, monkeypatch)


@pytest.fixture
def act(three: Operated, app: Celery, workers: Workers) -> Callable[[], tuple[Lock, Ending]]:
    """End the run that holds `k`; return the lock, and what became of it."""

    def act() -> tuple[Lock, Ending]:
        target = three.target(app=app)
        with target.nodes() as nodes:
            lock = view_of(nodes, target.key_prefix, "k").lock
            assert lock
            return lock, end(target, nodes, lock, ORDER, workers.sleep)

    return act


HERE = {"ok": "SIGKILL is sent to its process 7", "runs_here": True}
NOT_HERE = {"ok": "k not held by 0123 here"}


def test_the_workers_are_told_the_id_of_the_owner_and_not_the_owner(
    redlock: TaskLock, workers: Workers, act: Any
) -> None:
    lease = redlock.acquire("k", label="task-1")
    workers.answers = [HERE]
    lock, _ = act()
    assert workers.asked == [
        ("redlock_end", {
            "key": "k", "id": lock.id, "author": "alice@ops", "reason": "stuck", "signal": "KILL",
        })
    ]  # fmt: skip
    assert lease.owner not in str(workers.asked)


def test_a_long_reason_is_cut(
    three: Operated, app: Celery, redlock: TaskLock, workers: Workers
) -> None:
    lease = redlock.acquire("k", label="task-1")
    workers.answers = [HERE]
    workers.act = lambda _: redlock.release(lease)
    target = three.target(app=app)
    with target.nodes() as nodes:
        run = run_under(target, nodes, "k")
        assert isinstance(run, Lock)
        end(target, nodes, run, Order("alice@ops", "x" * 501), workers.sleep)
    [(_, arguments)] = workers.asked
    assert arguments["reason"] == "x" * 500


@pytest.mark.parametrize("follower", [None, "task-2", "another holder"])
def test_it_is_ended_when_the_owner_is_gone_from_the_nodes(
    three: Operated, redlock: TaskLock, workers: Workers, act: Any, follower: str | None
) -> None:
    lease = redlock.acquire("k", label="task-1")
    workers.answers = [NOT_HERE, HERE]

    def end_at_the_third(look: int) -> None:
        if look == 3:
            redlock.release(lease)
            if follower == "another holder":
                for number in range(3):
                    three[number].take("an owner that names nobody")
            elif follower:
                redlock.acquire("k", label=follower)

    workers.act = end_at_the_third
    _, became = act()
    assert became.is_ended
    assert len(workers.pauses) == 3
    assert became.outcome.startswith(f"Ended: {follower or 'nobody has the lock'}")


def test_while_one_node_still_names_the_owner_it_is_not_ended(
    three: Operated, redlock: TaskLock, workers: Workers, act: Any
) -> None:
    redlock.acquire("k", label="task-1")
    workers.answers = [HERE]

    def leave_one(_: int) -> None:
        three[0].expire("k")
        three[1].expire("k")

    workers.act = leave_one
    _, became = act()
    assert not became.is_ended


def test_a_run_that_goes_on_is_told_with_the_workers_answer(
    redlock: TaskLock, workers: Workers, act: Any
) -> None:
    redlock.acquire("k", label="task-1")
    workers.answers = [NOT_HERE, HERE, HERE]
    _, became = act()
    assert not became.is_ended
    did = "SIGKILL is sent to its process 7"
    assert became.outcome.startswith(
        f"Still held: worker celery@1: {did}; worker celery@2: {did}; the lock has not been"
    )
    assert sum(workers.pauses) == pytest.approx(10.0)


def test_a_worker_that_did_not_hear_it_is_asked_once_more(
    redlock: TaskLock, workers: Workers, act: Any
) -> None:
    redlock.acquire("k", label="task-1")

    def hear(_: int) -> None:
        workers.answers = [HERE]

    workers.when_asked = hear
    _, became = act()
    assert len(workers.asked) == 2
    assert workers.asked[0] == workers.asked[1]
    assert became.outcome.startswith("Still held: worker celery@0: SIGKILL is sent")


def test_nobody_is_asked_again_for_a_run_that_has_ended(
    redlock: TaskLock, workers: Workers, act: Any
) -> None:
    lease = redlock.acquire("k", label="task-1")
    workers.when_asked = lambda _: redlock.release(lease)
    _, became = act()
    assert len(workers.asked) == 1
    assert became.outcome.startswith("Not known to have ended: nobody has the lock now")


@pytest.mark.parametrize("follower", [None, "task-1"])
def test_a_lease_that_expires_unanswered_is_not_called_ended(
    three: Operated, redlock: TaskLock, workers: Workers, act: Any, follower: str | None
) -> None:
    lease = redlock.acquire("k", label="task-1")

    def outlive_it(look: int) -> None:
        if look == 2:
            redlock.release(lease)
            if follower:
                redlock.acquire("k", label=follower)

    workers.act = outlive_it
    _, became = act()
    assert not became.is_ended
    assert "no worker has answered that it ended the run" in became.outcome
    assert "its message may come again" in became.outcome
    assert (f"{follower}@" in became.outcome) is (follower is not None)


@pytest.mark.parametrize("answers", [[], [NOT_HERE], [None, "x"]], ids=str)
def test_if_no_worker_runs_it_the_reasons_are_named(
    redlock: TaskLock, workers: Workers, act: Any, answers: Any
) -> None:
    redlock.acquire("k", label="task-1")
    workers.answers = answers
    _, became = act()
    assert not became.is_ended
    assert became.outcome.startswith("Still held: no worker has answered that it runs it.")
    for reason in ("solo pool hears no command", "worker is dead", "lock_min_hold keeps"):
        assert reason in became.outcome


def test_a_worker_that_refuses_is_not_waited_for(
    redlock: TaskLock, workers: Workers, act: Any
) -> None:
    redlock.acquire("k", label="task-1")
    workers.answers = [NOT_HERE, *[{"error": "it is so\x1b", "runs_here": True}] * 2]
    _, became = act()
    assert became == Ending(
        "Not ended: worker celery@1: it is so\x1b; worker celery@2: it is so\x1b"
    )
    assert workers.pauses == []


@pytest.mark.parametrize(
    ("answering", "is_gone", "says"),
    [
        (1, False, "Not known to have ended: 1 of 3 nodes answered"),
        (1, True, "Not known to have ended: 1 of 3 nodes answered"),
        (2, False, "Still held: worker celery@0"),
        (2, True, "Ended: nobody has the lock now"),
    ],
)
def test_without_a_quorum_the_outcome_is_unknown(
    three: Operated, redlock: TaskLock, workers: Workers, act: Any,
    answering: int, is_gone: bool, says: str,
) -> None:  # fmt: skip
    redlock.acquire("k", label="task-1")
    workers.answers = [HERE]

    def go_down(_: int) -> None:
        for number in range(answering, 3):
            three[number].is_up = False
        if is_gone:
            three.expire()

    workers.act = go_down
    _, became = act()
    assert became.outcome.startswith(says)
    assert became.is_ended is says.startswith("Ended")


def test_a_broker_without_remote_control_is_an_error(
    app: Celery, redlock: TaskLock, workers: Workers, act: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    redlock.acquire("k", label="task-1")
    with app.connection_for_write() as connection:
        implements = connection.transport.implements
        limited = implements.extend(exchange_type=frozenset(["direct"]))
        monkeypatch.setattr(type(connection.transport), "implements", limited)
        with pytest.raises(RedlockError, match="the broker has no remote control"):
            act()
    assert workers.asked == []


def test_a_broker_that_is_down_is_an_error_without_its_password(
    app: Celery, redlock: TaskLock, act: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    redlock.acquire("k", label="task-1")

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("redis://:secret@host")

    monkeypatch.setattr(app.control, "broadcast", fail)
    with pytest.raises(RedlockError, match=r"^the workers could not be asked: OSError$"):
        act()


# ---- as it was shown


@pytest.fixture
def act_on(three: Operated, app: Celery, workers: Workers) -> Callable[..., Ending]:
    """End the run that holds `k`, if it is the one with this id: `act_on(id, signal=…)`."""

    def act_on(expected: str, signal: str = "TERM", app: Celery | None = app) -> Ending:
        target, order = three.target(app=app), Order("alice@ops", "", signal)
        with target.nodes() as nodes:
            return end_held_by(target, nodes, "k", expected, order, workers.sleep)

    return act_on


def test_the_run_that_was_shown_is_ended(
    redlock: TaskLock, workers: Workers, act_on: Callable[..., Ending]
) -> None:
    lease = redlock.acquire("k", label="task-1")
    workers.answers = [HERE]
    workers.act = lambda _: redlock.release(lease)
    assert act_on(owner_id(lease.owner)).is_ended
    assert [arguments["signal"] for _, arguments in workers.asked] == ["TERM"]


def test_what_was_not_shown_is_not_ended(
    redlock: TaskLock, workers: Workers, act_on: Callable[..., Ending]
) -> None:
    assert act_on("0" * 12) == Ending("Not ended: nobody holds it")
    held = owner_id(redlock.acquire("k", label="task-1").owner)
    assert act_on("0" * 12) == Ending("Not ended: it has another holder by now")
    assert act_on("") == Ending("Not ended: it has another holder by now")
    assert act_on(held, app=None) == Ending("Not ended: without an app, no worker can be told")
    assert act_on(held, signal="HUP") == Ending("Not ended: the signal must be one of TERM, KILL")
    assert workers.asked == []


def test_the_signals_are_those_of_workers_and_of_the_command() -> None:
    assert of_workers.SIGNALS == SIGNALS
    [option] = [one for one in command.params if one.name == "signal"]
    assert isinstance(option.type, click.Choice)
    assert (tuple(option.type.choices), option.default) == (SIGNALS, SIGNALS[0])


def test_a_run_is_found_under_its_key(three: Operated, app: Celery, redlock: TaskLock) -> None:
    target = three.target(app=app)
    with target.nodes() as nodes:
        assert run_under(target, nodes, "k") == "nobody holds it"
        lease = redlock.acquire("k", label="task-1")
        run = run_under(target, nodes, "k")
        assert isinstance(run, Lock)
        assert run.owner == lease.owner
        assert isinstance(run_under(three.target(), nodes, "k"), str)
        redlock.release(lease)
        three[0].is_up = three[1].is_up = False
        assert run_under(target, nodes, "k") == "its holder is unknown (1 of 3 answered)"


# ---- what no run holds


def what_is_under(three: Operated, key: str) -> tuple[str, str] | None:
    target = three.target()
    with target.nodes() as nodes:
        nothing = held_by_nothing(view_of(nodes, target.key_prefix, key))
    return nothing and (nothing[0], nothing[1].key)


def test_a_lease_of_a_run_can_be_ended(three: Operated, redlock: TaskLock) -> None:
    assert what_is_under(three, "k") is None
    redlock.acquire("k", label="task-1")
    assert what_is_under(three, "k") is None


@pytest.mark.parametrize(
    ("key", "is_period", "says"),
    [
        ("k", False, "a reservation, whose message waits"),
        ("k%next", False, "a pending slot, whose message waits"),
        ("k", True, "the period of a throttle"),
    ],
)
def test_what_is_reserved_is_to_be_released_instead(
    three: Operated, redlock: TaskLock, key: str, is_period: bool, says: str
) -> None:
    redlock.reserve(key, 60, label="task-1", is_period=is_period)
    assert what_is_under(three, key) == (says, key)
    target = three.target(app=Celery(set_as_current=False))
    with target.nodes() as nodes:
        assert run_under(target, nodes, key) == f"it is {says}"


def test_of_a_free_key_its_pending_slot_or_done_mark_is_named(
    three: Operated, redlock: TaskLock
) -> None:
    redlock.mark_done("k", "task-1/0/abc")
    assert what_is_under(three, "k") == ("a done mark", "k")
    redlock.reserve("k%next", 60, label="task-1")
    assert what_is_under(three, "k") == ("a pending slot, whose message waits", "k%next")
