"""Records of leases are the same after their way through the shared memory, or are none."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_redlock.pools.lease_record import LeaseRecord, LeaseState, decode, encode
from celery_redlock.redlock import Lease
from celery_redlock.redlock.lease import new_owner
from tests.support.fakes.fake_clock import FakeClock

# Keys may carry lone surrogates: what a body was given that is not UTF-8.
TEXTS = st.text(st.characters(exclude_categories=()))
OWNERS = st.text(string.hexdigits + string.punctuation)
COUNTS = st.integers(0, 2**63)
TIMES = st.floats(allow_nan=False)
LEASES = st.builds(
    LeaseRecord,
    pid=COUNTS,
    owner=OWNERS,
    key=TEXTS,
    token=COUNTS,
    ttl_ms=COUNTS,
    deadline=TIMES,
    acquired_at=TIMES,
    hold_until=st.none() | TIMES,
    superseded=TEXTS,
    min_hold_until=TIMES,
    done=st.none() | TEXTS,
    will_be_redelivered=st.none() | st.booleans(),
    lock_delay_ms=COUNTS,
)
STATES = st.builds(LeaseState, nonce=OWNERS, deadline=TIMES, is_lost=st.booleans())
RECORDS = st.one_of(LEASES, STATES)


def new_lease() -> Lease:
    return Lease(
        "k",
        new_owner("task-1"),
        7,
        10_000,
        deadline=10.0,
        clock=FakeClock(1.0),
        acquired_at=2.0,
        superseded="owner-0",
        hold_until=86_400.0,
        lock_delay_ms=5000,
    )


@given(RECORDS, st.binary())
def test_a_record_survives_its_encoding(record: LeaseRecord | LeaseState, after_it: bytes) -> None:
    assert decode(encode(record) + after_it) == record


@given(RECORDS, RECORDS, st.data())
def test_a_record_partly_overwritten_is_one_or_none(
    old: LeaseRecord | LeaseState,
    new: LeaseRecord | LeaseState,
    data: st.DataObject,
) -> None:
    before, after = encode(old), encode(new)
    before = before.ljust(len(after), b"\0")
    at = data.draw(st.integers(0, len(after)))
    for mixed in (after[:at] + before[at:], before[:at] + after[at:] + before[len(after) :]):
        assert decode(mixed) in (None, old, new)


def test_memory_that_was_never_written_has_no_record() -> None:
    assert decode(bytes(100)) is None


@pytest.mark.parametrize("will_be_redelivered", [None, True, False])
def test_a_lease_survives_its_record(will_be_redelivered: bool | None) -> None:
    lease = new_lease()
    record = LeaseRecord.of(
        lease, pid=1, min_hold_until=3.0, done="d", will_be_redelivered=will_be_redelivered
    )
    assert (record.pid, record.min_hold_until, record.done) == (1, 3.0, "d")
    assert record.will_be_redelivered is will_be_redelivered
    again = record.new_lease(lease.clock)
    assert again is not lease
    for name in set(Lease.__slots__) - {"backing"}:
        assert getattr(again, name) == getattr(lease, name), name


def test_a_state_is_of_one_lease_only() -> None:
    lease, other = new_lease(), new_lease()
    assert LeaseState.of(lease).is_of(lease)
    assert not LeaseState.of(lease).is_of(other)


def test_an_attempt_becomes_a_lease_of_its_whole_ttl() -> None:
    lease = LeaseRecord(1, "owner-1", "k", 0, 2500).new_lease(FakeClock(4.0))
    assert (lease.key, lease.owner, lease.token, lease.ttl_ms) == ("k", "owner-1", 0, 2500)
    assert lease.remaining() == pytest.approx(2.5)
