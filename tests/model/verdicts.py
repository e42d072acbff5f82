"""What the tests of the protocol ask for, and how they read the answer."""

from __future__ import annotations

from . import promises
from .explorer import Exploration, explore
from .promises import Promise
from .protocol import LockProtocol
from .state import Phase
from .variants import Attempt, Rules, Scope

A, B, C = Attempt("A"), Attempt("B"), Attempt("C")
EXTENDING_A, EXTENDING_B = Attempt("A", extends=True), Attempt("B", extends=True)
RETRIES = (A, B, Attempt("a", retry_of=0), Attempt("b", retry_of=1))
RESERVATION, WITH_TOKEN = Attempt("R", gets_token=False), Attempt("R")
COPIES = (Attempt("V", supersedes=0), Attempt("W", supersedes=0))
HAND_OVER = (A, Attempt("S", supersedes=0, is_handed_over=True), Attempt("B", supersedes=1))

TOKENS = (promises.completed_acquisitions_have_distinct_tokens, promises.tokens_follow_real_time)
LEASES = (
    *TOKENS,
    promises.a_released_lock_never_regains_a_majority,
    promises.an_overtaken_lease_never_regains_a_majority,
    promises.no_extension_succeeds_once_overtaken,
    promises.only_a_lost_lease_is_told_so,
)


def explored(scope: Scope, *to_keep: Promise, rules: Rules | None = None) -> Exploration:
    """Return what the exploration of a scope finds; without rules, under PROTOCOL's own."""
    return explore(LockProtocol(rules or Rules(), scope, to_keep))


def together(found: Exploration, *reached: Phase) -> bool:
    """Return whether some state has the first attempts each at least that far, all at once."""
    return any(
        all(now >= wanted for now, wanted in zip(phases, reached, strict=False))
        for phases in found.landmarks
        if isinstance(phases, tuple)
    )
