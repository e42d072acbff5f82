"""One `Hold` for many blocks, on simulated nodes: nested, in threads, left in any order."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from celery_redlock.redlock import LeaseLost, LockHeld, Redlock
from celery_redlock.redlock.events import Event, Lost
from celery_redlock.redlock.hold import Hold
from celery_redlock.redlock.lease import Lease
from tests.support.fakes.simulated_network import Network

Leave = Callable[[], object]
Enter = Callable[[Hold], tuple[Lease, Leave]]


@pytest.fixture
def hold(redlock: Redlock) -> Hold:
    return redlock.lock("k", ttl=30.0)


# ---- how blocks are entered


def block(hold: Hold) -> Generator[Lease]:
    with hold as lease:
        yield lease


def by_with(hold: Hold) -> tuple[Lease, Leave]:
    entered = block(hold)
    return next(entered), lambda: next(entered, None)


def by_a_stack(hold: Hold) -> tuple[Lease, Leave]:
    stack = ExitStack()
    return stack.enter_context(hold), stack.close


def by_a_manager(hold: Hold) -> tuple[Lease, Leave]:
    manager = contextmanager(block)(hold)
    return manager.__enter__(), lambda: manager.__exit__(None, None, None)


def by_its_methods(hold: Hold) -> tuple[Lease, Leave]:
    """As `unittest.TestCase.enterContext` does."""
    leave = type(hold).__exit__
    return type(hold).__enter__(hold), lambda: leave(hold, None, None, None)


def by_hand(hold: Hold) -> tuple[Lease, Leave]:
    return hold.__enter__(), lambda: hold.__exit__(None, None, None)


exact = pytest.mark.parametrize("enter", [by_with, by_a_stack, by_a_manager, by_its_methods])
each = pytest.mark.parametrize("enter", [by_with, by_a_stack, by_hand])


# ---- what is seen


def a_while_later(five: Network, redlock: Redlock, seconds: float = 15.0) -> None:
    """Let the keeper's thread come as it does: once a second at least."""
    end = five.time + seconds
    while five.time < end:
        five.pass_(max(0.001, min(1.0, redlock.keeper.tick() - five.time)))


def lose(five: Network) -> None:
    """Release the lock behind its holder's back."""
    assert five.redlock().drop("k")


def assert_held(five: Network, redlock: Redlock, lease: Lease) -> None:
    a_while_later(five, redlock)
    assert five.holders() == [lease.owner] * 5
    assert lease in redlock.keeper.kept()
    assert not lease.lost


def assert_free(five: Network, redlock: Redlock) -> None:
    a_while_later(five, redlock)
    assert five.holders() == [None] * 5
    assert redlock.keeper.kept() == []


def assert_refused(hold: Hold) -> None:
    with pytest.raises(LockHeld), hold:
        pytest.fail("entered")


def in_a_thread(call: Callable[[], object]) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001  # raised again below
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


# ---- entered again


@each
def test_a_hold_serves_one_block_after_the_other(
    five: Network, redlock: Redlock, hold: Hold, enter: Enter
) -> None:
    tokens = []
    for _ in range(3):
        lease, leave = enter(hold)
        assert_held(five, redlock, lease)
        leave()
        assert_free(five, redlock)
        tokens.append(lease.token)
    assert tokens == sorted(set(tokens))


@each
def test_a_nested_block_that_is_refused_frees_nothing(
    five: Network, redlock: Redlock, hold: Hold, enter: Enter
) -> None:
    lease, leave = enter(hold)
    assert_refused(hold)
    assert_held(five, redlock, lease)
    leave()
    assert_free(five, redlock)


@each
def test_a_thread_that_is_refused_frees_nothing(
    five: Network, redlock: Redlock, hold: Hold, enter: Enter
) -> None:
    lease, leave = enter(hold)
    in_a_thread(lambda: assert_refused(hold))
    assert_held(five, redlock, lease)
    leave()
    assert_free(five, redlock)


@each
def test_a_child_that_is_refused_ends_no_block_of_its_parent(
    five: Network, redlock: Redlock, hold: Hold, enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, leave = enter(hold)
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        assert_refused(hold)
    assert_held(five, redlock, lease)
    leave()
    assert_free(five, redlock)


# ---- left in any order


@exact
@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_lost_block_that_is_left_first_frees_nothing(
    five: Network, redlock: Redlock, hold: Hold, enter: Enter, is_elsewhere: bool
) -> None:
    lost, leave_lost = enter(hold)
    lose(five)
    lease, leave = enter(hold)
    with pytest.raises(LeaseLost):
        in_a_thread(leave_lost) if is_elsewhere else leave_lost()
    assert lost.lost
    assert_held(five, redlock, lease)
    in_a_thread(leave) if is_elsewhere else leave()
    assert not lease.lost
    assert_free(five, redlock)


@each
def test_a_lost_block_that_is_left_last_is_told_of_it(
    five: Network, redlock: Redlock, hold: Hold, enter: Enter
) -> None:
    _, leave_lost = enter(hold)
    lose(five)
    lease, leave = enter(hold)
    leave()
    assert not lease.lost
    assert_free(five, redlock)
    with pytest.raises(LeaseLost):
        leave_lost()


@each
def test_threads_leave_their_own_blocks(
    five: Network, redlock: Redlock, hold: Hold, enter: Enter
) -> None:
    entered: list[tuple[Lease, Leave]] = []
    is_lost, may_leave = threading.Event(), threading.Event()

    def lose_inside() -> None:
        lease, leave = enter(hold)
        entered.append((lease, leave))
        is_lost.set()
        assert may_leave.wait(60)
        with pytest.raises(LeaseLost):
            leave()

    def hold_meanwhile() -> None:
        assert is_lost.wait(60)
        lose(five)
        lease, leave = enter(hold)
        may_leave.set()
        first.join()
        assert_held(five, redlock, lease)
        leave()

    first = threading.Thread(target=lose_inside)
    first.start()
    in_a_thread(hold_meanwhile)
    assert entered[0][0].lost
    assert_free(five, redlock)


@exact
def test_a_child_leaves_its_own_block_and_not_its_parent_s(
    five: Network, redlock: Redlock, hold: Hold, enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    parents, leave_parents = enter(hold)
    redlock.keeper.forget(parents)
    five.expire()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    lease, leave = enter(hold)
    leave_parents()
    assert_held(five, redlock, lease)
    assert not parents.is_released
    leave()
    assert_free(five, redlock)


def test_a_child_leaves_by_hand_the_block_that_it_entered(
    five: Network, redlock: Redlock, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    parents, leave_parents = by_hand(hold)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    leave_parents()
    assert five.holders() == [parents.owner] * 5
    redlock.keeper.forget(parents)
    five.expire()
    by_hand(hold)[1]()
    assert_free(five, redlock)
    assert not parents.is_released


def test_a_block_by_hand_is_left_by_another_thread(
    five: Network, redlock: Redlock, hold: Hold
) -> None:
    lost, leave = by_hand(hold)
    lose(five)
    lease, _ = by_hand(hold)
    with pytest.raises(LeaseLost):
        in_a_thread(leave)
    assert lost.lost, "the older one: it can't have the lock any more"
    assert_held(five, redlock, lease)
    in_a_thread(leave)
    assert_free(five, redlock)


def test_an_exit_that_is_called_twice_leaves_one_block(
    five: Network, redlock: Redlock, hold: Hold
) -> None:
    lease, leave = by_its_methods(hold)
    leave()
    other, leave_other = by_hand(hold)
    leave()
    assert lease.is_released
    assert_held(five, redlock, other)
    leave_other()
    assert_free(five, redlock)


def test_methods_that_are_kept_serve_one_block_after_the_other(
    five: Network, redlock: Redlock, hold: Hold
) -> None:
    enter, leave = hold.__enter__, hold.__exit__
    for _ in range(3):
        assert_held(five, redlock, enter())
        leave(None, None, None)
        assert_free(five, redlock)


def test_a_method_that_is_kept_leaves_the_block_after_one_that_was_refused(
    five: Network, redlock: Redlock, hold: Hold
) -> None:
    enter, leave = hold.__enter__, hold.__exit__
    holder = redlock.acquire("k", ttl=30.0)
    with pytest.raises(LockHeld):
        enter()
    holder.release()
    lease = enter()
    leave(None, None, None)
    assert lease.is_released
    assert_free(five, redlock)


def test_a_child_leaves_by_a_method_that_is_kept_the_block_that_it_entered(
    five: Network, redlock: Redlock, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter, leave = hold.__enter__, hold.__exit__
    parents = enter()
    redlock.keeper.forget(parents)
    five.expire()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    lease = enter()
    leave(None, None, None)
    assert lease.is_released
    assert not parents.is_released
    assert_free(five, redlock)


def test_cleanups_that_are_kept_are_not_the_exit_of_the_next_block(
    five: Network, redlock: Redlock, hold: Hold
) -> None:
    kept = []
    for _ in range(3):
        hold.__enter__()
        kept.append(hold.__exit__)
        kept[-1](None, None, None)
        assert_free(five, redlock)


def test_a_cleanup_that_is_forgotten_leaves_the_next_block_alone(
    five: Network, redlock: Redlock, hold: Hold
) -> None:
    hold.__enter__()
    kept = hold.__exit__
    kept(None, None, None)
    lease = hold.__enter__()
    del kept
    a_while_later(five, redlock)
    assert_held(five, redlock, lease)
    hold.__exit__(None, None, None)
    assert_free(five, redlock)


def test_the_exit_of_a_block_leaves_none_that_was_entered_by_hand_inside(
    five: Network, redlock: Redlock, hold: Hold
) -> None:
    enter, leave = hold.__enter__, hold.__exit__
    first = enter()
    lose(five)
    second = hold.__enter__()
    leave(ValueError, None, None)
    assert first.is_released
    assert_held(five, redlock, second)
    leave(None, None, None)
    assert_free(five, redlock)


def test_a_method_that_is_kept_leaves_no_block_of_another_thread(
    five: Network, redlock: Redlock, hold: Hold
) -> None:
    leases: list[Lease] = []
    enter, leave = hold.__enter__, hold.__exit__
    enter()
    leave(None, None, None)
    in_a_thread(lambda: leases.append(hold.__enter__()))
    leave(None, None, None)
    assert_held(five, redlock, leases[0])
    hold.__exit__(None, None, None)
    assert_free(five, redlock)


def test_a_with_block_is_left_by_no_exit_but_its_own(
    five: Network, redlock: Redlock, hold: Hold
) -> None:
    with hold as lease:
        in_a_thread(lambda: hold.__exit__(None, None, None))
        hold.__exit__(None, None, None)
        with ExitStack() as stack:
            stack.push(hold)
            with pytest.raises(LockHeld):
                hold.__enter__()
        assert_held(five, redlock, lease)
    assert_free(five, redlock)


def test_an_exit_of_the_class_leaves_nothing_by_itself(
    five: Network, redlock: Redlock, hold: Hold
) -> None:
    with hold as lease:
        Hold.__exit__(None, None, None)  # type: ignore[arg-type]
        assert_held(five, redlock, lease)


def test_an_error_in_a_stack_is_raised_though_the_lease_is_lost(five: Network, hold: Hold) -> None:
    def fail() -> None:
        with ExitStack() as stack:
            stack.enter_context(hold)
            lose(five)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


def test_an_exit_that_was_pushed_is_not_that_of_another_hold(
    five: Network, redlock: Redlock
) -> None:
    pushed, other = redlock.lock("pushed"), redlock.lock("k")
    with ExitStack() as stack:
        pushed.__enter__()
        stack.push(pushed)
        lease = other.__enter__()
    del stack
    assert not redlock.locked("pushed")
    assert_held(five, redlock, lease)
    other.__exit__(None, None, None)
    assert_free(five, redlock)


def test_the_exit_of_another_hold_leaves_its_own_block(five: Network, redlock: Redlock) -> None:
    hold, other = redlock.lock("k"), redlock.lock("other")
    kept = type(other).__exit__
    lease = type(hold).__enter__(hold)
    kept(other, None, None, None)
    assert_held(five, redlock, lease)
    del kept
    assert_free(five, redlock)


def test_an_exit_looked_up_by_hand_is_not_that_of_another_hold(
    five: Network, redlock: Redlock
) -> None:
    hold, other = redlock.lock("k"), redlock.lock("other")
    kept = other.__exit__
    lease = hold.__enter__()
    assert_held(five, redlock, lease)
    hold.__exit__(None, None, None)
    assert_free(five, redlock)
    kept(None, None, None)


def test_a_lost_block_by_hand_that_ends_with_an_error_keeps_it(five: Network, hold: Hold) -> None:
    by_hand(hold)
    lose(five)
    hold.__exit__(ValueError, None, None)


def test_a_child_leaves_the_lost_block_of_its_parent_in_silence(
    five: Network, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, leave = by_with(hold)
    five.pass_(lease.remaining() + 1)
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        leave()
    assert not lease.is_released


def test_a_child_s_thread_leaves_a_block_of_another_by_hand(
    five: Network, redlock: Redlock, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    parents, _ = by_hand(hold)
    redlock.keeper.forget(parents)
    five.expire()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    _, leave = by_hand(hold)
    in_a_thread(leave)
    assert_free(five, redlock)


# ---- an interrupt strikes


class StruckList(list[Any]):
    """A list in whose methods a signal handler runs once, before `remove` or after `append`."""

    def __init__(self, handler: Callable[[], object]) -> None:
        super().__init__()
        self.handler: Callable[[], object] | None = handler

    def strike(self) -> None:
        handler, self.handler = self.handler, None
        if handler:
            handler()

    def append(self, block: object) -> None:
        super().append(block)
        self.strike()

    def remove(self, block: object) -> None:
        self.strike()
        super().remove(block)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_block_struck_on_entry_gives_its_lease_back(
    five: Network, redlock: Redlock, hold: Hold, seen: list[Event]
) -> None:
    hold._settle = interrupt
    with pytest.raises(KeyboardInterrupt), hold:
        pytest.fail("entered")
    assert_free(five, redlock)
    assert not any(isinstance(event, Lost) for event in seen)


def test_a_block_by_hand_that_was_struck_is_not_left(
    five: Network, redlock: Redlock, hold: Hold
) -> None:
    hold._by_hand = StruckList(interrupt)
    with pytest.raises(KeyboardInterrupt):
        by_hand(hold)
    assert_free(five, redlock)
    _, leave = by_hand(hold)
    in_a_thread(leave)
    assert_free(five, redlock)


def test_a_handler_and_its_thread_leave_a_block_by_hand_once(
    five: Network, redlock: Redlock, hold: Hold
) -> None:
    _, leave = by_hand(hold)
    blocks, hold._by_hand = hold._by_hand, StruckList(leave)
    hold._by_hand.extend(blocks)
    leave()
    assert_free(five, redlock)


# ---- blocks that nobody is going to leave


@exact
def test_a_block_that_nobody_can_leave_is_released(
    five: Network, redlock: Redlock, hold: Hold, enter: Enter
) -> None:
    _, leave = enter(hold)
    del leave
    assert_free(five, redlock)
    with hold as lease:
        assert_held(five, redlock, lease)


def test_a_block_by_hand_lasts_as_long_as_its_hold(five: Network, redlock: Redlock) -> None:
    hold = redlock.lock("k")
    lease = hold.__enter__()
    assert_held(five, redlock, lease)
    del hold
    assert_free(five, redlock)


def test_a_handler_that_holds_between_leaves_its_own_block(
    five: Network, redlock: Redlock, hold: Hold
) -> None:
    leave = type(hold).__exit__
    with hold:  # as in a signal handler, before the other block is entered
        pass
    lease = hold.__enter__()
    assert_held(five, redlock, lease)
    leave(hold, None, None, None)
    assert lease.is_released
    assert_free(five, redlock)


def leased(redlock: Redlock) -> Lease:
    return redlock.acquire("k", ttl=30.0)


def entered(redlock: Redlock) -> Lease:
    return redlock.lock("k", ttl=30.0).__enter__()


def release(lease: Lease) -> None:
    lease.release()


def leave_a_block_of_its_own(lease: Lease) -> None:
    with lease:
        pass


@pytest.mark.parametrize("end", [release, leave_a_block_of_its_own])
@pytest.mark.parametrize("start", [leased, entered])
def test_a_forked_child_does_not_release_the_lease_of_its_parent(
    redlock: Redlock,
    monkeypatch: pytest.MonkeyPatch,
    start: Callable[[Redlock], Lease],
    end: Callable[[Lease], None],
) -> None:
    lease = start(redlock)
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: 1)
        end(lease)
    assert redlock.locked("k")
    assert not lease.is_released
    lease.release()
    assert not redlock.locked("k")
