"""A holder that stands still and writes late: refused by a fenced register, seen by the judge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path

import pytest
import redis

from celery_redlock.redlock import Redlock
from celery_redlock.testing import Servers
from tests.conftest import NewRedlock
from tests.support.judges.fenced_register import (
    ACCEPTED,
    REFUSED,
    Book,
    FencedRegister,
    Register,
    history_in,
    refused_in,
    updates_lost,
)
from tests.support.judges.linearizability import Operation, judge

KEY = "stock"
NewRegister = Callable[..., Register]


@pytest.fixture
def new_register(five: Servers, tmp_path: Path) -> Iterator[NewRegister]:
    """Make a register on a server that is none of the lock's three nodes."""
    with redis.Redis.from_url(five[4].url) as client:
        yield lambda **options: Register(client, Book(tmp_path), **options)


def write_late(redlock: Redlock, register: Register) -> bool:
    """Write for a holder that stood still until the next one had written; return if that worked."""
    old = redlock.acquire(KEY, 60)
    assert register.claim(KEY, old.token)
    count = int(register.read(KEY) or 0)
    # As good as the end of its ttl, which on a slow machine would come before its first step.
    redlock.drop(KEY)
    new = redlock.acquire(KEY, 60)
    assert register.add_one(KEY, new.token)
    return register.write(KEY, old.token, str(count + 1))


def test_a_late_write_is_refused_and_the_history_is_right(
    new_redlock: NewRedlock, five: Servers, new_register: NewRegister, tmp_path: Path
) -> None:
    assert not write_late(new_redlock(five.urls[:3]), new_register())
    history = history_in(tmp_path)
    assert (judgement := judge(history, FencedRegister())).is_linearizable, str(judgement)
    assert refused_in(history) == 1
    assert updates_lost(history) == {}


def test_a_register_that_forgets_the_fence_is_found_out(
    new_redlock: NewRedlock, five: Servers, new_register: NewRegister, tmp_path: Path
) -> None:
    assert write_late(new_redlock(five.urls[:3]), new_register(is_fenced=False))
    history = history_in(tmp_path)
    judgement = judge(history, FencedRegister())
    assert not judgement.is_linearizable
    assert judgement.stuck_at == history[-1]
    assert updates_lost(history) == {KEY: 1}


def test_a_call_that_fails_is_one_that_never_returned(
    five: Servers, new_register: NewRegister, tmp_path: Path
) -> None:
    register = new_register()
    register.write(KEY, 5, "1")
    five[4].kill()
    with pytest.raises(redis.RedisError):
        register.write(KEY, 6, "2")
    assert [each.completed == inf for each in history_in(tmp_path)] == [False, True]


def wrote(token: int, value: str, result: str | None = ACCEPTED) -> Operation:
    return Operation(1, KEY, "write", (token, value), result, 0, 1 if result else inf)


def test_of_two_holders_with_one_token_an_update_is_lost() -> None:
    """The register can't tell them apart, and its history is right: so tokens must differ."""
    history = [wrote(1, "1"), wrote(1, "1")]
    assert updates_lost(history) == {KEY: 1}


def test_updates_that_were_refused_or_left_open_are_not_lost() -> None:
    assert updates_lost([wrote(1, "1"), wrote(1, "2", REFUSED), wrote(2, "2", None)]) == {}
    assert updates_lost([wrote(1, "1"), wrote(2, "2", None), wrote(3, "3")]) == {}
