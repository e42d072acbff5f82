"""What becomes of an execution that is refused its lock: every situation against the table."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from celery_redlock.config.options import OnConflict, OnUnavailable
from celery_redlock.execution.decision import (
    HALF,
    QUARTER,
    SHORTEST_S,
    Action,
    Outcome,
    Refused,
    Situation,
    decide,
    decide_on_slot,
    is_provisional,
)
from celery_redlock.pools.orphaned_leases import PROVISIONAL_S
from celery_redlock.redlock.errors import AlreadyDone, LockHeld, QuorumUnavailable
from tests.support.fakes.forged import HOLDER, WAITING
from tests.support.judges.decision_table import ROWS, Refusal, Row, announced_of

TTL = 30.0
HELD = LockHeld("t", "holder@host", 20.0, owner=HOLDER, age=16.0)
REFUSED: dict[Refusal, Refused] = {
    Refusal.DONE: AlreadyDone("t", 3600.0),
    Refusal.IN_DOUBT: AlreadyDone("t", 7.0),
    Refusal.HELD: HELD,
    Refusal.CONTENDED: LockHeld("t", "holder@host", 20.0, owner=HOLDER, age=16.0, contended=True),
    Refusal.SLOT_HELD: LockHeld("t%next", "waiting@host", 20.0, owner=WAITING, age=16.0),
    Refusal.NO_QUORUM: QuorumUnavailable("t", {"127.0.0.1:1": "down"}, 1),
}
FACTS = ("is_eager", "has_queue", "is_copy", "is_shutting_down", "is_own", "has_result")


def situations(refusal: Refusal) -> Iterator[Situation]:
    """Yield every situation that an execution can be in."""
    is_slot, has_holder = refusal is Refusal.SLOT_HELD, isinstance(REFUSED[refusal], LockHeld)
    policies = itertools.product(OnConflict, OnUnavailable)
    every = itertools.product((False, True), repeat=len(FACTS))
    for (on_conflict, on_unavailable), facts in itertools.product(policies, every):
        known: dict[str, Any] = dict(zip(FACTS, facts, strict=True))
        of = Situation(on_conflict, on_unavailable, TTL, is_slot=is_slot, **known)
        is_eager_or_sent = not (of.is_eager and (of.has_queue or of.is_copy or of.has_result))
        if is_eager_or_sent and (has_holder or not (of.is_own or of.has_result)):
            yield of


def row_of(refusal: Refusal, of: Situation) -> Row:
    return next(row for row in ROWS if row.fits(refusal, of))


@pytest.mark.parametrize("refusal", Refusal)
def test_every_situation_ends_by_its_row_of_the_table(refusal: Refusal) -> None:
    for of in situations(refusal):
        outcome, row = decide(of, REFUSED[refusal]), row_of(refusal, of)
        told = (outcome.action, outcome.announced, outcome.releases)
        assert told == (row.action, announced_of(row, refusal, of), row.releases), (
            of,
            row.condition,
        )


def test_each_row_of_the_table_is_that_of_a_situation() -> None:
    rows = Counter(row_of(refusal, of) for refusal in Refusal for of in situations(refusal))
    assert [row.condition for row in ROWS if not rows[row]] == []


@pytest.mark.parametrize("refusal", Refusal)
def test_only_what_is_requeued_pauses(refusal: Refusal) -> None:
    requeued = {Action.PARK, Action.RESCHEDULE, Action.COALESCE}
    for of in situations(refusal):
        outcome = decide(of, REFUSED[refusal])
        assert of.has_queue or outcome.action not in requeued
        assert (outcome.after > 0) is (outcome.action in requeued)


@pytest.mark.parametrize(
    ("refusal", "policy", "is_own", "after"),
    [
        (Refusal.HELD, OnConflict.RESCHEDULE, False, 16.0 * HALF),
        (Refusal.HELD, OnConflict.COALESCE, False, 16.0 * QUARTER),
        (Refusal.HELD, OnConflict.SKIP, True, 16.0 * HALF),
        (Refusal.CONTENDED, OnConflict.SKIP, False, 16.0 * HALF),
        (Refusal.SLOT_HELD, OnConflict.COALESCE, False, SHORTEST_S),
        (Refusal.IN_DOUBT, OnConflict.SKIP, False, 7.0),
        (Refusal.NO_QUORUM, OnConflict.SKIP, False, 5.0),
    ],
)
def test_how_long_a_message_pauses(
    refusal: Refusal, policy: OnConflict, is_own: bool, after: float
) -> None:
    of = Situation(
        policy, OnUnavailable.RESCHEDULE, TTL, is_own=is_own, is_slot=refusal is Refusal.SLOT_HELD
    )
    assert decide(of, REFUSED[refusal]).after == pytest.approx(after)


@pytest.mark.parametrize(
    ("is_contended", "is_own", "has_result", "outcome"),
    [
        (False, False, False, Outcome(Action.SKIP, "skip")),
        (False, True, False, Outcome(Action.DISCARD)),
        (False, False, True, Outcome(Action.DISCARD, "skip")),
        (True, False, False, None),
        (True, True, False, None),
    ],
)
def test_a_message_whose_slot_is_taken_is_left_to_the_one_that_waits(
    is_contended: bool, is_own: bool, has_result: bool, outcome: Outcome | None
) -> None:
    of = Situation(
        OnConflict.COALESCE, OnUnavailable.RESCHEDULE, TTL, is_own=is_own, has_result=has_result
    )
    waiting = LockHeld("t%next", owner=WAITING, contended=is_contended)
    assert decide_on_slot(of, waiting) == outcome


@pytest.mark.parametrize(
    ("remaining", "expected"), [(0.0, True), (PROVISIONAL_S, True), (PROVISIONAL_S + 1, False)]
)
def test_a_mark_is_provisional_until_it_is_extended(remaining: float, expected: bool) -> None:
    assert is_provisional(AlreadyDone("t", remaining)) is expected
