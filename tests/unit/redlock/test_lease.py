"""A lease and its owner string."""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Callable
from typing import Any, cast

import pytest

from celery_redlock.redlock.errors import (
    HELD_TOO_LONG,
    NEVER_RENEWED,
    NOT_RENEWED,
    TAKEN_AWAY,
    ConfigurationError,
    LeaseLost,
)
from celery_redlock.redlock.lease import (
    Lease,
    holder_of,
    host_of,
    is_period,
    is_reservation,
    lost_in_block,
    new_owner,
    publication_of,
    release_or_warn,
    reserved_since,
    task_id_of,
    task_of,
    why_lost,
    without_nonces,
)
from tests.support.fakes.fake_clock import FakeClock

MARKED = f"{'a' * 24}decade00~:b"
"""A label that looks like the owner of a reserved period."""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(100.0)


@pytest.fixture
def lease(clock: FakeClock) -> Lease:
    return Lease("k", new_owner(), 7, 10_000, deadline=110.0, clock=clock, acquired_at=100.0)


def test_remaining_counts_down_to_the_deadline_and_no_further(
    lease: Lease, clock: FakeClock
) -> None:
    assert lease.remaining() == 10.0
    clock.move(4)
    assert lease.remaining() == 6.0
    clock.move(5.5)
    assert lease.remaining() == 0.5
    clock.move(1.5)
    assert lease.remaining() == 0.0


def test_nothing_remains_though_the_deadline_passes_meanwhile(lease: Lease) -> None:
    class Passing(FakeClock):
        def now(self) -> float:
            self.time += 20.0
            return self.time

    lease.clock = Passing(lease.deadline - 30.0)
    assert lease.remaining() == 0.0


def test_a_lease_is_lost_at_its_deadline_not_before(lease: Lease, clock: FakeClock) -> None:
    clock.time = 109.999
    before = lease.lost
    clock.time = 110.0
    assert [before, lease.lost] == [False, True]
    assert lease.remaining() == 0.0


def test_what_was_said_to_be_lost_stays_lost(lease: Lease) -> None:
    lease.backing.is_lost = True
    lease.deadline = 1e9
    assert lease.lost
    assert lease.remaining() == 0.0


def test_a_released_lease_is_over_but_not_lost(lease: Lease, clock: FakeClock) -> None:
    lease.is_released = True
    assert lease.remaining() == 0.0
    clock.move(100)
    assert not lease.lost


def test_ensure_asks_a_quorum_each_time(lease: Lease) -> None:
    asked: list[Lease] = []
    lease.backing.verify = asked.append
    lease.ensure()
    lease.ensure()
    assert asked == [lease, lease]


def test_ensure_passes_on_what_the_quorum_says(lease: Lease) -> None:
    def refuse(lease: Lease) -> None:
        raise LeaseLost(lease.key, "somebody else has it")

    lease.backing.verify = refuse
    with pytest.raises(LeaseLost, match="somebody else has it"):
        lease.ensure()


def test_ensure_asks_nobody_about_a_released_lease(lease: Lease) -> None:
    lease.backing.verify = lambda _: pytest.fail("asked")
    lease.is_released = True
    with pytest.raises(LeaseLost, match=r"it was released$") as ex:
        lease.ensure()
    assert ex.value.key == "k"


@pytest.mark.parametrize(
    ("hold_until", "is_by_hand", "reason"),
    [
        (None, True, NEVER_RENEWED),
        (None, False, NOT_RENEWED),
        (9.0, True, HELD_TOO_LONG),
        (1e9, True, NOT_RENEWED),
    ],
)
def test_a_lease_says_why_its_time_was_over(
    lease: Lease, hold_until: float | None, is_by_hand: bool, reason: str
) -> None:
    """A run's lease, which nobody extends by hand, is renewed by the run."""
    lease.hold_until = hold_until if hold_until is None else lease.deadline - 10.0 + hold_until
    lease.backing.lock = cast(Any, object()) if is_by_hand else None
    assert why_lost(lease) == reason
    lease.backing.lost_because = TAKEN_AWAY
    assert why_lost(lease) == TAKEN_AWAY


def test_ensure_vouches_for_nothing_when_there_is_nobody_to_ask(lease: Lease) -> None:
    with pytest.raises(LeaseLost):
        lease.ensure()


def test_a_lease_renewed_elsewhere_is_updated_first(lease: Lease, clock: FakeClock) -> None:
    def refresh(lease: Lease) -> None:
        lease.deadline = 200.0

    lease.backing.refresh = refresh
    clock.time = 150.0
    assert not lease.lost
    assert lease.remaining() == 50.0


def test_a_loss_that_is_noted_elsewhere_is_seen_at_once(lease: Lease) -> None:
    def refresh(lease: Lease) -> None:
        lease.backing.is_lost = True

    lease.backing.refresh = refresh
    assert lease.remaining() == 0.0
    assert lease.lost


@pytest.mark.parametrize(("end", "action"), [(Lease.extend, "extend"), (Lease.release, "release")])
def test_a_lease_of_a_run_is_not_ended_or_renewed_by_hand(
    lease: Lease, end: Callable[[Lease], None], action: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot {action} 'k' by hand"):
        end(lease)


def test_a_block_around_the_lease_of_a_run_does_not_release_it(lease: Lease) -> None:
    with pytest.raises(ConfigurationError, match="cannot release 'k' by hand"), lease:
        pass


def test_a_block_whose_lease_was_lost_says_so() -> None:
    reason = "others may have had the lock before its block ended"
    lease = Lease("k", new_owner(), 7, 10_000, deadline=110.0, clock=FakeClock(110.0))
    assert str(lost_in_block(lease)) == f"the lease on 'k' is lost: {reason}"


def test_two_leases_are_never_equal(lease: Lease, clock: FakeClock) -> None:
    twin = Lease("k", lease.owner, 7, 10_000, deadline=110.0, clock=clock, acquired_at=100.0)
    assert lease != twin
    assert len({lease, twin}) == 2


def test_a_release_that_fails_at_the_end_is_told_and_not_raised(
    lease: Lease, caplog: pytest.LogCaptureFixture
) -> None:
    given: list[tuple[object, ...]] = []

    def fail(lease: Lease, keep: float, *, done: str) -> None:
        given.append((lease, keep, done))
        raise LeaseLost(lease.key, "too late")

    assert not release_or_warn(fail, lease, 1.5, done="task-9")
    assert given == [(lease, 1.5, "task-9")]
    [told] = [record.getMessage() for record in caplog.records]
    assert told == "lock not released key=k error=the lease on 'k' is lost: too late"


def test_a_confirmed_release_at_the_end_is_known_to_be(lease: Lease) -> None:
    assert release_or_warn(lambda _: None, lease)


# ---- owners


def test_an_owner_is_128_random_bits_and_who_it_is() -> None:
    assert re.fullmatch(r"[0-9a-f]{32}:task-1@host-1", new_owner("task-1", "host-1"))


def test_an_owner_is_never_used_twice() -> None:
    assert len({new_owner("task", "host") for _ in range(1000)}) == 1000


def test_an_owner_without_a_label_names_process_and_machine() -> None:
    assert new_owner().partition(":")[2] == f"pid-{os.getpid()}@{socket.gethostname()}"


@pytest.mark.parametrize("label", ["task-1", "a:b", "a@b", "a@b:c@d", "ünï", " "])
def test_label_and_host_are_found_again(label: str) -> None:
    owner = new_owner(label, "worker.example")
    assert task_of(owner) == label
    assert host_of(owner) == "worker.example"


def test_an_owner_says_whether_it_reserves() -> None:
    owner = new_owner("a~:b", "host", is_reservation=True)
    assert is_reservation(owner)
    assert (task_of(owner), host_of(owner)) == ("a~:b", "host")
    assert not is_reservation(new_owner("a~:b", "host"))
    assert not is_reservation(None)


@pytest.mark.parametrize("publication", ["", "0123abcd"])
@pytest.mark.parametrize("is_reserved", [False, True])
def test_an_owner_says_whether_it_is_a_period(publication: str, is_reserved: bool) -> None:
    owner = new_owner(
        MARKED, "host", publication=publication, is_reservation=is_reserved, is_period=True
    )
    assert is_period(owner)
    assert is_reservation(owner) is is_reserved
    assert (task_of(owner), host_of(owner)) == (MARKED, "host")
    assert publication_of(owner) == publication
    assert not is_period(new_owner(MARKED, publication=publication, is_reservation=is_reserved))
    assert not is_period(f"{'a' * 24}decade00")
    assert not is_period(f"{'a' * 23}decade00:b")
    assert not is_period(None)


def test_random_bits_never_say_that_an_owner_is_a_period(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = [f"{'a' * 24}decade00", f"{'b' * 24}decade00", "decade00" * 3 + "a" * 8]
    monkeypatch.setattr(secrets, "token_hex", lambda _: drawn.pop(0))
    assert new_owner("t", "host") == f"{'decade00' * 3}{'a' * 8}:t@host"


@pytest.mark.parametrize("is_reserved", [False, True])
def test_the_publication_in_an_owner_is_found_again(is_reserved: bool) -> None:
    owner = new_owner("a.b:c", publication="0123abcd", is_reservation=is_reserved)
    assert publication_of(owner) == "0123abcd"
    assert publication_of(new_owner("a.b:c", is_reservation=is_reserved)) == ""
    assert publication_of(None) == ""


FOREIGN = [None, "", "somebody else's value", "a:", "a:b", "a@b"]


@pytest.mark.parametrize("owner", FOREIGN)
def test_a_foreign_value_names_no_task(owner: str | None) -> None:
    assert task_of(owner) is None


@pytest.mark.parametrize("label", ["task-1", "pid-", "pid-1a", "a…b"])
@pytest.mark.parametrize("is_reserved", [False, True])
def test_the_id_of_a_task_is_found_again(label: str, is_reserved: bool) -> None:
    publication = "0123abcd" if is_reserved else ""
    owner = new_owner(label, "host", publication=publication, is_reservation=is_reserved)
    assert task_id_of(owner) == label


@pytest.mark.parametrize("owner", [None, "", "a:b@host", f"{'a' * 32}:", f"{'a' * 32}:b"])
def test_a_foreign_value_names_no_id_of_a_task(owner: str | None) -> None:
    assert task_id_of(owner) is None


@pytest.mark.parametrize("label", [None, "a" * 513, "\ud800"])
def test_a_process_and_a_shortened_label_are_no_id(label: str | None) -> None:
    assert task_id_of(new_owner(label)) is None


@pytest.mark.parametrize("owner", FOREIGN)
def test_a_foreign_value_names_no_host(owner: str | None) -> None:
    assert host_of(owner) is None


@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize("is_reserved", [False, True])
@pytest.mark.parametrize("publication", ["", "0123456789abcdef"])
def test_an_owner_is_told_without_its_nonce(
    lease: Lease, lasts: bool, is_reserved: bool, publication: str
) -> None:
    owner = new_owner(
        "task:1@2", "host", publication=publication, is_reservation=is_reserved, is_period=lasts
    )
    assert holder_of(owner) == "task:1@2@host"
    mark = "~" if is_reserved else ""
    assert without_nonces(f"got {owner.encode()!r}") == f"got b'...{mark}:task:1@2@host'"
    lease.owner = owner
    assert owner[:32] not in repr(lease)


def test_what_is_no_nonce_is_told_as_it_is() -> None:
    told = f"NOSCRIPT {'a1' * 20}: {'b2' * 16}, {'c3' * 8}:x"
    assert without_nonces(told) == told


# ---- the time of a reservation


def test_a_reservation_tells_when_it_began() -> None:
    since_us = 1_795_365_753_594_200
    owner = new_owner("t", publication="ab12", is_reservation=True, since_us=since_us)
    assert reserved_since(owner) == 1_795_365_753.594
    assert reserved_since(new_owner("t", is_reservation=True, since_us=since_us)) is not None
    assert is_reservation(owner)
    assert (publication_of(owner), task_of(owner)) == ("ab12", "t")
    assert re.fullmatch(r"[0-9a-f]{32}\.ab12", owner.partition("~")[0])


def test_no_two_reservations_of_a_moment_have_one_owner() -> None:
    owners = {new_owner("t", is_reservation=True, since_us=10**15) for _ in range(1000)}
    assert len(owners) == 1000


def test_without_a_time_all_bits_are_random() -> None:
    assert len({new_owner(is_reservation=True)[:12] for _ in range(100)}) == 100


@pytest.mark.parametrize(
    ("since_s", "is_told"),
    [(1_699_999_999, False), (1_700_000_000, True), (4_102_444_799, True), (4_102_444_800, False)],
)
def test_only_a_likely_time_is_told(since_s: int, *, is_told: bool) -> None:
    owner = new_owner("t", is_reservation=True, since_us=since_s * 10**6)
    assert reserved_since(owner) == (since_s if is_told else None)


@pytest.mark.parametrize(
    "owner",
    [None, "", "018f00000000600000000000000000000~:t@h",
     "018f0000000060000000000000000000~:t@h", "018f0000000070000000000000000000:t@h",
     "x018f000000007000000000000000000~:t@h"],
)  # fmt: skip
def test_another_owner_tells_no_time(owner: str | None) -> None:
    assert reserved_since(owner) is None
