"""One `Hold` in threads and processes, on real nodes."""

from __future__ import annotations

import multiprocessing
import threading
from contextlib import suppress
from typing import Any

import pytest

from celery_redlock.redlock import LockHeld, Redlock
from celery_redlock.redlock.lease import Lease
from celery_redlock.testing import Servers
from tests.conftest import NewRedlock
from tests.support.processes import spawned

WITHIN_S = 120


def test_eight_threads_that_share_a_hold_are_inside_one_by_one(redlock: Redlock) -> None:
    patient, impatient = redlock.lock("k", wait=100), redlock.lock("k")
    inside: list[int] = []
    tokens: list[int] = []
    overlaps: list[int] = []

    def enter(number: int, lease: Lease) -> None:
        inside.append(number)
        tokens.append(lease.token)
        lease.ensure()
        if inside != [number]:
            overlaps.append(number)
        inside.remove(number)

    def work(number: int) -> None:
        for _ in range(5):
            with suppress(LockHeld), impatient as lease:
                enter(number, lease)
            with patient as lease:
                enter(number, lease)

    threads = [threading.Thread(target=work, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not overlaps
    assert len(tokens) >= 40
    assert tokens == sorted(set(tokens))
    assert redlock.keeper.kept() == []
    assert not redlock.locked("k")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_process_that_is_passed_a_lock_uses_it(
    five: Servers, new_redlock: NewRedlock, method: str
) -> None:
    redlock = new_redlock(five.urls, observers=[spawned.observe])
    hold = redlock.lock("k", ttl=30.0, label="parent")
    context: Any = multiprocessing.get_context(method)
    results = context.SimpleQueue()
    with hold as lease:
        child = context.Process(target=spawned.hold_in_a_child, args=(results, redlock, hold))
        child.start()
        child.join(WITHIN_S)
        assert child.exitcode == 0
        assert 0 < results.get() <= 30
        assert results.get() == ["another"]
        lease.ensure()
        assert redlock.keeper.kept() == [lease]
    assert not redlock.locked("k")
