"""Users' code that raises on a thread of the lock, with real threads and servers."""

from __future__ import annotations

import threading

import pytest

from celery_redlock.redlock import Lease, LeaseLost, Redlock
from celery_redlock.redlock.events import Event, NodeDown, NodeUp
from celery_redlock.testing import Servers
from tests.conftest import NewRedlock
from tests.support.eventually import eventually
from tests.support.judges.nodes import assert_freed

TTL_S = 3.0
"""As long as a busy machine stands still."""
ENDING = pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, KeyboardInterrupt])


def take_away(five: Servers, key: str) -> None:
    """Let the lock of a key be lost, as after a higher token."""
    for server in five:
        with server.client() as client:
            client.delete(f"redlock:{{{key}}}")
            client.set(f"redlock:{{{key}}}:floor", 2**52)


def assert_renewed(lease: Lease) -> None:
    deadline = lease.deadline
    eventually(lambda: lease.deadline > deadline)
    assert not lease.lost


@ENDING
def test_on_lost_that_raises_ends_no_other_renewal(
    five: Servers, redlock: Redlock, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    def fail(lease: Lease) -> None:
        told.append(lease.key)
        raise error

    other = redlock.acquire("other", TTL_S, renew=True, on_lost=fail)
    for key in ("a", "b"):
        redlock.acquire(key, TTL_S, renew=True, on_lost=fail)
        take_away(five, key)
    eventually(lambda: sorted(told) == ["a", "b"])
    assert_renewed(other)
    take_away(five, "other")
    eventually(lambda: "other" in told)
    # Logged after the call.
    eventually(lambda: caplog.text.count("loss not reported to the holder") == 3)


@pytest.mark.parametrize("verb", ["release", "acquire", "drop", "extend", "close"])
def test_on_lost_may_use_the_lock_itself(five: Servers, redlock: Redlock, verb: str) -> None:
    told: list[str] = []

    def use(lease: Lease) -> None:
        told.append(lease.key)
        if verb == "release":
            other.release()
        elif verb == "acquire":
            redlock.acquire("another", TTL_S).release()
        elif verb == "drop":
            assert redlock.drop("other")
        elif verb == "extend":
            with pytest.raises(LeaseLost):
                lease.extend()
        else:
            redlock.close()
        told.append(verb)

    lease = redlock.acquire("k", TTL_S, renew=True, on_lost=use)
    other = redlock.acquire("other")
    take_away(five, "k")
    eventually(lambda: told == ["k", verb])
    assert lease.lost
    later = redlock.acquire("later", TTL_S, renew=True)
    assert_renewed(later)
    later.release()
    assert_freed(five, "later")


@ENDING
def test_an_observer_that_raises_ends_no_thread(
    five: Servers, new_redlock: NewRedlock, error: type[BaseException]
) -> None:
    """Neither the keeper's nor one that connects."""
    seen: list[tuple[str, bool]] = []

    def fail(event: Event) -> None:
        is_callers = threading.current_thread() is threading.main_thread()
        seen.append((type(event).__name__, is_callers))
        if not is_callers:
            raise error

    redlock = new_redlock(five.urls, observers=[fail])
    lease = redlock.acquire("k", TTL_S, renew=True)
    eventually(lambda: (NodeUp.__name__, False) in seen)
    five[0].kill()
    eventually(lambda: (NodeDown.__name__, False) in seen)
    five[0].start()
    eventually(lambda: seen.count((NodeUp.__name__, False)) > 5)
    assert_renewed(lease)
    lease.release()
