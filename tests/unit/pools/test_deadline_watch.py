"""A pool process looks after its leases when the main process does not."""

from __future__ import annotations

import math

from celery_redlock.pools.deadline_watch import DeadlineWatch
from celery_redlock.redlock import Lease
from celery_redlock.redlock.lease import new_owner
from tests.support.fakes.fake_clock import FakeClock


class Watched:
    """A watch without its thread, over leases that are held."""

    def __init__(self) -> None:
        self.clock = FakeClock(0.0)
        self.leases: dict[Lease, int] = {}
        self.expired: list[Lease] = []
        self.watch = DeadlineWatch(self.leases, self.clock, self.expired.append)

    def hold(self, until: float) -> Lease:
        lease = Lease("k", new_owner(), 7, 10_000, deadline=until, clock=self.clock)
        self.leases[lease] = 0
        return lease


def test_the_next_check_is_at_the_earliest_deadline() -> None:
    held = Watched()
    assert held.watch.check() == math.inf
    held.hold(30.0)
    held.hold(20.0)
    assert held.watch.check() == 20.0
    assert held.expired == []


def test_a_lease_that_expired_is_reported_once() -> None:
    held = Watched()
    lease, other = held.hold(10.0), held.hold(30.0)
    held.clock.move(10.0)
    assert held.watch.check() == other.deadline
    held.watch.check()
    assert held.expired == [lease]


def test_a_lease_renewed_in_the_shared_table_is_not_reported() -> None:
    held = Watched()
    lease = held.hold(10.0)

    def read_page(lease: Lease) -> None:
        lease.deadline = 17.0

    lease.backing.refresh = read_page
    held.clock.move(10.0)
    assert held.watch.check() == 17.0
    assert held.expired == []


def test_a_lease_that_was_released_is_not_reported() -> None:
    held = Watched()
    lease = held.hold(10.0)
    held.clock.move(11.0)
    del held.leases[lease]
    assert held.watch.check() == math.inf
    assert held.expired == []


def test_only_a_lease_that_ends_before_the_next_check_wakes() -> None:
    held, wakes = Watched(), []

    class Wakeup:
        def wake(self) -> None:
            wakes.append(held.clock.now())

    held.watch._wakeup = Wakeup()  # type: ignore[assignment]
    held.hold(30.0)
    held.watch.check()
    for _ in range(100):  # short tasks, one after the other
        held.watch.add(held.hold(30.0))
    assert wakes == []
    held.watch.add(held.hold(5.0))
    assert len(wakes) == 1


def test_a_lease_added_during_a_check_is_not_missed() -> None:
    held, wakes = Watched(), []

    class Wakeup:
        def wake(self) -> None:
            wakes.append(held.clock.now())

    held.watch._wakeup = Wakeup()  # type: ignore[assignment]
    first = held.hold(30.0)
    assert held.watch.check() == 30.0

    def take_another(_: Lease) -> None:
        first.backing.refresh = None
        held.watch.add(held.hold(40.0))

    first.backing.refresh = take_another
    held.watch.check()
    assert len(wakes) == 1
