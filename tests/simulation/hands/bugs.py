"""Bugs put into the lock that a user's hands must find."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from celery_redlock.redlock import lock, release
from celery_redlock.redlock.errors import LeaseLost
from celery_redlock.redlock.hold import Hold, _Block, _here, _LookedUp
from celery_redlock.redlock.keeper import Keeper
from celery_redlock.redlock.lease import Lease, lost_in_block, release_at_end
from celery_redlock.redlock.protocol.quorum import Verdict, confirm_verdict
from celery_redlock.redlock.protocol.replies import AckReply
from celery_redlock.redlock.release import Release
from celery_redlock.redlock.threads import callbacks

Bug = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, Bug] = {}


def _bug(make: Bug) -> Bug:
    BUGS[make.__name__.removeprefix("_")] = make
    return make


@_bug
def _one_lease_per_hold(patch: pytest.MonkeyPatch) -> None:
    """A `Hold` keeps one lease: a second block that is refused ends the first one's."""

    def enter(self: Any) -> Lease:
        self._holder = os.getpid()
        try:
            lease: Lease = self._acquire()
            self._lease = lease
            lease.hold_until = lease.acquired_at + self._max_hold
            lease.backing.lock = self._lock
            self._keeper.keep(lease, weakref.ref(self), on_lost=self._on_lost)
            self._settle(lease)
            return lease
        except BaseException:
            abandon(self)
            raise

    def leave(self: Any, kind: type[BaseException] | None, *_: object) -> None:
        lease = self._lease
        if lease is None or os.getpid() != self._holder:
            return
        try:
            is_lost = release_at_end(lease, self._lock.release)
        except BaseException:
            abandon(self)
            raise
        self._lease = None
        if is_lost and kind is None:
            raise lost_in_block(lease)

    def abandon(self: Any) -> None:
        if self._lease:
            self._keeper.take_over(self._lease)
        self._lease = None

    patch.setattr(Hold, "_lease", None, raising=False)
    patch.setattr(Hold, "__enter__", enter)
    patch.setattr(Hold, "__exit__", leave)


@_bug
def _child_releases(patch: pytest.MonkeyPatch) -> None:
    """A forked child releases a lease that its parent acquired."""
    release = Release.release

    def release_anywhere(self: Release, lease: Lease, *args: Any, **how: Any) -> None:
        lease.backing.acquired_in = os.getpid()
        release(self, lease, *args, **how)

    patch.setattr(Release, "release", release_anywhere)


@_bug
def _block_of_the_thread(patch: pytest.MonkeyPatch) -> None:
    """A thread leaves the newest block that it has entered."""
    patch.setattr(_LookedUp, "take", lambda self, hold: None)


@_bug
def _inner_block_releases_lease(patch: pytest.MonkeyPatch) -> None:
    """The first block of a lease that is left releases it under the others."""

    def leave(self: Lease, kind: type[BaseException] | None, *_: object) -> None:
        if os.getpid() in self.backing.entered_in:
            assert self.backing.lock
            if release_at_end(self, self.backing.lock.release) and kind is None:
                raise LeaseLost(self.key)

    patch.setattr(Lease, "__exit__", leave)


@_bug
def _exit_in_a_callback_ends_the_keeper(patch: pytest.MonkeyPatch) -> None:
    """A callback that raises anything but an Exception ends the keeper's thread."""

    def call(function: Callable[..., object], *args: object, failed: str, about: Any = ()) -> None:
        with suppress(Exception):
            function(*args)

    tick = Keeper.tick

    def tick_or_end(self: Keeper) -> float:
        try:
            return tick(self)
        except (SystemExit, KeyboardInterrupt, GeneratorExit):
            self._thread.stop()
            return math.inf

    patch.setattr(callbacks, "call", call)
    patch.setattr(Keeper, "tick", tick_or_end)


@_bug
def _release_decided_by_any_majority(patch: pytest.MonkeyPatch) -> None:
    """A release ends with the first majority of replies, whatever they say of the lock."""

    def is_decided(acks: Sequence[AckReply | None]) -> bool:
        return confirm_verdict(acks, 0) is not Verdict.PENDING

    patch.setattr(release, "_is_decided", is_decided)


@_bug
def _key_as_formatted(patch: pytest.MonkeyPatch) -> None:
    """A key is checked by its data and written by its format."""
    patch.setattr(lock, "check_key", lambda key, **_: key)


@_bug
def _second_release_is_a_loss(patch: pytest.MonkeyPatch) -> None:
    """Of two threads that release a lease, the later one finds that its lock is gone."""

    class Alone(list[None]):
        def __len__(self) -> int:
            return 1

    make = Release.release

    def release_alone(self: Release, lease: Lease, *args: Any, **how: Any) -> None:
        lease.backing.releases = Alone()
        make(self, lease, *args, **how)

    patch.setattr(Release, "release", release_alone)


@_bug
def _kept_exit_serves_one_block(patch: pytest.MonkeyPatch) -> None:
    """A method ``__exit__`` that was kept leaves the block for which it was looked up, only."""
    patch.setattr(Hold, "leave_own", Hold.leave)


@_bug
def _pushed_exit_is_that_of_the_next_block(patch: pytest.MonkeyPatch) -> None:
    """A block that is entered by hand is that of a stack on which another `Hold` was pushed."""

    def take(self: Any, hold: Hold | None) -> _Block | None:
        reference, self.block = self.block, None
        block: _Block | None = reference() if reference else None
        return block if block and block.hold in (None, hold) else None

    patch.setattr(_LookedUp, "take", take)


@_bug
def _exit_by_hand_leaves_a_with_block(patch: pytest.MonkeyPatch) -> None:
    """An exit by hand that has nothing to leave leaves the newest other block of its thread."""
    enter, by_hand = Hold._enter, Hold._entered_by_hand
    others: list[tuple[Hold, weakref.ref[_Block]]] = []

    def enter_and_note(self: Hold, looked_up: _Block | None) -> Lease:
        lease = enter(self, looked_up)
        if looked_up:
            others.append((self, weakref.ref(looked_up)))
        return lease

    def leave_any(self: Hold) -> _Block | None:
        blocks = [reference() for hold, reference in reversed(others) if hold is self]
        own = [block for block in blocks if block and block.lease and block.entered_in == _here()]
        return by_hand(self) or next(iter(own), None)

    patch.setattr(Hold, "_enter", enter_and_note)
    patch.setattr(Hold, "_entered_by_hand", leave_any)
