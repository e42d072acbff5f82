"""A node may reply whatever it likes: no parser raises, and no reply counts for more than it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_redlock.redlock.protocol.replies import Acknowledged, Busy, Granted
from celery_redlock.redlock.protocol.scripts import (
    HIGHEST_TOKEN,
    as_ack,
    as_extend,
    as_grant,
    as_held,
    as_probed,
    as_release,
    as_reserved,
    as_time,
)
from tests.support.evidence import HostileInputs, hostile_inputs

_WORDS = st.sampled_from([b"", b"0", b"1", b"9" * 17, b"-1", b"1.5", b"released", b"me", b"\xff\0"])
_NUMBERS = st.integers() | st.sampled_from([0, 1, 2, 3, HIGHEST_TOKEN, HIGHEST_TOKEN + 1, -1])
_LEAVES = (
    st.none() | st.booleans() | _NUMBERS | st.floats() | st.binary(max_size=40) | _WORDS
    | st.text(max_size=5).map(Exception)
)  # fmt: skip
REPLIES = st.recursive(_LEAVES, lambda some: st.lists(some, max_size=6), max_leaves=12)
_DIGITS = (st.integers(0, 10**17) | st.sampled_from([0, HIGHEST_TOKEN, HIGHEST_TOKEN + 1])).map(
    lambda number: b"%d" % number
)
_GRANTS = st.one_of(
    _DIGITS,
    st.tuples(st.just(1), _NUMBERS, _NUMBERS).map(list),
    st.tuples(st.just(0), _WORDS, _NUMBERS, _NUMBERS, _NUMBERS).map(list),
)
_LOOKS = st.tuples(_WORDS, _NUMBERS, _DIGITS, st.just([b"1", b"2"])).map(list)


@pytest.fixture(scope="module")
def tried(request: pytest.FixtureRequest) -> Iterator[HostileInputs]:
    """Count what was tried."""
    with hostile_inputs("replies of nodes", request.session) as counts:
        yield counts


@given(raw=_GRANTS | REPLIES)
@example(raw=[1, HIGHEST_TOKEN + 1, 0])
@example(raw=b"9" * 16)
@example(raw=[b"released", 2**70])
def test_any_reply_to_a_script_is_what_it_says_or_a_failure(
    tried: HostileInputs, raw: object
) -> None:
    tried.tried += 1
    reply = as_grant(raw)
    if isinstance(reply, Granted):
        assert 1 <= reply.token <= HIGHEST_TOKEN
    if isinstance(reply, Busy):
        assert 0 <= reply.floor <= HIGHEST_TOKEN
    assert not isinstance(as_ack(raw), Acknowledged) or raw == 1
    as_release(raw)
    as_extend(raw)
    as_time(raw)


@given(raws=st.lists(REPLIES, min_size=3, max_size=3))
def test_any_replies_to_a_reservation_reserve_for_its_owner_only(
    tried: HostileInputs, raws: list[object]
) -> None:
    tried.tried += 1
    reply = as_reserved(b"me", raws)
    assert not isinstance(reply, Granted) or raws[1] == b"me"
    as_probed(raws[:2])
    as_probed(raws)


@given(raws=_LOOKS | st.lists(REPLIES, min_size=4, max_size=4))
def test_any_replies_to_a_look_name_a_valid_floor(tried: HostileInputs, raws: list[object]) -> None:
    tried.tried += 1
    reply = as_held(raws)
    assert not isinstance(reply, Busy) or 0 <= reply.floor <= HIGHEST_TOKEN
