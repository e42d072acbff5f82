"""Every verdict over every combination of replies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations, product
from typing import TypeVar

import pytest

from celery_redlock.redlock import acquisition, release
from celery_redlock.redlock.protocol.quorum import (
    Verdict,
    acknowledged,
    chosen_token,
    confirm_verdict,
    drift_ms,
    extend_verdict,
    floor_under,
    grant_verdict,
    guard_s,
    has_majority_replied,
    highest_floor,
    holder_age_s,
    leading_holder,
    look_verdict,
    majority,
    release_verdict,
    unconfirmed,
    validity_ms,
    without_majority,
)
from celery_redlock.redlock.protocol.replies import (
    Acknowledged,
    AckReply,
    Busy,
    Declined,
    Done,
    Extended,
    ExtendReply,
    Failed,
    Granted,
    GrantReply,
    Healed,
    Occupied,
    Superseded,
)

T = TypeVar("T")
Judge = Callable[[Sequence[T | None]], Verdict]

MINE = Granted(7)
X, Y, Z = Busy("x", 900, 3), Busy("y", 800, 4), Busy("z", 700, 5)
DEAD = Failed("timed out")
# Three rivals are all that can differ: with five nodes a fourth decides nothing.
GRANTS: tuple[GrantReply, ...] = (MINE, X, Y, Z, DEAD)
FREE = Busy("", 0, 6)
LOOKS: tuple[GrantReply, ...] = (FREE, X, Y, Z, DEAD)
EXTENSIONS: tuple[ExtendReply, ...] = (Extended(), Healed(), Superseded(), Occupied(), DEAD)
ACKS: tuple[AckReply, ...] = (Acknowledged(), Declined(), DEAD)
OURS, GONE = Acknowledged(was_ours=True), Acknowledged(was_ours=False)
RELEASES: tuple[AckReply, ...] = (OURS, GONE, DEAD)

every_size = pytest.mark.parametrize("nodes", [1, 3, 5])


def count(kind: type, replies: Sequence[object]) -> int:
    """How many are of a kind. Not by equality: replies without fields are all equal."""
    return sum(isinstance(reply, kind) for reply in replies)


def masks(kinds: Sequence[T], nodes: int) -> Iterator[tuple[T | None, ...]]:
    """Every combination of replies, those that have not come in included."""
    return product((*kinds, None), repeat=nodes)


def completions(replies: Sequence[T | None], kinds: Sequence[T]) -> Iterator[tuple[T, ...]]:
    """Every way in which the missing replies can turn out."""
    return product(*[kinds if reply is None else (reply,) for reply in replies])


def assert_decided_for_good_and_no_later_than_possible(
    judge: Judge[T], kinds: Sequence[T], nodes: int
) -> None:
    final = {tuple(map(id, replies)): judge(replies) for replies in product(kinds, repeat=nodes)}
    assert Verdict.PENDING not in final.values()
    for replies in masks(kinds, nodes):
        outcomes = {final[tuple(map(id, whole))] for whole in completions(replies, kinds)}
        verdict = judge(replies)
        if len(outcomes) == 1:
            assert verdict in outcomes, replies
        else:
            assert verdict is Verdict.PENDING, replies


# ---- grants


@every_size
def test_a_majority_always_wins_and_a_minority_never(nodes: int) -> None:
    for replies in masks(GRANTS, nodes):
        has_majority = count(Granted, replies) > nodes / 2
        assert (grant_verdict(replies) is Verdict.REACHED) == has_majority, replies


@every_size
def test_a_grant_verdict_is_final_and_as_early_as_can_be(nodes: int) -> None:
    assert_decided_for_good_and_no_later_than_possible(grant_verdict, GRANTS, nodes)


@every_size
def test_held_means_that_one_holder_has_a_majority(nodes: int) -> None:
    for replies in masks(GRANTS, nodes):
        votes = Counter(reply.holder for reply in replies if isinstance(reply, Busy))
        somebody_has_it = any(count > nodes / 2 for count in votes.values())
        assert (grant_verdict(replies) is Verdict.HELD) == somebody_has_it, replies


@every_size
def test_unavailable_means_that_fewer_than_a_quorum_answered(nodes: int) -> None:
    for replies in product(GRANTS, repeat=nodes):
        answered = nodes - count(Failed, replies)
        is_unavailable = grant_verdict(replies) is Verdict.UNAVAILABLE
        assert is_unavailable == (answered <= nodes / 2), replies


@every_size
def test_contended_means_a_quorum_answered_without_a_majority(nodes: int) -> None:
    for replies in product(GRANTS, repeat=nodes):
        votes = Counter(
            "me" if reply == MINE else getattr(reply, "holder", "") for reply in replies
        )
        dead = votes.pop("", 0)
        is_split = max(votes.values(), default=0) <= nodes / 2 < nodes - dead
        assert (grant_verdict(replies) is Verdict.CONTENDED) == is_split, replies


@every_size
def test_one_done_mark_ends_an_attempt_whatever_else_was_said(nodes: int) -> None:
    for replies in masks(GRANTS, nodes):
        for index in range(nodes):
            marked = (*replies[:index], Done(3_600_000), *replies[index + 1 :])
            assert grant_verdict(marked) is Verdict.DONE, marked


@every_size
def test_a_look_s_verdict_is_final_and_as_early_as_can_be(nodes: int) -> None:
    assert_decided_for_good_and_no_later_than_possible(
        lambda replies: look_verdict(replies, X.holder), LOOKS, nodes
    )


@every_size
def test_an_attempt_may_win_on_nodes_free_or_its_own_alone(nodes: int) -> None:
    for replies in masks(LOOKS, nodes):
        winnable = sum(reply in (FREE, X) for reply in replies)
        assert (look_verdict(replies, X.holder) is Verdict.REACHED) == (winnable > nodes / 2), (
            replies
        )


@every_size
def test_a_look_gives_the_reason_that_its_attempt_would(nodes: int) -> None:
    # Nodes that are free or its own would grant.
    answers: dict[GrantReply, GrantReply] = {FREE: MINE, X: MINE, Y: Y, Z: Z, DEAD: DEAD}
    for replies in product(LOOKS, repeat=nodes):
        grants = [answers[reply] for reply in replies]
        assert look_verdict(replies, X.holder) is grant_verdict(grants), replies


@pytest.mark.parametrize(
    ("replies", "verdict"),
    [
        ((X, Y, FREE, Z, None), Verdict.PENDING),
        ((X, FREE, FREE, None, None), Verdict.REACHED),
        ((Y, Y, Z, None, None), Verdict.PENDING),
        ((Y, Y, Z, FREE, None), Verdict.PENDING),
        ((Y, Y, Z, Z, FREE), Verdict.CONTENDED),
        ((X, None, Done(1)), Verdict.DONE),
    ],
)
def test_examples_of_looks(replies: tuple[GrantReply | None, ...], verdict: Verdict) -> None:
    for order in permutations(replies):
        assert look_verdict(order, X.holder) is verdict


def test_the_leading_holder_has_most_nodes_and_its_longest_time() -> None:
    far, near = Busy("x", 900, 3), Busy("x", 20, 3)
    assert leading_holder([Y, near, MINE, far, None]) == far
    assert leading_holder([MINE, DEAD, None]) is None
    # One node's word for a longer time leads nobody.
    assert leading_holder([Busy("y", 5000, 3), near, far]) == far
    # Nor does a floor, or an age that only one of them knows.
    told, untold = Busy("x", 900, 3, 5), Busy("x", 900, 4)
    assert leading_holder([told, untold]) is told
    assert leading_holder([told, Busy("x", 900, 3)]) is told


@pytest.mark.parametrize(
    ("ages_us", "age"),
    [
        ([1_500_000, 1_500_000], 1.5),
        ([None, None], None),  # nodes without a floor: no lease has begun
        ([None, 1_500_000], 1.5),
        ([-900_000, -900_000], 0.0),  # the holder's clock is ahead
        ([-1_000_000], 0.0),  # as far as a token may be
        ([-1_100_000, -1_100_000], None),  # further than a token may be
        ([-3_600_000_000, 1_500_000], 1.5),  # the clock of one node is behind, or of one ahead
        ([56 * 365 * 86_400 * 10**6], 56 * 365 * 86_400),
    ],
)
def test_the_holder_s_age_is_that_on_the_nodes_clocks(
    ages_us: list[int | None], age: float | None
) -> None:
    said = [Busy("x", 900, 3, age_us) for age_us in ages_us]
    others: list[GrantReply | None] = [Busy("y", 900, 3, 10**9), MINE, DEAD, None]
    assert holder_age_s([*said, *others], "x", 10**6) == age


def test_nodes_that_only_say_that_it_is_too_late_name_no_holder() -> None:
    past = Busy("", 0, 9)
    assert grant_verdict([past, past, None]) is Verdict.CONTENDED
    assert grant_verdict([past, X, MINE]) is Verdict.CONTENDED
    assert leading_holder([past, past, MINE]) is None
    assert leading_holder([past, X, past]) == X


def test_an_owner_that_can_not_reach_a_majority_is_told_apart() -> None:
    """Even if all nodes that have not answered are its own."""
    assert without_majority([MINE, X, MINE, MINE, None]) == {1: X}
    assert without_majority([X, X, Y, MINE, DEAD]) == {2: Y}
    assert without_majority([X, Y, None, DEAD, MINE]) == {}
    assert without_majority([X, X, X, Y, MINE]) == {3: Y}
    assert without_majority([MINE, MINE, None]) == {}


# ---- the token


def test_the_token_is_the_largest_that_was_granted() -> None:
    assert chosen_token([Granted(5), Busy("x", 1, 99), Granted(8), None, Granted(7)]) == (8, 1)


def test_the_highest_floor_is_that_of_a_grant_or_of_a_refusal() -> None:
    assert highest_floor([Granted(5), Granted(9), Busy("x", 900, 7), DEAD, None]) == 9
    assert highest_floor([Granted(5), Busy("x", 900, 7), Busy("", 0, 8)]) == 8
    assert highest_floor([DEAD, None]) == 0


def test_the_floor_under_an_owner_is_of_the_nodes_where_it_has_the_lock() -> None:
    free, of_another = Busy("", 0, 7), Busy("x", 900, 9)
    assert floor_under([Busy("me", 900, 5), Busy("me", 900, 6), free], "me") == 6
    assert floor_under([Busy("me", 900, 5), Busy("me", 900, 6), free, None, DEAD], "me") == 7
    assert floor_under([Busy("me", 900, 5), free, of_another, Granted(8), None], "me") == 7
    assert floor_under([Busy("me", 900, 8), free, None], "me") == 8
    assert floor_under([of_another, DEAD, None], "me") == 0


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5])
def test_a_majority_has_replied_once_a_quorum_has(nodes: int) -> None:
    for replied in range(nodes + 1):
        replies = [DEAD] * replied + [None] * (nodes - replied)
        assert has_majority_replied(replies) == (replied >= majority(nodes))


def test_only_granting_nodes_below_the_token_must_confirm() -> None:
    replies = [Granted(5), Busy("x", 1, 99), Granted(8), None, Granted(7), DEAD]
    assert unconfirmed(replies, 8) == [0, 4]


def test_granting_just_the_token_confirms_it() -> None:
    replies = [Granted(5), Busy("x", 1, 8), Granted(8), None, Granted(8), DEAD]
    assert chosen_token(replies) == (8, 2)


@every_size
def test_confirmed_by_a_majority_wins_and_by_a_minority_never(nodes: int) -> None:
    for already in range(nodes + 1):
        for acks in masks(ACKS, nodes):
            if count(Acknowledged, acks) + already > nodes:
                continue
            is_confirmed = count(Acknowledged, acks) + already > nodes / 2
            assert (confirm_verdict(acks, already) is Verdict.REACHED) == is_confirmed


@every_size
def test_a_confirm_verdict_is_final_and_as_early_as_can_be(nodes: int) -> None:
    for already in range(nodes // 2 + 1):
        assert_decided_for_good_and_no_later_than_possible(
            lambda acks, already=already: confirm_verdict(acks, already),  # type: ignore[misc]
            ACKS,
            nodes,
        )


def test_only_acknowledgements_are_counted_as_such() -> None:
    assert acknowledged([Acknowledged(), Declined(), DEAD, None, Acknowledged()]) == 2


# ---- releases


@every_size
def test_a_released_lease_is_lost_if_a_majority_says_so(nodes: int) -> None:
    for acks in masks(RELEASES, nodes):
        is_lost = acks.count(GONE) > nodes / 2
        assert (release_verdict(acks) is Verdict.LOST) == is_lost, acks


@every_size
def test_a_release_is_confirmed_by_a_majority_at_least(nodes: int) -> None:
    for acks in masks(RELEASES, nodes):
        if release_verdict(acks) in (Verdict.REACHED, Verdict.LOST):
            assert count(Acknowledged, acks) > nodes / 2, acks


@every_size
def test_a_release_verdict_is_final_and_as_early_as_can_be(nodes: int) -> None:
    assert_decided_for_good_and_no_later_than_possible(release_verdict, RELEASES, nodes)


def test_a_majority_that_had_the_lock_waits_for_no_other_node() -> None:
    assert release_verdict([OURS, None, OURS]) is Verdict.REACHED
    assert release_verdict([None, OURS, OURS, None, OURS]) is Verdict.REACHED


# ---- extensions


@every_size
def test_a_round_is_decided_as_soon_as_its_verdict_is(nodes: int) -> None:
    """Before any reply it is not asked for; a reply must not be taken for none."""
    for grants in masks((*GRANTS, Done(1)), nodes):
        assert acquisition._is_decided(grants) is (grant_verdict(grants) is not Verdict.PENDING)
    for acks in masks(RELEASES, nodes):
        assert release._is_decided(acks) is (release_verdict(acks) is not Verdict.PENDING)


@every_size
def test_an_extension_needs_a_majority_without_healed_nodes(nodes: int) -> None:
    for replies in masks(EXTENSIONS, nodes):
        has_majority = count(Extended, replies) > nodes / 2
        assert (extend_verdict(replies) is Verdict.REACHED) == has_majority, replies


@every_size
def test_a_lease_is_lost_only_when_a_quorum_is_out_of_reach(nodes: int) -> None:
    for replies in masks(EXTENSIONS, nodes):
        moved_on = count(Superseded, replies)
        never = nodes - moved_on <= nodes / 2
        assert (extend_verdict(replies) is Verdict.LOST) == never, replies


with_guarded = pytest.mark.parametrize(
    ("nodes", "guarded"), [(1, 0), (1, 1), (3, 0), (3, 1), (3, 2), (3, 3), (5, 0), (5, 2), (5, 3)]
)


@with_guarded
def test_a_guarded_node_extends_nothing_but_may_show_a_loss(nodes: int, guarded: int) -> None:
    for replies in masks(EXTENSIONS, nodes):
        verdict = extend_verdict(replies, range(guarded))
        assert (verdict is Verdict.REACHED) == (count(Extended, replies[guarded:]) > nodes / 2), (
            replies
        )
        assert (verdict is Verdict.LOST) == (count(Superseded, replies) > nodes / 2), replies


@with_guarded
def test_an_extend_verdict_is_final_and_as_early_as_can_be(nodes: int, guarded: int) -> None:
    assert_decided_for_good_and_no_later_than_possible(
        lambda replies: extend_verdict(replies, range(guarded)), EXTENSIONS, nodes
    )


# ---- numbers


@pytest.mark.parametrize(("nodes", "quorum"), [(1, 1), (3, 2), (5, 3), (7, 4)])
def test_any_two_majorities_share_a_node(nodes: int, quorum: int) -> None:
    assert majority(nodes) == quorum
    assert 2 * quorum > nodes
    assert 2 * (quorum - 1) < nodes, "no larger than it must be"


def test_the_drift_is_one_percent_and_two_milliseconds() -> None:
    assert drift_ms(30_000) == pytest.approx(302)
    assert drift_ms(10) == pytest.approx(2.1)


def test_the_validity_is_the_ttl_less_elapsed_time_and_drift() -> None:
    assert validity_ms(30_000, 0) == pytest.approx(29_698)
    assert validity_ms(30_000, 98) == pytest.approx(29_600)
    assert validity_ms(1000, 988) == pytest.approx(0)
    assert validity_ms(1000, 989) < 0


@pytest.mark.parametrize("ttl", [10.0, 1000.0, 86_400_000.0])
def test_a_holder_with_a_clock_one_percent_slow_stops_in_time(ttl: float) -> None:
    """Before the keys expire on the nodes."""
    assert validity_ms(ttl, 0) * 1.01 < ttl


def test_the_guard_outlasts_every_lease_a_node_may_have_lost() -> None:
    # 60.6 s at most by a clock that is 1 % slow, stepped by a second at grant and once since, and
    # an uptime that is a truncated second ahead.
    assert guard_s(60, 1) == pytest.approx(60.6 + 2 + 1)
    assert math.isclose(guard_s(1, 0), 2.01)
    # A ttl shorter than the clocks may be apart is no measure of what may have been forgotten.
    assert math.isclose(guard_s(1, 2), 4 + 4 + 1)


def test_a_release_that_a_quorum_declines_is_decided() -> None:
    assert not Declined(), "without fields, it is not true"
    assert release._is_decided([Declined(), Declined(), None])
