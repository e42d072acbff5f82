"""Unsettled releases: the keeper makes them if their caller is interrupted.

An attempt has an entry here from before its first grant is written until it is settled, and a
release has one until it is confirmed. A caller that is interrupted, at whatever line, leaves its
entry behind, and the keeper makes the release when the entry is due.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .clock import Clock
from .errors import shown
from .threads import callbacks

logger = logging.getLogger(__name__)
_AGAIN_S = 0.1
_AGAIN_MAX_S = 5.0
_BATCH = 1000
_SLOW_S = 1.0
_STRAGGLER_S = 1.0
"""Longest delay of a grant behind its release, on a connection that was interrupted."""


def due_after(node_timeout: float) -> float:
    """Return the seconds after which the keeper takes an unsettled caller for dead.

    Longer than the caller's rounds take. A caller that was only suspended learns of it in `settle`.
    """
    return 4 * node_timeout + _SLOW_S


class ReleaseRequest(NamedTuple):
    """Request to release the lock that an owner holds, or may hold.

    Attributes:
        key: Key of the lock.
        owner: Owner of the lock.
        due: Time at which the keeper makes the release unless it is settled, seconds on the clock.
        ends_at: Time at which the lock has expired on every node, seconds on the clock.
        token: Token of the lease; 0: an attempt, or a reservation.
        superseded: Owner that was replaced, whose lock is released as well; '': nobody.
        keep_until: Time until which the key stays on the nodes, seconds on the clock.
        done: Label to write a done mark for; None: no mark.
        done_ttl_ms: Expiry of that mark, ms.
    """

    key: str
    owner: str
    due: float
    ends_at: float
    token: int = 0
    superseded: str = ""
    keep_until: float = 0.0
    done: str | None = None
    done_ttl_ms: int = 0

    def keep_ms(self, now: float) -> int:
        """Return the time for which the key stays on the nodes, ms; 0: it is deleted."""
        return max(0, round((self.keep_until - now) * 1000))


@dataclass(slots=True)
class _Taken:
    """Release that the keeper has taken over."""

    release: ReleaseRequest
    again_at: float = 0.0
    tries: int = 0
    is_confirmed: bool = False
    is_alone: bool = False
    """Whether it is made alone, since making it with others has raised an error."""
    is_reported: bool = False
    """Whether that it raises one is logged."""


class UnsettledReleases:
    """Releases that are not settled yet, by owner.

    No mutex guards them: an interrupted thread could leave it locked, and a signal handler wait for
    it. Threads share them by single operations on a dict.

    Args:
        clock: Time.
        make: Makes releases within a number of seconds; returns whether every node that can be
            reached has confirmed each.
    """

    def __init__(
        self, clock: Clock, make: Callable[[Sequence[ReleaseRequest], float], Sequence[bool]]
    ) -> None:
        self._clock = clock
        self._make = make
        self.forget_all()

    def forget_all(self) -> None:
        """Forget all releases, as after a fork: the parent's are made by the parent."""
        self._pending: dict[str, ReleaseRequest] = {}
        self._taken: dict[str, _Taken] = {}
        self._last: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self._pending) + len(self._taken)

    def add(self, release: ReleaseRequest) -> None:
        """Make a release when it is due, unless it is settled before."""
        self._pending[release.owner] = release

    def settle(self, owner: str) -> bool:
        """Drop the entry of `owner`: its caller is responsible from now on.

        Returns:
            False if the keeper has taken the release over already.
        """
        return self._pending.pop(owner, None) is not None

    def hurry(self, owner: str) -> None:
        """Make a release due now: its caller was interrupted."""
        release = self._pending.get(owner)
        if release:
            self._pending[owner] = release._replace(due=0.0)

    def make_last(self) -> None:
        """Make all that there are due now: this process ends, and none of their callers goes on."""
        self._last = frozenset([*self._pending, *self._taken])

    def are_last_made(self) -> bool:
        """Return whether those of `make_last` are settled, or confirmed."""
        if self._last.intersection(list(self._pending)):
            return False
        taken = [self._taken.get(owner) for owner in self._last]
        return all(one is None or one.is_confirmed for one in taken)

    def is_unsettled(self, owner: str) -> bool:
        """Return whether the release of `owner` may have to be made yet."""
        return owner in self._pending or owner in self._taken

    def is_taken(self, owner: str) -> bool:
        """Return whether the keeper has taken over the release of `owner`."""
        return owner in self._taken

    def work(self, patience: float) -> bool:
        """Take over and make the releases that are due, on the keeper's thread.

        Args:
            patience: Longest time for that, seconds.

        Returns:
            Whether a release was taken over: its owner's lease must not be renewed any more.
        """
        now = self._clock.now()
        has_taken = False
        for release in list(self._pending.values()):
            is_due = release.due <= now or release.owner in self._last
            if is_due and self._take(release):
                has_taken = True
        due = [one for one in list(self._taken.values()) if one.again_at <= now]
        together = [one for one in due if not one.is_alone][:_BATCH]
        # One at a time: renewals go on in between.
        alone = [one for one in due if one.is_alone][:1]
        for one in together + alone:
            one.again_at = now + min(_AGAIN_S * 2**one.tries, _AGAIN_MAX_S)
            one.tries = min(one.tries + 1, 16)
        try:
            self._make_together(together, patience)
        finally:
            for one in alone:
                self._make_alone(one, 0.0 if together else patience)
        return has_taken

    def _make_together(self, due: Sequence[_Taken], patience: float) -> None:
        """Make releases in one round; after an error each is made alone from then on."""
        if not due:
            return
        try:
            confirmed = self._make([one.release for one in due], patience)
        except BaseException:
            # One of them may be to blame, and must not hold up the others.
            for one in due:
                one.is_alone, one.again_at = True, 0.0
            raise
        for one, is_confirmed in zip(due, confirmed, strict=True):
            self._note(one, is_confirmed=is_confirmed)

    def _make_alone(self, one: _Taken, patience: float) -> None:
        """Make one release; an error is logged once, and retried until its lock has expired."""
        is_confirmed = False
        try:
            [is_confirmed] = self._make([one.release], patience)
        except Exception as error:  # noqa: BLE001  # it is logged
            is_new, one.is_reported = not one.is_reported, True
            if is_new:
                callbacks.tell(
                    logger.error, "release failed, retrying until its lock has expired key=%s",
                    shown(one.release.key), exc_info=error,
                )  # fmt: skip
        self._note(one, is_confirmed=is_confirmed)

    def _take(self, release: ReleaseRequest) -> bool:
        """Take a release over from its caller; return False if the caller settles it first.

        An error, of memory that runs out or raised by another thread, leaves it to the next call.
        """
        taken, owner = self._taken, release.owner
        before = taken.get(owner)
        try:
            taken[owner] = _Taken(release)
            # Either the caller settles it or the keeper takes it: this is a single operation. And
            # the last one here, so that none that is gone from there is missing here.
            del self._pending[owner]
        except BaseException as error:
            if before:
                taken[owner] = before
            else:
                taken.pop(owner, None)
            if isinstance(error, KeyError):
                return False
            raise
        return True

    def _note(self, one: _Taken, *, is_confirmed: bool) -> None:
        now = self._clock.now()
        if now >= one.release.ends_at or (is_confirmed and one.is_confirmed):
            self._taken.pop(one.release.owner, None)
        elif is_confirmed:
            # Once more, since the release may have overtaken its grant.
            one.is_confirmed = True
            one.again_at = now + _STRAGGLER_S

    def next_at(self) -> float:
        """Return when the next release is due, seconds on the clock; infinity: none is."""
        pending = [release.due for release in list(self._pending.values())]
        taken = [one.again_at for one in list(self._taken.values())]
        return min([*pending, *taken], default=math.inf)
