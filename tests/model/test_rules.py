"""The package's rules that the search can't call as it goes, tried for every combination."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from celery_redlock.redlock.extension import _without_votes
from celery_redlock.redlock.protocol.quorum import (
    Verdict,
    extend_verdict,
    floor_under,
    guard_s,
    majority,
)
from celery_redlock.redlock.protocol.replies import (
    Busy,
    Extended,
    ExtendReply,
    Failed,
    Granted,
    GrantReply,
    Healed,
    Occupied,
    Superseded,
)
from celery_redlock.redlock.transport.handshake import Server
from celery_redlock.redlock.transport.restart_guard import Identity, RestartGuard, Sighting
from tests.support.fakes.fake_clock import FakeClock

from . import extensions, identities, rounds
from .identities import NEVER, NOBODY, Identities, Look, Shared, State
from .test_protocol import SKEW, WITHIN_SKEW_OF_TRUE_TIME, uncertainty
from .variants import Scope

FAILED = Failed("it did not answer in time")
SERVERS, TICKS = range(3), range(4)
every_number = pytest.mark.parametrize("nodes", [3, 4])


def test_a_majority_is_the_model_s() -> None:
    assert all(majority(nodes) == Scope(nodes=nodes).quorum for nodes in range(1, 10))


@every_number
def test_any_majority_of_grants_is_enough_and_no_less(nodes: int) -> None:
    for granted in product((0, 1, 2), repeat=nodes):
        granting = [number for number, token in enumerate(granted) if token]
        majorities = [
            counted
            for size in range(Scope(nodes=nodes).quorum, nodes + 1)
            for counted in combinations(granting, size)
        ]
        decided = [tuple(sorted(one.confirmed + one.behind)) for one in rounds.decisions(granted)]
        assert decided == majorities, granted


@every_number
def test_a_drop_that_a_majority_names_takes_no_other_floor(nodes: int) -> None:
    """Where fewer name the owner, nothing is promised."""
    views: list[GrantReply | None] = [
        Busy(holder, 1, floor) for holder, floor in product(("me", "other", ""), (1, 2, 3))
    ]
    for replies in product((*views, Granted(4), FAILED, None), repeat=nodes):
        mine = [one.floor for one in replies if isinstance(one, Busy) and one.holder == "me"]
        if len(mine) >= Scope(nodes=nodes).quorum:
            assert floor_under(replies, "me") == max(mine), replies


@every_number
def test_an_extension_ends_as_it_was_decided_to(nodes: int) -> None:
    """The client decides by all replies, and acts on those without the votes of guarded nodes."""
    kinds: tuple[ExtendReply | None, ...] = (
        Extended(), Healed(), Superseded(), Occupied(), FAILED, None,
    )  # fmt: skip
    waits = [dict.fromkeys(some, FAILED) for some in combinations(range(nodes), nodes // 2)]
    for replies, guarded in product(product(kinds, repeat=nodes), [{}, *waits]):
        verdict = extend_verdict(replies, guarded)
        votes = sum(
            isinstance(one, Extended) and at not in guarded for at, one in enumerate(replies)
        )
        left = nodes - sum(isinstance(one, Superseded) for one in replies)
        quorum = Scope(nodes=nodes).quorum
        assert (verdict is Verdict.REACHED) == (votes >= quorum), (replies, guarded)
        assert (verdict is Verdict.LOST) == (left < quorum), (replies, guarded)
        if verdict is not Verdict.PENDING:
            assert extend_verdict(_without_votes(replies, guarded)) is verdict, (replies, guarded)


def test_the_restart_guard_is_as_long_as_the_model_s() -> None:
    assert guard_s(0.0, SKEW) == uncertainty(WITHIN_SKEW_OF_TRUE_TIME) + 1
    for model in (extensions, identities):
        assert guard_s(model.TTL, 0.0) >= model.GUARD


def sighting_of(record: Look) -> Sighting:
    sighting = Sighting()
    if record.server != NOBODY:
        sighting.write(str(record.server), record.at)
    return sighting


def guard_of(seen: int, seen_at: int, replaced_at: int, sighting: Sighting) -> RestartGuard:
    """Return the guard of a process that has seen a server."""
    guard = RestartGuard("node:6379", FakeClock(), identities.GUARD)
    run_id = None if seen == NOBODY else str(seen)
    guard._identity = Identity(sighting, run_id, seen_at, replaced_at=replaced_at)
    return guard


RECORDS = [Look(NOBODY, NEVER), *map(Look, *zip(*product(SERVERS, (NEVER, *TICKS)), strict=True))]


@pytest.mark.parametrize("record", RECORDS, ids=repr)
def test_a_process_counts_a_vote_from_when_the_model_does(record: Look) -> None:
    model, sighting = Identities(identities.Scope(Shared.TIME_OF_THIS_SERVER)), sighting_of(record)
    sighting._writer = 0
    for knows, sees, seen_at, now in product(SERVERS, SERVERS, (NEVER, *TICKS), TICKS):
        state = State(now, 0, 0, 0, 0, record, None, (None, None), knows, 1, seen_at)
        _, after = model._concluded(state, Look(sees, now))
        guard = guard_of(knows, seen_at, 1 - identities.GUARD, sighting)
        assert guard.votes_from(Server(str(sees), "1000000", now)) == after.votes_from, state


@pytest.mark.parametrize("record", RECORDS, ids=repr)
def test_a_parent_writes_what_the_model_does(record: Look) -> None:
    model = Identities(identities.Scope(Shared.TIME_OF_THIS_SERVER))
    for sees, now in product(SERVERS, TICKS):
        state = State(now, 0, 0, 0, record.server, record, None, (None, None), 0, 0, 0)
        wanted, sighting = model._noted(state, Look(sees, now)).record, sighting_of(record)
        guard_of(record.server, NEVER, NEVER, sighting).votes_from(Server(str(sees), "9", now))
        assert sighting.since(str(sees)) == wanted.at, state
