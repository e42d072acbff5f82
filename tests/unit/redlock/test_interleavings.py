"""The listener, or the keeper, comes in at every line of its callers: no mutex keeps it out.

Each scene is played again and again, with that thread's turn one line later. Whoever waits must be
heard in the end, whoever has work must be served, and nothing may stay when all have left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any, cast

import pytest

from celery_redlock.redlock import Redlock, keeper_thread
from celery_redlock.redlock.errors import LeaseLost
from celery_redlock.redlock.keeper_thread import IDLE_S, KeeperThread
from celery_redlock.redlock.threads import dispatch
from celery_redlock.redlock.transport.channel import Channel
from celery_redlock.redlock.transport.pool import Pool
from celery_redlock.redlock.transport.subscriptions import Message, Subscriptions
from celery_redlock.redlock.waiters import Waiters
from celery_redlock.redlock.waiting import POLL_S, Waiter
from tests.support.fakes import waiters_stage
from tests.support.fakes.beside import Beside
from tests.support.fakes.fake_clock import FakeClock
from tests.support.fakes.simulated_network import Network
from tests.support.faults.strikes import strikers

QUORUM = 2
KEY = "k"


class Heard:
    """Subscriptions of one listener, which hears what the scene has published."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._followed: set[str] = set()
        self.lost = 0

    def hear(self, _seconds: float) -> list[Message]:
        self._scene.beside.wait()
        messages, self._scene.published = self._scene.published, []
        return [one for one in messages if one.channel in self._followed]

    def follow(self, channels: AbstractSet[str]) -> None:
        self._followed = set(channels)

    def reaches_quorum(self, channel: str) -> bool:
        return channel in self._followed

    def wake(self) -> None:
        """Do nothing: it has its turn anyway."""

    disown = close = wake


class Wakeups(waiters_stage.Wakeups):
    """Wakeups of a waiter: while it waits for one, the listener has a turn."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene.clock)
        self._beside = scene.beside

    def get(self, timeout: float = 0.0) -> None:
        self._beside.turn()
        super().get(timeout)


class Scene:
    """Waiters of a process, whose listener has its turn where the scene says."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.clock = FakeClock()
        self.beside = Beside()
        self.published: list[Message] = []
        self.waiters = Waiters(self.clock, QUORUM, lambda: cast(Subscriptions, Heard(self)))
        patch.setattr(dispatch, "start_beside", self.beside.start)

    def waiter(self) -> Waiter:
        waiter = Waiter(self.waiters, KEY)
        waiter.wakeups = cast(Any, Wakeups(self))
        return waiter

    def publish(self, token: int = 1) -> None:
        self.published += [Message(node, KEY, b"%d 1" % token) for node in range(QUORUM)]

    def be_heard(self, waiter: Waiter) -> None:
        """Wait, as one that polls does; fail if releases are not heard soon."""
        for _ in range(12):
            waiter.wait(0.3)
            waiter.has_asked(self.clock.now())
            self.beside.turn()
        assert waiter.place(), "its listener is gone"

    def end(self, *waiters: Waiter) -> None:
        """Let all leave; fail if anything stays for long."""
        for waiter in waiters:
            waiter.leave()
        for _ in range(8):
            self.clock.move(1.0)
            self.beside.turn()
        assert self.beside.count == 0
        assert self.waiters.queues == {}
        assert self.waiters._listeners == {}


Play = Callable[[], object]
SCENES: dict[str, Callable[[Scene], tuple[Play, Play]]] = {}
"""Of each, what is done while the listener comes in at a line, and what is judged then."""


KEEPER_SCENES: dict[str, Callable[[KeeperScene], Play]] = {}


def keeper_scene(make: Callable[[KeeperScene], Play]) -> Callable[[KeeperScene], Play]:
    KEEPER_SCENES[make.__name__.strip("_").replace("_", " ")] = make
    return make


def scene(make: Callable[[Scene], tuple[Play, Play]]) -> Callable[[Scene], tuple[Play, Play]]:
    SCENES[make.__name__.strip("_").replace("_", " ")] = make
    return make


@scene
def _the_first_waits(scene: Scene) -> tuple[Play, Play]:
    waiter = scene.waiter()

    def judge() -> None:
        scene.be_heard(waiter)
        scene.end(waiter)

    return lambda: waiter.wait(0.0), judge


@scene
def _one_comes_as_the_last_leaves(scene: Scene) -> tuple[Play, Play]:
    last, next_one = scene.waiter(), scene.waiter()
    scene.be_heard(last)

    def play() -> None:
        last.leave()
        next_one.wait(0.0)

    def judge() -> None:
        scene.be_heard(next_one)
        scene.end(next_one)

    return play, judge


@scene
def _one_comes_as_the_listener_ends(scene: Scene) -> tuple[Play, Play]:
    last, next_one = scene.waiter(), scene.waiter()
    scene.be_heard(last)
    last.leave()
    scene.clock.move(60.0)

    def judge() -> None:
        scene.be_heard(next_one)
        scene.end(next_one)

    return lambda: next_one.wait(0.0), judge


@scene
def _the_listener_is_closed(scene: Scene) -> tuple[Play, Play]:
    waiter = scene.waiter()
    scene.be_heard(waiter)

    def play() -> None:
        scene.waiters.close()
        waiter.wait(0.0)

    def judge() -> None:
        scene.be_heard(waiter)
        scene.end(waiter)

    return play, judge


@scene
def _the_lock_is_released(scene: Scene) -> tuple[Play, Play]:
    waiter = scene.waiter()
    scene.be_heard(waiter)
    scene.publish()
    began = scene.clock.now()

    def judge() -> None:
        assert scene.clock.now() < began + POLL_S, "the release was not heard"
        scene.end(waiter)

    return lambda: waiter.wait(2 * POLL_S), judge


@scene
def _the_oldest_leaves_with_its_turn(scene: Scene) -> tuple[Play, Play]:
    oldest, second = scene.waiter(), scene.waiter()
    scene.be_heard(oldest)
    scene.be_heard(second)
    scene.publish()
    scene.beside.turn()

    def judge() -> None:
        began = scene.clock.now()
        second.wait(2 * POLL_S)
        assert scene.clock.now() < began + POLL_S, "nobody asks after the release"
        scene.end(second)

    return oldest.leave, judge


class KeeperScene:
    """A keeper's thread, and the times at which its work is due."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.clock = FakeClock()
        self.beside = Beside()
        self.due: list[float] = []
        patch.setattr(dispatch, "start_thread", self.beside.start)
        patch.setattr(keeper_thread, "Wakeup", lambda: Sleep(self.beside))
        self.thread = KeeperThread(
            self.clock, self._tick, lambda: min(self.due, default=math.inf), lambda: bool(self.due)
        )

    def _tick(self) -> float:
        self.due = [one for one in self.due if one > self.clock.now()]
        return min(self.due, default=math.inf)

    def add(self) -> None:
        """Add work, as whoever acquires a lock does."""
        self.thread.start()
        self.due.append(due_at := self.clock.now() + 0.5)
        self.thread.wake(due_at)

    def judge(self) -> None:
        """Fail if the work is not done, or the thread then stays for ever."""
        for _ in range(4):
            self.clock.move(0.5)
            self.beside.turn()
        assert self.due == [], "nobody does it"
        for _ in range(3):
            self.clock.move(IDLE_S)
            self.beside.turn()
        assert self.beside.count == 0


class Sleep:
    """Sleep of a keeper: until its next turn."""

    def __init__(self, beside: Beside) -> None:
        self._beside = beside

    def wait(self, _seconds: float) -> None:
        self._beside.wait()

    def wake(self) -> None:
        """Do nothing: it has its turn anyway."""


@keeper_scene
def _the_first_work_comes(scene: KeeperScene) -> Play:
    return scene.add


@keeper_scene
def _work_comes_as_the_keeper_ends(scene: KeeperScene) -> Play:
    scene.add()
    scene.beside.turn()
    scene.clock.move(2 * IDLE_S)
    scene.due.clear()
    return scene.add


@keeper_scene
def _work_comes_after_the_keeper_was_stopped(scene: KeeperScene) -> Play:
    scene.add()
    scene.beside.turn()

    def play() -> None:
        scene.thread.stop()
        scene.add()

    return play


class Lent(Channel):
    """A channel without connections, which notes whether two have it at a time."""

    def __init__(self) -> None:
        self.is_closed = self.is_lent = False

    def prepare(self, patience: float | None = None, *, needs_votes: bool = True) -> None:
        assert not self.is_lent, "lent to two at a time"
        assert not self.is_closed
        self.is_lent = True

    def is_unused(self, seconds: float) -> bool:
        return not self.is_lent

    def stay_unconnected(self, why: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        self.is_closed = True


class PoolScene:
    """A pool of one or two channels, and what another thread does to it."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.made: list[Lent] = []
        self.pool = Pool(self._make, most, patience=0.2, sleep=lambda _seconds: None)

    def _make(self) -> Lent:
        self.made.append(channel := Lent())
        return channel

    def borrow(self) -> None:
        with self.pool.channel(patience=0.0) as channel:
            self.give_back(channel)

    def borrow_first(self) -> None:
        with self.pool.channel(patience=0.0, goes_first=True) as channel:
            self.give_back(channel)

    def borrow_the_same(self) -> None:
        with self.pool.channel(self.made[-1] if self.made else None, patience=0.0) as channel:
            self.give_back(channel)

    def fail(self) -> None:
        with suppress(OSError), self.pool.channel(patience=0.0) as channel:
            self.give_back(channel)
            raise OSError

    def give_back(self, channel: Channel) -> None:
        cast(Lent, channel).is_lent = False

    def close_unused(self) -> None:
        self.pool.close_unused(0.0)

    def judge(self) -> None:
        """Fail if a channel is lost, or there are too many, once all are given back."""
        idle = self.pool._idle
        assert len(set(idle)) == len(idle) == len(self.pool._made) <= self.most
        assert not self.pool._waiting


_BORROWERS = ("borrow", "borrow_first", "borrow_the_same", "fail", "close_unused")


@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("name", SCENES)
def test_the_listener_may_come_in_at_any_line(
    monkeypatch: pytest.MonkeyPatch, name: str, turns: int
) -> None:
    scenes: list[Scene] = []
    for striker in strikers(lambda: scenes[-1].beside.turn(turns)):
        scenes.append(Scene(monkeypatch))
        play, judge = SCENES[name](scenes[-1])
        with striker:
            play()
        judge()


@pytest.mark.parametrize("turns", [1, 2])
@pytest.mark.parametrize("name", KEEPER_SCENES)
def test_the_keeper_may_come_in_at_any_line(
    monkeypatch: pytest.MonkeyPatch, name: str, turns: int
) -> None:
    scenes: list[KeeperScene] = []
    for striker in strikers(lambda: scenes[-1].beside.turn(turns)):
        scenes.append(KeeperScene(monkeypatch))
        play = KEEPER_SCENES[name](scenes[-1])
        with striker:
            play()
        scenes[-1].judge()


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("second", _BORROWERS)
@pytest.mark.parametrize("first", _BORROWERS)
def test_another_borrower_may_come_in_at_any_line(first: str, second: str, most: int) -> None:
    scenes: list[PoolScene] = []

    def come_in() -> None:
        getattr(scenes[-1], second)()

    for striker in strikers(come_in):
        scenes.append(PoolScene(most))
        scenes[-1].borrow()
        with striker:
            getattr(scenes[-1], first)()
        scenes[-1].judge()


@pytest.mark.parametrize("leaves", [False, True])
def test_another_thread_may_enter_a_lease_s_block_at_any_line(
    five: Network, redlock: Redlock, *, leaves: bool
) -> None:
    """It is inside while the lease is held, or it is refused, also as the last block is left."""
    lease, inside = redlock.acquire("k0"), 0

    def enter() -> None:
        nonlocal inside
        with suppress(LeaseLost):
            lease.__enter__()
            inside += 1
            if leaves:
                lease.__exit__(None, None, None)

    for striker in strikers(enter):
        lease, inside = redlock.acquire("k"), 0
        # Refused if the other one has left the only block by then.
        with suppress(LeaseLost), striker, lease:
            assert not lease.is_released, striker.where
        if inside and not leaves:
            assert not lease.is_released, striker.where
            lease.__exit__(None, None, None)
        assert lease.is_released, striker.where
        assert five.holders() == [None] * 5
        with pytest.raises(LeaseLost):
            lease.__enter__()


def test_a_refused_block_releases_the_lease_that_nobody_else_does(
    five: Network, redlock: Redlock
) -> None:
    """Of the last to leave and one that enters, each has seen the other."""
    lease, beside = redlock.acquire("k"), Beside()

    class Closing(list[None]):
        def append(self, entry: None) -> None:
            super().append(entry)
            if beside.count:
                beside.wait()

        def __bool__(self) -> bool:
            is_closing = len(self) > 0
            beside.turn()
            return is_closing

    lease.backing.closing = Closing()
    lease.__enter__()
    beside.start(lambda: lease.__exit__(None, None, None), "leaves")
    beside.turn()
    with pytest.raises(LeaseLost, match="released"):
        lease.__enter__()
    assert beside.count == 0
    assert lease.is_released
    assert five.holders() == [None] * 5
