"""Releases that the keeper makes if their caller does not."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest

from celery_redlock.redlock.unsettled import ReleaseRequest, UnsettledReleases, due_after
from tests.support.fakes.fake_clock import FakeClock

REQUEST = ReleaseRequest("k", "owner", due=1005.0, ends_at=1060.0)


class Stage:
    """Unsettled releases, and the nodes that confirm them.

    Attributes:
        made: When each release was made, and of which owner.
        is_confirmed: Whether the nodes confirm.
    """

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.made: list[tuple[float, str]] = []
        self.is_confirmed = True
        self.releases = UnsettledReleases(self.clock, self.make)

    def make(self, requests: Sequence[ReleaseRequest], patience: float) -> list[bool]:
        self.made += [(self.clock.now(), one.owner) for one in requests]
        return [self.is_confirmed] * len(requests)

    def owners(self) -> list[str]:
        return [owner for _, owner in self.made]

    def work_until(self, end: float) -> None:
        """Do what is due, each time that something is."""
        for _ in range(1000):
            self.releases.work(1.0)
            next_at = self.releases.next_at()
            if next_at > end:
                self.clock.time = end
                return
            self.clock.time = max(self.clock.time, next_at)
        pytest.fail("something is due again and again without any time passing")


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_release_is_made_when_it_is_due_and_once_more(stage: Stage) -> None:
    stage.releases.add(REQUEST)
    stage.work_until(1004.9)
    assert stage.made == []
    stage.work_until(1060.0)
    assert stage.made == [(1005.0, "owner"), (1006.0, "owner")], "behind a grant it overtook"
    assert len(stage.releases) == 0


def test_the_last_releases_are_made_at_once(stage: Stage) -> None:
    """Of a process that ends, with whatever callers it has; those that come then are not among."""
    stage.releases.add(REQUEST)
    stage.releases.make_last()
    stage.releases.add(REQUEST._replace(owner="later"))
    assert not stage.releases.are_last_made()
    stage.is_confirmed = False
    stage.releases.work(1.0)
    assert stage.owners() == ["owner"]
    assert not stage.releases.are_last_made()
    stage.is_confirmed = True
    stage.work_until(1004.9)
    assert stage.releases.are_last_made()
    assert "later" not in stage.owners()


def test_a_release_that_is_settled_holds_up_no_end(stage: Stage) -> None:
    stage.releases.add(REQUEST)
    stage.releases.make_last()
    stage.releases.settle("owner")
    assert stage.releases.are_last_made()


def test_a_settled_release_is_not_made(stage: Stage) -> None:
    stage.releases.add(REQUEST)
    assert stage.releases.settle("owner")
    stage.work_until(1060.0)
    assert stage.made == []


def test_a_release_is_unsettled_until_it_is_settled_or_made(stage: Stage) -> None:
    stage.releases.add(REQUEST)
    assert stage.releases.is_unsettled("owner")
    stage.releases.settle("owner")
    assert not stage.releases.is_unsettled("owner")
    stage.releases.add(REQUEST)
    stage.clock.move(5.1)
    stage.releases.work(1.0)
    assert stage.releases.is_unsettled("owner"), "the keeper makes it"
    stage.work_until(1060.0)
    assert not stage.releases.is_unsettled("owner")


def test_a_release_the_keeper_makes_can_not_be_settled(stage: Stage) -> None:
    stage.releases.add(REQUEST)
    stage.clock.move(5.1)
    assert stage.releases.work(1.0)
    assert stage.releases.is_taken("owner")
    assert not stage.releases.settle("owner")


def test_a_release_is_repeated_until_it_is_confirmed_twice(stage: Stage) -> None:
    stage.is_confirmed = False
    stage.releases.add(REQUEST._replace(due=0.0))
    stage.work_until(1030.0)
    assert 5 < len(stage.made) < 20, "ever less often"
    stage.is_confirmed = True
    unconfirmed = len(stage.made)
    stage.work_until(1060.0)
    assert len(stage.made) == unconfirmed + 2


def test_a_release_is_confirmed_twice_also_when_it_fails_between(stage: Stage) -> None:
    stage.releases.add(REQUEST._replace(due=0.0))
    stage.releases.work(1.0)
    stage.is_confirmed = False
    stage.work_until(stage.clock.now() + 5.0)
    assert len(stage.releases) == 1
    stage.is_confirmed = True
    stage.work_until(1060.0)
    assert len(stage.releases) == 0


def test_a_release_is_repeated_for_hours(stage: Stage) -> None:
    stage.is_confirmed = False
    stage.releases.add(REQUEST._replace(due=0.0, ends_at=math.inf))
    for _ in range(1100):
        stage.clock.time = max(stage.clock.time, stage.releases.next_at())
        stage.releases.work(1.0)
    assert len(stage.made) == 1100


def test_nothing_is_made_while_nothing_is_due(stage: Stage) -> None:
    rounds: list[float] = []

    def make(requests: Sequence[ReleaseRequest], patience: float) -> list[bool]:
        rounds.append(patience)
        return [True] * len(requests)

    releases = UnsettledReleases(stage.clock, make)
    releases.add(REQUEST)
    releases.work(1.0)
    assert rounds == []


def test_a_release_is_not_repeated_once_its_lock_expired(stage: Stage) -> None:
    stage.is_confirmed = False
    stage.releases.add(REQUEST._replace(due=0.0))
    stage.work_until(1300.0)
    assert max(time for time, _ in stage.made) < 1066
    assert len(stage.releases) == 0


def test_a_caller_has_the_time_of_four_rounds_and_a_second() -> None:
    assert due_after(0.25) == 2.0


def test_the_release_of_an_interrupted_caller_is_due_at_once(stage: Stage) -> None:
    stage.releases.add(REQUEST)
    stage.releases.hurry("owner")
    stage.releases.work(1.0)
    assert stage.made == [(1000.0, "owner")]


def test_an_owner_without_a_release_is_not_hurried(stage: Stage) -> None:
    stage.releases.hurry("owner")
    assert stage.releases.next_at() == float("inf")


def test_releases_that_are_due_together_are_made_together(stage: Stage) -> None:
    for number in range(3):
        stage.releases.add(REQUEST._replace(owner=f"owner-{number}", due=1001.0 + number))
    stage.clock.move(2.0)
    stage.releases.work(1.0)
    assert stage.made == [(1002.0, "owner-0"), (1002.0, "owner-1")]


def test_a_thousand_releases_are_made_together_at_most(stage: Stage) -> None:
    for number in range(1500):
        stage.releases.add(REQUEST._replace(owner=str(number), due=0.0))
    stage.releases.work(1.0)
    assert len(stage.made) == 1000
    stage.releases.work(1.0)
    assert len(set(stage.owners())) == 1500


def test_a_forked_child_makes_no_release_of_its_parent(stage: Stage) -> None:
    stage.releases.add(REQUEST._replace(due=0.0))
    stage.releases.work(1.0)
    stage.releases.add(REQUEST._replace(owner="another"))
    stage.releases.forget_all()
    stage.work_until(1060.0)
    assert stage.owners() == ["owner"]


@pytest.mark.parametrize("node_timeout", [0.05, 1.0, 60.0])
def test_a_caller_within_its_rounds_is_not_taken_for_dead(node_timeout: float) -> None:
    grant = confirm = release = node_timeout
    assert grant + confirm + release < due_after(node_timeout) < 5 * node_timeout + 2


@pytest.mark.parametrize(("keep_until", "keep_ms"), [(0.0, 0), (1000.0, 0), (1004.5, 4500)])
def test_a_key_is_kept_for_what_is_left_of_its_time(keep_until: float, keep_ms: int) -> None:
    assert REQUEST._replace(keep_until=keep_until).keep_ms(1000.0) == keep_ms


def test_releases_may_be_forgotten_while_they_are_made(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a child that forks meanwhile."""

    def forget(requests: Sequence[ReleaseRequest], patience: float) -> list[bool]:
        stage.releases.forget_all()
        stage.clock.move(60.0)
        return [True]

    monkeypatch.setattr(stage.releases, "_make", forget)
    stage.releases.add(REQUEST)
    stage.clock.time = 1005.0
    assert stage.releases.work(1.0)
    assert len(stage.releases) == 0


def test_releases_count_whether_they_are_taken_over_or_not(stage: Stage) -> None:
    stage.releases.add(REQUEST)
    stage.releases.add(REQUEST._replace(owner="another", due=1030.0))
    stage.clock.time = 1005.0
    stage.releases.work(1.0)
    assert len(stage.releases) == 2


def test_work_tells_whether_it_has_taken_a_release_over(stage: Stage) -> None:
    stage.releases.add(REQUEST)
    assert not stage.releases.work(1.0)
    stage.clock.time = 1005.0
    assert stage.releases.work(1.0)
    assert not stage.releases.work(1.0)


def test_a_release_behind_one_that_is_not_due_is_made(stage: Stage) -> None:
    stage.releases.add(REQUEST._replace(owner="later", due=1030.0))
    stage.releases.add(REQUEST)
    stage.clock.time = 1005.0
    stage.releases.work(1.0)
    assert stage.owners() == ["owner"]


class Settled(dict[str, ReleaseRequest]):
    """Releases that their callers settle just before the keeper takes them."""

    def values(self) -> Any:
        found = list(super().values())
        self.clear()
        return found


def test_a_release_that_its_caller_settles_meanwhile_is_not_taken(stage: Stage) -> None:
    stage.releases._pending = Settled(owner=REQUEST)
    stage.clock.time = 1005.0
    assert not stage.releases.work(1.0)
    assert stage.made == []
    assert len(stage.releases) == 0


def test_an_earlier_release_of_its_owner_is_still_made(stage: Stage) -> None:
    stage.releases.add(REQUEST)
    stage.clock.time = 1005.0
    assert stage.releases.work(1.0)
    stage.releases._pending = Settled(owner=REQUEST)
    assert not stage.releases.work(1.0)
    stage.work_until(1060.0)
    assert stage.made == [(1005.0, "owner"), (1006.0, "owner")]


class Struck(dict[str, Any]):
    """What is raised in the keeper's thread strikes after the first write to this, or before it."""

    def __init__(self, *, is_written: bool) -> None:
        super().__init__()
        self.is_written: bool | None = is_written

    def __setitem__(self, owner: str, value: Any) -> None:
        was_written, self.is_written = self.is_written, None
        if was_written is not False:
            super().__setitem__(owner, value)
        if was_written is not None:
            raise MemoryError


@pytest.mark.parametrize("is_settled", [False, True])
@pytest.mark.parametrize("is_written", [False, True])
def test_a_release_whose_taking_over_is_struck_is_its_callers(
    stage: Stage, is_written: bool, is_settled: bool
) -> None:
    """Who settles it, or leaves it to the next call."""
    stage.releases._taken = Struck(is_written=is_written)
    stage.releases.add(REQUEST)
    stage.clock.time = 1005.0
    with pytest.raises(MemoryError):
        stage.releases.work(1.0)
    assert not stage.releases.is_taken("owner")
    if is_settled:
        assert stage.releases.settle("owner")
    stage.work_until(1060.0)
    assert stage.owners() == ([] if is_settled else ["owner", "owner"])


def test_a_release_that_fails_is_made_again_less_and_less_often(stage: Stage) -> None:
    stage.is_confirmed = False
    stage.releases.add(REQUEST._replace(due=1000.0))
    stage.work_until(1020.0)
    times = [time for time, _ in stage.made]
    pauses = [round(after - before, 3) for before, after in itertools.pairwise(times)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


class Broken:
    """Releases of which some can't be made, for instance because they can't be encoded.

    Attributes:
        bad: Owners whose releases raise.
        tries: Owners of each round.
    """

    def __init__(self, clock: FakeClock, *bad: str) -> None:
        self.bad = set(bad)
        self.tries: list[list[str]] = []
        self.clock = clock
        self.releases = UnsettledReleases(clock, self.make)

    def make(self, requests: Sequence[ReleaseRequest], patience: float) -> list[bool]:
        owners = [one.owner for one in requests]
        self.tries.append(owners)
        if self.bad.intersection(owners):
            raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")
        return [True] * len(owners)

    def work_until(self, end: float) -> int:
        """Let the keeper's thread come; return how often it met an error."""
        errors = 0
        while self.clock.now() < end:
            try:
                self.releases.work(1.0)
            except UnicodeEncodeError:
                errors += 1
                self.clock.move(0.5)
            self.clock.move(max(0.0, min(1.0, self.releases.next_at() - self.clock.now())))
        return errors


def test_a_release_that_raises_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    stage = Broken(FakeClock(), "bad")
    for owner in ("a", "bad", "b"):
        stage.releases.add(REQUEST._replace(owner=owner, due=0.0))
    assert stage.work_until(1010.0) == 1
    assert not stage.releases.is_taken("a")
    assert not stage.releases.is_taken("b")
    assert stage.releases.is_taken("bad")
    [record] = caplog.records
    assert record.getMessage() == "release failed, retrying until its lock has expired key=k"
    assert record.exc_info


def test_a_release_that_always_raises_ends_with_its_lock(caplog: pytest.LogCaptureFixture) -> None:
    stage = Broken(FakeClock(), "bad")
    stage.releases.add(REQUEST._replace(owner="bad", due=0.0))
    stage.work_until(1300.0)
    assert len(stage.releases) == 0
    assert len(stage.tries) < 30
    assert len(caplog.records) == 1


def test_a_release_that_raised_once_is_made_twice_as_any(caplog: pytest.LogCaptureFixture) -> None:
    stage = Broken(FakeClock(), "a")
    stage.releases.add(REQUEST._replace(owner="a", due=0.0))
    stage.releases.add(REQUEST._replace(owner="b", due=0.0))
    with pytest.raises(UnicodeEncodeError):
        stage.releases.work(1.0)
    stage.bad.clear()
    stage.work_until(1010.0)
    assert len(stage.releases) == 0
    assert sorted(stage.tries) == [["a"], ["a"], ["a", "b"], ["b"], ["b"]]
    assert not caplog.records


def test_releases_that_are_made_alone_are_one_a_tick() -> None:
    """Each may take its time, and leases are renewed between two ticks."""
    stage = Broken(FakeClock(), "a")
    for owner in ("a", "b", "c"):
        stage.releases.add(REQUEST._replace(owner=owner, due=0.0))
    with pytest.raises(UnicodeEncodeError):
        stage.releases.work(1.0)
    stage.releases.work(1.0)
    assert stage.tries == [["a", "b", "c"], ["a"]]
    assert stage.releases.next_at() <= stage.clock.now()
