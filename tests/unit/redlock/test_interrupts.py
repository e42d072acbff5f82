"""Whatever line an exception strikes: somebody answers for the lock, and it is free soon.

On simulated nodes; the same with real ones is in tests/integration.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from celery_redlock.redlock import QuorumUnavailable
from celery_redlock.redlock.attempt import Attempt
from celery_redlock.redlock.errors import LeaseLost, LockHeld, RedlockError
from celery_redlock.redlock.events import Acquired, Refused, Released
from celery_redlock.redlock.lease import Lease
from celery_redlock.redlock.task_lock import TaskLock
from tests.support.fakes.simulated_network import Network
from tests.support.faults.strikes import Striker, Struck, strikes

SOON_S = 5.0


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    return Network(3, monkeypatch)


@pytest.fixture
def redlock(network: Network) -> Iterator[TaskLock]:
    redlock = network.redlock()
    yield redlock
    redlock.close()


def a_while_later(network: Network, redlock: TaskLock, seconds: float = SOON_S) -> None:
    """Let the keeper's thread come as it does: once a second at least."""
    end = network.now() + seconds
    while network.now() < end:
        at = redlock.keeper.tick()
        network.pass_(max(0.001, min(1.0, at - network.now(), end - network.now())))


def assert_nothing_is_left(network: Network, redlock: TaskLock, key: str, where: str) -> None:
    a_while_later(network, redlock)
    assert network.holders(key) == [None] * 3, where
    assert redlock.keeper.kept() == [], where
    assert not redlock.keeper._releases, where


def hold(redlock: TaskLock, key: str) -> None:
    with redlock.lock(key) as lease:
        assert lease.remaining() > 0


def acquire_and_release(redlock: TaskLock, key: str) -> None:
    lease = redlock.acquire(key)
    redlock.release(lease)


def slow(network: Network) -> None:
    network.nodes[0].delay = 0.3


def late(network: Network) -> None:
    network.nodes[0].delay = network.nodes[1].delay = 0.3


@pytest.mark.parametrize(
    ("trouble", "opcodes"),
    [
        pytest.param(None, False, id="lines"),
        pytest.param(None, True, id="opcodes", marks=pytest.mark.long),
        pytest.param(slow, False, id="slow"),
        pytest.param(late, False, id="late"),
    ],
)
def test_a_struck_block_leaves_nothing_behind(
    network: Network, redlock: TaskLock, trouble: Callable[[Network], None] | None, opcodes: bool
) -> None:
    if trouble:
        trouble(network)
    count = 0

    def call(at: int) -> None:
        try:
            hold(redlock, f"k{at}")
        except QuorumUnavailable:
            assert trouble is late

    for at, raised, where in strikes(call, opcodes=opcodes, step=5 if opcodes else 1):
        assert type(raised) is Struck, f"{raised!r} after a strike at {where}"
        assert_nothing_is_left(network, redlock, f"k{at}", where)
        count += 1
    assert count > 100


@pytest.mark.parametrize("by", ["with", "stack", "outer block"])
@pytest.mark.parametrize("opcodes", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_struck_block_of_a_reused_hold_leaves_nothing(
    network: Network, redlock: TaskLock, by: str, opcodes: bool
) -> None:
    shared = redlock.lock("k")
    lost = ExitStack()
    if by == "outer block":
        lost.enter_context(shared)
        assert network.redlock().drop("k")
        a_while_later(network, redlock, 20)

    def call(at: int) -> None:
        if by == "stack":
            with ExitStack() as stack:
                assert stack.enter_context(shared).remaining() > 0
        else:
            with shared as lease:
                assert lease.remaining() > 0

    for _, raised, where in strikes(call, opcodes=opcodes, step=5 if opcodes else 1):
        assert type(raised) is Struck, f"{raised!r} after a strike at {where}"
        if by == "stack":
            gc.collect(1)  # the frame of a stack that raises refers to itself
        assert_nothing_is_left(network, redlock, "k", where)
    if by == "outer block":
        with pytest.raises(LeaseLost):
            lost.close()


def test_a_refused_block_that_is_struck_leaves_the_other(
    network: Network, redlock: TaskLock
) -> None:
    shared = redlock.lock("k")
    with shared as lease:

        def call(at: int) -> None:
            with suppress(LockHeld), shared:
                pytest.fail("entered")

        for _, raised, where in strikes(call, step=3):
            assert type(raised) is Struck, f"{raised!r} after a strike at {where}"
            a_while_later(network, redlock)
            assert network.holders() == [lease.owner] * 3, where
            assert redlock.keeper.kept() == [lease], where
    assert_nothing_is_left(network, redlock, "k", "the end")


def test_a_struck_attempt_is_released_at_the_keeper_s_next_tick(
    network: Network, redlock: TaskLock
) -> None:
    def strike(*_: Any) -> None:
        raise Struck

    vars(redlock._acquisition)["_lease"] = strike
    with pytest.raises(Struck):
        redlock.acquire("k")
    assert redlock.keeper._releases.next_at() <= network.now()


class TimeLimitError(Exception):
    """As Celery's, an ordinary exception."""


def test_an_ordinary_exception_that_strikes_is_not_swallowed(redlock: TaskLock) -> None:
    for _, raised, where in strikes(lambda at: hold(redlock, f"k{at}"), error=TimeLimitError):
        assert type(raised) is TimeLimitError, f"{raised!r} after a strike at {where}"


@pytest.mark.parametrize("trouble", [None, late])
def test_a_struck_wait_leaves_nothing_behind(
    network: Network, redlock: TaskLock, trouble: Callable[[Network], None] | None
) -> None:
    if trouble:
        trouble(network)

    def call(at: int) -> None:
        for node in network.nodes[1:]:
            node.take("somebody", key=f"k{at}")
        with pytest.raises(RedlockError):
            redlock.acquire(f"k{at}", wait=0.01)

    for at, raised, where in strikes(call, step=3):
        assert type(raised) is Struck, f"{raised!r} after a strike at {where}"
        for node in network.nodes:
            if node.holder(f"k{at}") == "somebody":
                node.expire(f"k{at}")
        assert_nothing_is_left(network, redlock, f"k{at}", where)


def test_a_struck_reservation_leaves_nothing_behind(network: Network, redlock: TaskLock) -> None:
    the_callers: list[str] = []
    for at, raised, where in strikes(lambda at: reserve_and_drop(redlock, f"k{at}")):
        assert type(raised) is Struck, f"{raised!r} after a strike at {where}"
        is_answered_for = bool(redlock.keeper._releases)
        a_while_later(network, redlock)
        if network.holders(f"k{at}") != [None] * 3:
            assert not is_answered_for, where
            the_callers.append(where)
    assert len(the_callers) < 40, "between the two, where it is the caller's"


def reserve_and_drop(redlock: TaskLock, key: str) -> None:
    lease = redlock.reserve(key, 3600)
    redlock.release_owner(key, lease.owner)


def test_a_struck_acquisition_is_never_renewed(network: Network, redlock: TaskLock) -> None:
    stands = []

    for at, raised, where in strikes(lambda at: redlock.acquire(f"k{at}", ttl=30)):
        assert type(raised) is Struck, f"{raised!r} after a strike at {where}"
        a_while_later(network, redlock)
        assert redlock.keeper.kept() == []
        if network.holders(f"k{at}") != [None] * 3:
            stands.append((f"k{at}", where))
    # It was the caller's, who did not get it.
    assert all(re.search(r" in .*(acquire|settle)", where) for _, where in stands), stands
    assert len(stands) <= 3
    a_while_later(network, redlock, 30)
    assert all(network.holders(key) == [None] * 3 for key, _ in stands)


@pytest.mark.parametrize("trouble", [None, slow, late])
def test_a_struck_release_is_finished_by_the_keeper(
    network: Network, redlock: TaskLock, trouble: Callable[[Network], None] | None
) -> None:
    def call(at: int) -> None:
        lease = leases[at]
        if trouble:
            trouble(network)
        try:
            redlock.release(lease)
        except QuorumUnavailable:
            assert trouble is late

    leases = {1: redlock.acquire("k1")}
    not_begun: list[str] = []
    for at, raised, where in strikes(call):
        assert type(raised) is Struck, f"{raised!r} after a strike at {where}"
        for node in network.nodes:
            node.delay = 0.0
        if leases[at].is_released or redlock.keeper._releases:
            assert_nothing_is_left(network, redlock, f"k{at}", where)
        else:
            not_begun.append(where)
        network.time += 31
        leases[at + 1] = redlock.acquire(f"k{at + 1}")
    assert len(not_begun) < 45, "before it answers for anything"


def test_an_attempt_that_was_undone_is_answered_for_no_more(
    network: Network, redlock: TaskLock
) -> None:
    for node in network.nodes[1:]:
        node.take("somebody")
    with pytest.raises(RedlockError):
        redlock.acquire("k")
    assert not redlock.keeper._releases


# ---- a caller that stood still


def test_a_caller_that_stood_still_has_not_got_the_lock(network: Network) -> None:
    redlock = network.redlock()
    lease = redlock._acquisition.acquire(Attempt("k", "", 30_000), None, 0.0)
    a_while_later(network, redlock)
    assert network.holders() == [None] * 3, "the keeper has taken it for gone"
    with pytest.raises(QuorumUnavailable, match="stood still"):
        redlock._acquisition.settle(lease)
    for node in network.nodes:
        node.is_up = False
    with pytest.raises(QuorumUnavailable, match="stood still"):
        redlock._settle(lease)


def test_a_block_of_a_caller_that_stood_still_is_not_entered(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    redlock = network.redlock()
    keep = redlock.keeper.keep

    def stand_still(*args: Any, **how: Any) -> None:
        a_while_later(network, redlock)
        keep(*args, **how)

    monkeypatch.setattr(redlock.keeper, "keep", stand_still)
    with pytest.raises(QuorumUnavailable, match="stood still"), redlock.lock("k"):
        pytest.fail("entered")
    assert redlock.keeper.kept() == []


@pytest.mark.parametrize("is_block", [True, False])
def test_an_observer_that_takes_its_time_costs_no_lock(network: Network, *, is_block: bool) -> None:
    redlock = network.redlock()

    def take_time(event: object) -> None:
        if isinstance(event, Acquired):
            a_while_later(network, redlock)

    redlock.observers.append(take_time)
    if is_block:
        with redlock.lock("k", 30.0) as lease:
            assert network.holders() == [lease.owner] * 3
            assert not lease.lost
    else:
        lease = redlock.acquire("k", 30.0)
        assert network.holders() == [lease.owner] * 3


def test_a_grant_read_after_its_caller_stood_still_is_released(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    redlock = network.redlock()
    slow = network.nodes[0]
    slow.delay = 15.0

    settle = redlock._settle

    def stand_still(lease: Lease) -> None:
        slow.delay = 0.0  # for the keeper, whose connections are its own
        a_while_later(network, redlock)
        settle(lease)

    monkeypatch.setattr(redlock, "_settle", stand_still)
    with pytest.raises(QuorumUnavailable, match="stood still"):
        redlock.acquire("k", 30.0)
    assert not redlock.keeper._releases
    network.pass_(20.0)
    assert network.holders() == [None] * 3


# ---- no thread


def no_thread(run: object, name: object = None) -> None:
    raise RuntimeError("can't start new thread")


def test_without_a_thread_no_lock_is_acquired(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    redlock = network.redlock()
    monkeypatch.setattr("celery_redlock.redlock.threads.dispatch.start_thread", no_thread)
    for _ in range(2):
        with pytest.raises(QuorumUnavailable, match="no thread can be started"):
            redlock.acquire("k")
    assert network.log == []


def test_without_a_thread_a_lock_is_released(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    redlock = network.redlock()
    lease = redlock.acquire("k")
    redlock.keeper.stop()
    monkeypatch.setattr("celery_redlock.redlock.threads.dispatch.start_thread", no_thread)
    network.nodes[0].is_up = False
    redlock.release(lease)
    network.nodes[0].is_up = True
    assert network.holders()[1:] == [None] * 2


# ---- a signal handler that uses the lock itself


def test_a_handler_may_use_the_lock_at_any_line(network: Network, redlock: TaskLock) -> None:
    held = redlock.acquire("handler's")
    point = -2
    while True:
        point += 3
        made: list[int] = []

        def handle(point: int = point, made: list[int] = made) -> None:
            made.append(point)
            with redlock.lock(f"inside-{point}"):
                pass
            redlock.release(held)

        striker = Striker(point, strike=handle)
        with striker:
            hold(redlock, f"k{point}")
        if not made:
            break
    a_while_later(network, redlock)
    assert redlock.keeper.kept() == []
    for at in range(1, point, 3):
        assert network.holders(f"k{at}") == network.holders(f"inside-{at}") == [None] * 3


def test_a_handler_may_use_the_hold_that_it_interrupts(network: Network, redlock: TaskLock) -> None:
    shared = redlock.lock("k")
    count = 0

    def handle() -> None:
        with suppress(RedlockError), shared as lease:
            assert network.holders().count(lease.owner) >= 2

    while True:
        count += 1
        striker = Striker(count, strike=handle)
        with suppress(RedlockError), striker, shared as lease:
            assert network.holders().count(lease.owner) >= 2
        if not striker.where:
            break
        assert_nothing_is_left(network, redlock, "k", striker.where)
    assert count > 100


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("use", [hold, acquire_and_release])
@pytest.mark.parametrize("kind", [Acquired, Released, Refused])
def test_an_observer_that_ends_the_caller_leaves_no_lock(
    network: Network,
    redlock: TaskLock,
    use: Callable[[TaskLock, str], None],
    kind: type,
    error: type[BaseException],
) -> None:
    def end(event: object) -> None:
        if isinstance(event, kind):
            raise error

    if kind is Refused:
        for node in network.nodes:
            node.take("somebody", key="k")
    redlock.observers.append(end)
    with pytest.raises(error):
        use(redlock, "k")
    network.expire(key="k") if kind is Refused else None
    assert_nothing_is_left(network, redlock, "k", kind.__name__)
