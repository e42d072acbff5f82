"""The known ladder of Redis locks: each rung as it is found in articles, and as it fails.

A foil gets its clock, since several of these locks rest on one.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_redlock.redlock.clock import Clock, SystemClock

KEY = "job"
_COMPARE_AND_DELETE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
"""


@dataclass(frozen=True, slots=True)
class Held:
    """A lock as its holder knows it.

    Attributes:
        value: Value of the key.
        token: Fencing token; None: this lock has none.
    """

    value: str
    token: int | None = None


class Client(Protocol):
    """One client of a lock with the key `KEY`."""

    def acquire(self, ttl: float) -> Held | None:
        """Return the lock, or None if it is refused; one attempt. `ttl`: seconds."""

    def release(self, held: Held) -> None:
        """Release what `acquire` returned."""

    def know_nodes(self) -> None:
        """Connect to every node, as one that has been up for long; or again, after a restart."""

    def close(self) -> None:
        """Close the connections."""


NewClient = Callable[[Sequence[str], Clock], Client]


class Foil:
    """What the rungs share: connections that never retry."""

    def __init__(self, urls: Sequence[str], clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._nodes = [
            redis.Redis.from_url(url, socket_timeout=10, retry=Retry(NoBackoff(), 0))
            for url in urls
        ]
        self._redis = self._nodes[0]

    def release(self, held: Held) -> None:
        """Delete the key, whoever has it."""
        self._redis.delete(KEY)

    def know_nodes(self) -> None:
        """Connect when there is something to send."""

    def close(self) -> None:
        """Close the connections."""
        for node in self._nodes:
            node.close()


class SetnxThenExpire(Foil):
    """Two commands: between them a client may die."""

    seconds_between = 0.0

    def acquire(self, ttl: float) -> Held | None:
        """Return the lock, or None if it is refused."""
        if not self._redis.setnx(KEY, "locked"):
            return None
        if self.seconds_between:
            self._clock.sleep(self.seconds_between)
        self._redis.pexpire(KEY, round(ttl * 1000))
        return Held("locked")


class GetsetTimestamps(Foil):
    """The key holds the time at which the lock ends; whoever finds that in the past has it."""

    def acquire(self, ttl: float) -> Held | None:
        """Return the lock, or None if it is refused."""
        now = self._clock.wall_us()
        ends_at = str(now + round(ttl * 1e6))
        before = self._redis.getset(KEY, ends_at)
        if isinstance(before, bytes) and int(before) > now:
            return None
        return Held(ends_at)


class GetThenGetset(Foil):
    """The same, but looks first: no contender postpones the end. It rests on all wall clocks."""

    def acquire(self, ttl: float) -> Held | None:
        """Return the lock, or None if it is refused."""
        now = self._clock.wall_us()
        ends_at = str(now + round(ttl * 1e6))
        if self._redis.setnx(KEY, ends_at):
            return Held(ends_at)
        seen = self._redis.get(KEY)
        if isinstance(seen, bytes) and int(seen) > now:
            return None
        return Held(ends_at) if self._redis.getset(KEY, ends_at) == seen else None


class SetNxPlainDel(Foil):
    """One command with an expiry; released with DEL."""

    def acquire(self, ttl: float) -> Held | None:
        """Return the lock, or None if it is refused."""
        done = self._redis.set(KEY, "locked", nx=True, px=round(ttl * 1000))
        return Held("locked") if done else None


class TimestampAsValue(Foil):
    """Releases only its own value; that is the second in which it was acquired."""

    def acquire(self, ttl: float) -> Held | None:
        """Return the lock, or None if it is refused."""
        value = str(self._clock.wall_us() // 1_000_000)
        return Held(value) if self._redis.set(KEY, value, nx=True, px=round(ttl * 1000)) else None

    def release(self, held: Held) -> None:
        """Delete the key if it has this value."""
        self._redis.eval(_COMPARE_AND_DELETE, 1, KEY, held.value)


class OneMaster(TimestampAsValue):
    """A random value, compared in Lua: correct, as long as that one server remembers."""

    def acquire(self, ttl: float) -> Held | None:
        """Return the lock, or None if it is refused."""
        value = secrets.token_hex(16)
        return Held(value) if self._redis.set(KEY, value, nx=True, px=round(ttl * 1000)) else None


class PlainRedlock(Foil):
    """The same on a majority of independent nodes: Redlock, without a token and without a guard."""

    def acquire(self, ttl: float) -> Held | None:
        """Return the lock, or None if it is refused."""
        held = Held(secrets.token_hex(16))
        started, granted = self._clock.now(), 0
        for node in self._nodes:
            with contextlib.suppress(redis.RedisError):
                granted += bool(node.set(KEY, held.value, nx=True, px=round(ttl * 1000)))
        is_valid = self._clock.now() - started < ttl * 0.99 - 0.002
        if granted > len(self._nodes) // 2 and is_valid:
            return held
        self.release(held)
        return None

    def release(self, held: Held) -> None:
        """Delete the key where it has this value."""
        for node in self._nodes:
            with contextlib.suppress(redis.RedisError):
                node.eval(_COMPARE_AND_DELETE, 1, KEY, held.value)
