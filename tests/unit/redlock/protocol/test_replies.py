"""Replies of the nodes, as values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import pytest

from celery_redlock.redlock.protocol.quorum import (
    Verdict,
    acknowledged,
    extend_verdict,
    grant_verdict,
)
from celery_redlock.redlock.protocol.replies import (
    Acknowledged,
    AckReply,
    Declined,
    Extended,
    ExtendReply,
    Failed,
    Granted,
    GrantReply,
    Healed,
    Occupied,
    Superseded,
)


@pytest.mark.parametrize("replies", [GrantReply, ExtendReply, AckReply])
def test_a_node_may_fail_at_every_request(replies: object) -> None:
    assert Failed in get_args(replies)


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        (Extended(), Verdict.REACHED),
        (Healed(), Verdict.UNAVAILABLE),
        (Superseded(), Verdict.LOST),
        (Occupied(), Verdict.UNAVAILABLE),
    ],
    ids=lambda value: type(value).__name__,
)
def test_replies_that_compare_equal_are_told_apart(reply: ExtendReply, verdict: Verdict) -> None:
    assert reply == (), "as tuples they are the same"
    assert extend_verdict([reply] * 3) is verdict


def test_a_reply_without_fields_is_not_a_missing_one() -> None:
    nothing: Sequence[ExtendReply | None] = [None] * 3
    assert extend_verdict([Extended()] * 3) is not extend_verdict(nothing)


def test_a_declined_request_is_not_acknowledged() -> None:
    assert acknowledged([Acknowledged(was_ours=False), Acknowledged(), Declined()]) == 2


def test_a_grant_replaces_no_owner_unless_it_says_so() -> None:
    assert not Granted(7).took_over
    assert grant_verdict([Granted(7), Granted(8, took_over=True)]) is Verdict.REACHED
