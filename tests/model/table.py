"""The table of docs/explanation/protocol.md, as it is given to both encodings of the protocol."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from . import promises
from .promises import Promise
from .variants import Admit, Attempt, Clocks, Confirm, Heal, Lost, Rules, Scope, Supersede, Vote
from .verdicts import (
    COPIES,
    EXTENDING_A,
    HAND_OVER,
    LEASES,
    RESERVATION,
    RETRIES,
    TOKENS,
    A,
    B,
    C,
)


@dataclass(frozen=True, slots=True)
class Row:
    """One variant.

    Attributes:
        name: What is tried.
        scope: In which world.
        promises: What must be true of every state.
        rules: By which rules.
        is_sound: Whether it is.
    """

    name: str
    scope: Scope
    promises: tuple[Promise, ...]
    rules: Rules = field(default_factory=Rules)
    is_sound: bool = True

    def __str__(self) -> str:
        return self.name

    @property
    def violation(self) -> str | None:
        """Return the name of the promise that breaks, None if all are kept."""
        return None if self.is_sound else self.promises[0].__name__


def _breaks(name: str, scope: Scope, promise: Promise, rules: Rules | None = None) -> Row:
    return Row(name, scope, (promise,), rules or Rules(), is_sound=False)


DISTINCT = promises.completed_acquisitions_have_distinct_tokens
IN_ORDER = promises.tokens_follow_real_time
STAYS_RELEASED = promises.a_released_lock_never_regains_a_majority
ENDS_RELEASED = promises.no_grant_outlives_its_release
ONE_HOLDER = promises.one_holder_besides_the_reservation
TOLD_RIGHTLY = promises.only_a_lost_lease_is_told_so
HAND_OVER_ENDS = promises.no_hand_over_outlives_the_run_that_took_it_up
ALONE = Scope(attempts=(EXTENDING_A,), releases=True, expiries=0)
REUSED = Scope(attempts=(A, B, Attempt("a", retry_of=0, same_owner_as=0)), expiries=3)
BY_OWNER = Rules(confirm=Confirm.IF_OWNER)
ALONE_AT_A_TIME = promises.one_holder_at_a_time
ADMISSIONS = Scope(expiries=0, forgetting=1, admissions=True)
OVERTAKEN = Scope(attempts=(EXTENDING_A, B), leap=2, expiries=2)


def _clocks(guard: int, offsets: tuple[int, ...] = (-1, 1, 1)) -> Scope:
    instants = (10, 10 + guard) if guard else (10,)
    return Scope(forgetting=1, expiries=0, clocks=Clocks(2, offsets, guard, instants))


TABLE = (
    _breaks("no confirm", Scope(), DISTINCT, Rules(confirm=Confirm.NEVER_ASKED)),
    _breaks("unconditional confirm", Scope(), DISTINCT, Rules(confirm=Confirm.UNCONDITIONALLY)),
    _breaks("confirm by a minority", Scope(), DISTINCT, Rules(confirmed_by_majority=False)),
    Row("confirm by owner", Scope(), TOKENS, BY_OWNER),
    _breaks("confirm by owner, duplicated grant", Scope(duplicates=1), DISTINCT, BY_OWNER),
    _breaks("confirm by owner, same owner on retry", REUSED, DISTINCT, BY_OWNER),
    Row("protocol", Scope(), TOKENS),
    Row("protocol, duplicated grant", Scope(duplicates=1), TOKENS),
    Row("protocol, one node", Scope(nodes=1), TOKENS),
    Row("protocol, clocks propose anything", Scope(leap=2, expiries=3), TOKENS),
    Row("protocol, three clients", Scope(attempts=(A, B, C), expiries=1), TOKENS),
    Row(
        "one holder while no lock expires",
        Scope(releases=True, expiries=0),
        (promises.a_holder_keeps_its_majority,),
    ),
    _breaks(
        "release on another connection",
        Scope(releases=True, expiries=0),
        ENDS_RELEASED,
        Rules(release_follows_grant=False),
    ),
    Row("release behind its grant", Scope(releases=True, expiries=1), (ENDS_RELEASED, *TOKENS)),
    _breaks(
        "release without raising the floor",
        ALONE,
        STAYS_RELEASED,
        Rules(release_raises_floor=False),
    ),
    _breaks("healing without the floor", ALONE, STAYS_RELEASED, Rules(heal=Heal.IF_ABSENT)),
    Row(
        "healing with both rules",
        Scope(attempts=(EXTENDING_A, B), releases=True, expiries=0),
        LEASES,
    ),
    _breaks(
        "extension counts raised floors",
        Scope(attempts=(EXTENDING_A, B)),
        promises.no_extension_succeeds_once_overtaken,
        Rules(vote=Vote.IF_OWNER),
    ),
    _breaks(
        "lost after one raised floor",
        Scope(attempts=(EXTENDING_A, B), leap=2, expiries=0),
        TOLD_RIGHTLY,
        Rules(lost=Lost.ONE_RAISED_FLOOR),
    ),
    _breaks(
        "lost after a majority of floors or others",
        OVERTAKEN,
        TOLD_RIGHTLY,
        Rules(lost=Lost.MAJORITY_OF_RAISED_FLOORS_OR_OTHERS),
    ),
    Row(
        "lost after a majority of raised floors",
        Scope(attempts=(EXTENDING_A, B), expiries=1),
        LEASES,
    ),
    _breaks(
        "supersede anyone",
        Scope(attempts=(RESERVATION, *COPIES), expiries=0),
        ONE_HOLDER,
        Rules(supersede=Supersede.ANYONE),
    ),
    Row(
        "supersede the named owner",
        Scope(attempts=(RESERVATION, *COPIES), expiries=0),
        (ONE_HOLDER, *TOKENS),
    ),
    Row("reservation without a token", Scope(attempts=(A, RESERVATION, B), expiries=1), TOKENS),
    _breaks(
        "hand over whatever the floor",
        Scope(attempts=HAND_OVER, releases=True, expiries=0),
        HAND_OVER_ENDS,
        Rules(hand_over_heeds_floor=False),
    ),
    Row(
        "hand over by the floor",
        Scope(attempts=HAND_OVER, releases=True, expiries=0),
        (HAND_OVER_ENDS, *TOKENS),
    ),
    _breaks("one node forgets, constant proposal", Scope(forgetting=1), DISTINCT),
    _breaks("one node forgets, no guard", _clocks(guard=0), IN_ORDER),
    _breaks("one node forgets, short guard", _clocks(guard=6), IN_ORDER),
    Row("one node forgets, guard", _clocks(guard=7), TOKENS),
    _breaks(
        "one node forgets, admitted at any time",
        ADMISSIONS,
        ALONE_AT_A_TIME,
        Rules(admit=Admit.AT_ANY_TIME),
    ),
    _breaks(
        "one node forgets, admitted during an attempt",
        ADMISSIONS,
        ALONE_AT_A_TIME,
        Rules(admit=Admit.WITHOUT_LOCKS),
    ),
    Row("one node forgets, admitted", replace(ADMISSIONS, releases=True), (ALONE_AT_A_TIME,)),
    _breaks("two nodes forget, admitted", replace(ADMISSIONS, forgetting=2), ALONE_AT_A_TIME),
)
"""Seconds each."""

# Spin counts mirror images: of five nodes, 120 where the other encoding has one state. There, any
# number of expiries takes more memory than a machine has; `test_large_scopes` explores it.
LARGER = (
    Row("protocol, five nodes", Scope(nodes=5, expiries=2), TOKENS),
    Row("protocol, two duplicated grants", Scope(duplicates=2), TOKENS),
    Row("protocol, three clients, more expiries", Scope(attempts=(A, B, C), expiries=3), TOKENS),
    Row(
        "healing with both rules, two expiries",
        Scope(attempts=(EXTENDING_A, B), releases=True, expiries=2),
        LEASES,
    ),
    Row("two attempts each", Scope(attempts=RETRIES, expiries=2), TOKENS),
    Row(
        "hand over by the floor, one expiry",
        Scope(attempts=HAND_OVER, releases=True, expiries=1),
        (HAND_OVER_ENDS, *TOKENS),
    ),
)
"""Up to two minutes each."""
