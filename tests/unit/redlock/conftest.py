"""Simulated nodes, a lock on them, and chance that is certain."""

from __future__ import annotations

import random

import pytest

from celery_redlock.redlock import Redlock
from celery_redlock.redlock.events import Event
from celery_redlock.redlock.lease import Lease
from tests.support.fakes.simulated_network import Network


@pytest.fixture
def five(monkeypatch: pytest.MonkeyPatch) -> Network:
    return Network(5, monkeypatch)


@pytest.fixture
def longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every random pause is as long as it can be."""
    monkeypatch.setattr(random, "uniform", lambda low, high: high)


@pytest.fixture
def seen() -> list[Event]:
    """What observers of `redlock` were told."""
    return []


@pytest.fixture
def redlock(five: Network, seen: list[Event]) -> Redlock:
    """A client of the five nodes."""
    redlock = five.redlock()
    redlock.observers.append(seen.append)
    return redlock


@pytest.fixture
def lease(redlock: Redlock, five: Network, seen: list[Event]) -> Lease:
    """A lease of `redlock`; nothing has been sent or told since."""
    lease = redlock.acquire("k", ttl=30.0)
    five.log.clear()
    seen.clear()
    return lease
