"""Bugs put into the lock, or into the rules of its nodes, that a simulation must find.

Not among them: to count healed nodes for an extension. Alone it does no harm that this judge could
see. A healed node had no lock key and no higher floor; from then on it has the lock key for a whole
ttl, as an extended one has. Nobody else had a majority meanwhile: an extension only counts before
the deadline, which holds by the replies before it, and a node that forgot a lock does not vote for
as long. The rule protects from errors in those two.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from celery_redlock.redlock import acquisition, extension, keeper, waiters
from celery_redlock.redlock.acquisition import Acquisition
from celery_redlock.redlock.attempt import Attempt
from celery_redlock.redlock.lease import Lease
from celery_redlock.redlock.lease import new_owner as fresh_owner
from celery_redlock.redlock.protocol import quorum
from celery_redlock.redlock.protocol.quorum import Verdict
from celery_redlock.redlock.protocol.replies import Extended, Granted
from celery_redlock.redlock.unsettled import UnsettledReleases

from .servers import Server
from .stream_bugs import BUGS as OF_STREAMS
from .stream_bugs import FOUND_WITHIN as OF_STREAMS_FOUND_WITHIN
from .stream_bugs import KNOWN_SEEDS as SEEDS_OF_STREAMS
from .tasks.bugs import BUGS as OF_TASKS
from .tasks.bugs import FOUND_WITHIN as OF_TASKS_FOUND_WITHIN
from .tasks.bugs import KNOWN_SEEDS as SEEDS_OF_TASKS

Bug = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, Bug] = {}
WITHOUT_GUARD = "no_restart_guard"
"""A setting, not a bug: right only for nodes that forget nothing."""
KNOWN_SEEDS = {
    "no_confirm": 1_000_124,
    "confirm_by_a_minority": 1_000_287,
    "validity_from_the_end": 1_000_179,
    "extension_from_the_end": 1_001_100,
    "extension_by_a_minority": 1_000_607,
    "no_allowance_for_drift": 1_000_020,
    "release_of_any_owner": 1_000_054,
    "release_without_a_floor": 1_000_638,
    "healing_above_the_floor": 1_000_638,
    "same_owner_again": 1_001_127,
    "minority_is_enough": 1_000_000,
    "failed_attempt_is_not_released": 1_000_003,
    "lost_lease_is_extended": 1_000_190,
    "interrupt_is_forgotten": 1_000_580,
    "the_exit_waits_for_no_release": 1_000_290,
    "nobody_is_woken": 1_000_126,
    "a_grant_without_its_delay": 1_000_053,
    "an_extension_without_its_delay": 1_000_201,
    "a_late_release_ends_the_delay": 1_000_094,
    WITHOUT_GUARD: 1_000_000,
}
"""A schedule that was picked because it finds the bug."""
FOUND_WITHIN = {
    "no_confirm": 500,
    "confirm_by_a_minority": 10_000,
    "validity_from_the_end": 5_000,
    "extension_from_the_end": 5_000,
    "extension_by_a_minority": 5_000,
    "no_allowance_for_drift": 10_000,
    "release_of_any_owner": 200,
    "release_without_a_floor": 500,
    "healing_above_the_floor": 2_000,
    "same_owner_again": 1_000,
    "minority_is_enough": 50,
    "failed_attempt_is_not_released": 100,
    "lost_lease_is_extended": 200,
    "interrupt_is_forgotten": 2_000,
    "the_exit_waits_for_no_release": 5_000,
    "nobody_is_woken": 2_000,
    "a_grant_without_its_delay": 500,
    "an_extension_without_its_delay": 1_000,
    "a_late_release_ends_the_delay": 500,
    WITHOUT_GUARD: 10_000,
}
"""Fresh schedules of the same kind in which each is found: ten times the mean of several tries."""
FOUND_WITHIN |= OF_STREAMS_FOUND_WITHIN | OF_TASKS_FOUND_WITHIN
SEEDS = KNOWN_SEEDS | SEEDS_OF_STREAMS | SEEDS_OF_TASKS


def _bug(make: Bug) -> Bug:
    BUGS[make.__name__.removeprefix("_")] = make
    return make


@_bug
def _no_confirm(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Acquisition, "_confirm", lambda *_: True)


@_bug
def _confirm_by_a_minority(patch: pytest.MonkeyPatch) -> None:
    def confirm_verdict(replies: Sequence[Any], already: int) -> Verdict:
        verdict = quorum.confirm_verdict(replies, already)
        return Verdict.REACHED if verdict is Verdict.UNAVAILABLE else verdict

    patch.setattr(acquisition, "confirm_verdict", confirm_verdict)


@_bug
def _validity_from_the_end(patch: pytest.MonkeyPatch) -> None:
    make = Acquisition._lease

    def lease(self: Acquisition, attempt: Any, token: int, started: float) -> Lease:
        return make(self, attempt, token, self._clock.now())

    patch.setattr(Acquisition, "_lease", lease)


@_bug
def _extension_from_the_end(patch: pytest.MonkeyPatch) -> None:
    note = extension.Extension.note_replies

    def note_replies(self: Any, lease: Lease, replies: Any, started: float) -> Any:
        return note(self, lease, replies, self._clock.now())

    patch.setattr(extension.Extension, "note_replies", note_replies)


@_bug
def _no_allowance_for_drift(patch: pytest.MonkeyPatch) -> None:
    for module in (acquisition, extension):
        patch.setattr(module, "validity_ms", lambda ttl_ms, elapsed_ms: ttl_ms - elapsed_ms)


@_bug
def _release_of_any_owner(patch: pytest.MonkeyPatch) -> None:
    release = Server._release

    def of_any(self: Server, keys: list[str], argv: list[str]) -> int | list[object]:
        holder = self._get(keys[0])
        return release(self, keys, argv if holder is None else [holder, *argv[1:]])

    patch.setattr(Server, "_release", of_any)


@_bug
def _release_without_a_floor(patch: pytest.MonkeyPatch) -> None:
    release = Server._release
    patch.setattr(
        Server, "_release", lambda self, keys, argv: release(self, keys, [argv[0], "0", *argv[2:]])
    )


@_bug
def _healing_above_the_floor(patch: pytest.MonkeyPatch) -> None:
    extend = Server._extend

    def unconditional(self: Server, keys: list[str], argv: list[str]) -> int:
        floor = max(int(self._get(keys[1]) or 0), int(argv[1]))
        return extend(self, keys, [argv[0], str(floor), *argv[2:]])

    patch.setattr(Server, "_extend", unconditional)


@_bug
def _extension_by_a_minority(patch: pytest.MonkeyPatch) -> None:
    def extend_verdict(replies: Sequence[Any], guarded: Container[int] = ()) -> Verdict:
        verdict = quorum.extend_verdict(replies, guarded)
        extended = any(isinstance(one, Extended) for one in replies)
        return Verdict.REACHED if verdict is Verdict.UNAVAILABLE and extended else verdict

    patch.setattr(extension, "extend_verdict", extend_verdict)


@_bug
def _same_owner_again(patch: pytest.MonkeyPatch) -> None:
    """Each attempt of one call has the same owner."""
    owners: dict[str | None, str] = {}
    acquire, make = Acquisition.acquire, fresh_owner

    def first(
        self: Acquisition, attempt: Any, label: str | None, *args: Any, **options: Any
    ) -> Lease:
        owners.pop(label, None)
        return acquire(self, attempt, label, *args, **options)

    def again(label: str | None = None, **options: Any) -> str:
        if label not in owners:
            owners[label] = make(label, **options)
        return owners[label]

    patch.setattr(Acquisition, "acquire", first)
    patch.setattr(acquisition, "new_owner", again)


@_bug
def _minority_is_enough(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(acquisition, "grant_verdict", _won_by_one)
    patch.setattr(Acquisition, "_confirm", lambda *_: True)


def _won_by_one(replies: Sequence[Any]) -> Verdict:
    verdict = quorum.grant_verdict(replies)
    granted = quorum.chosen_token([*replies, Granted(0, took_over=False)])[0]
    return Verdict.REACHED if granted and verdict is not Verdict.PENDING else verdict


@_bug
def _failed_attempt_is_not_released(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Acquisition, "_abandon", lambda *_: None)
    patch.setattr(UnsettledReleases, "work", lambda *_: False)


@_bug
def _lost_lease_is_extended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(extension, "why_not", lambda lease: None)


@_bug
def _interrupt_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(UnsettledReleases, "add", lambda *_: None)
    patch.setattr(UnsettledReleases, "settle", lambda *_: True)
    patch.setattr(Acquisition, "_abandon", lambda *_: None)


@_bug
def _the_exit_waits_for_no_release(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(keeper, "_release_at_exit", lambda: None)


@_bug
def _a_grant_without_its_delay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Attempt, "expiry_ms", property(lambda attempt: attempt.ttl_ms))


@_bug
def _an_extension_without_its_delay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lease, "expiry_ms", property(lambda lease: lease.ttl_ms))


@_bug
def _a_late_release_ends_the_delay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lease, "delayed_until", lambda *_: 0.0)


@_bug
def _nobody_is_woken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(waiters.Queue, "wake_oldest", lambda *_: None)


@contextmanager
def with_bug(name: str | None) -> Iterator[None]:
    """Let the code have this bug."""
    with pytest.MonkeyPatch.context() as patch:
        bugs = BUGS | OF_STREAMS | OF_TASKS
        if name in bugs:
            bugs[name](patch)
        yield
