"""A lock without nodes, for tests of what is done with it: replicas share a dict of keys."""

from __future__ import annotations

from dataclasses import dataclass, field

from celery_redlock.redlock import Lease
from celery_redlock.redlock.errors import LockHeld, QuorumUnavailable
from celery_redlock.redlock.lease import holder_of, new_owner
from celery_redlock.redlock.placement import Placement

from .fake_clock import FakeClock


class WallClock:
    """One host's clocks, over a time that all hosts share.

    Attributes:
        ahead: By how much the wall clock is ahead, seconds.
    """

    def __init__(self, shared: FakeClock, ahead: float = 0.0) -> None:
        self._shared = shared
        self.ahead = ahead

    def now(self) -> float:
        return self._shared.now()

    def wall_us(self) -> int:
        return round((self._shared.now() + self.ahead) * 1e6)

    def sleep(self, seconds: float) -> None:
        self._shared.sleep(seconds)


@dataclass
class FakeNodes:
    """What the nodes hold, for all replicas.

    Attributes:
        clock: The time that all hosts share.
        ahead: By how much the nodes' wall clocks are ahead of it, seconds.
        is_up: Whether a quorum answers.
        tell_time: Whether a quorum says what time it is.
        held: Owner and end of each key.
    """

    clock: FakeClock
    ahead: float = 0.0
    is_up: bool = True
    tell_time: bool = True
    held: dict[str, tuple[str, float]] = field(default_factory=dict)

    def redlock(self, ahead: float = 0.0) -> FakeRedlock:
        """Return the lock as a host has it whose wall clock is ahead by so much."""
        return FakeRedlock(self, WallClock(self.clock, ahead))

    def step(self, seconds: float) -> None:
        """Step the nodes' wall clocks, by which keys end."""
        self.ahead += seconds
        self.held = {key: (owner, ends - seconds) for key, (owner, ends) in self.held.items()}


class FakeRedlock:
    """A lock that one host has; what it is asked is kept in `asked`."""

    quorum = 2
    placement = Placement.of("redlock", [("a", 0, []), ("b", 0, []), ("c", 0, [])])

    def __init__(self, nodes: FakeNodes, clock: WallClock) -> None:
        self.nodes = nodes
        self.clock = clock
        self.asked: list[str] = []
        self.releases_to_fail = 0

    def check(self) -> dict[str, str]:
        return {}

    def clock_offsets(self) -> dict[str, float]:
        names = "abc" if self.nodes.is_up and self.nodes.tell_time else "a"
        return dict.fromkeys(names, self.clock.ahead - self.nodes.ahead)

    def reserve(
        self, key: str, ttl: float, *, label: str | None = None, supersedes: str | None = None
    ) -> Lease:
        self.asked.append(key)
        self._ask(key, "lock")
        now = self.clock.now()
        owner, ends = self.nodes.held.get(key, ("", 0.0))
        if ends > now and owner != supersedes:
            raise LockHeld(key, holder_of(owner), ends - now, owner=owner)
        owner = new_owner(label)
        self.nodes.held[key] = owner, now + ttl
        return Lease(key, owner, 1, round(ttl * 1000), now + ttl, self.clock, acquired_at=now)

    def release(self, lease: Lease, *, keep: float = 0.0) -> None:
        lease.is_released = True
        if self.releases_to_fail:
            self.releases_to_fail -= 1
            raise self._unavailable(lease.key, "release")
        self._ask(lease.key, "release")
        owner, ends = self.nodes.held.get(lease.key, ("", 0.0))
        if owner == lease.owner and ends > self.clock.now():
            self.nodes.held[lease.key] = owner, self.clock.now() + keep

    def read_holder(self, key: str) -> LockHeld | None:
        self._ask(key, "look at")
        now = self.clock.now()
        owner, ends = self.nodes.held.get(key, ("", 0.0))
        return LockHeld(key, holder_of(owner), ends - now, owner=owner) if ends > now else None

    def _ask(self, key: str, action: str) -> None:
        if not self.nodes.is_up:
            raise self._unavailable(key, action)

    @staticmethod
    def _unavailable(key: str, action: str) -> QuorumUnavailable:
        return QuorumUnavailable(key, {"a": "down", "b": "down"}, 3, action)
