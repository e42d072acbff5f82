"""When a spare is tried for a connection that does not answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import pytest

from celery_redlock.redlock.transport.connection import NodeConnection
from celery_redlock.redlock.transport.spares import Spares
from tests.support.fakes.fake_clock import FakeClock

PAUSE = 5.0


class Connection:
    """A connection that was made now, and has answered its greeting only."""

    def __init__(self, clock: FakeClock) -> None:
        self.identified_at = clock.now()
        self.greeted = self.received = 3


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def spares(clock: FakeClock) -> Spares:
    return Spares(clock)


def begins(spares: Spares, connection: Any) -> bool:
    return spares.begins(cast(NodeConnection, connection))


@pytest.mark.parametrize(
    ("is_made", "is_quick", "is_older", "has_answered", "later", "is_tried"),
    [
        (False, False, False, True, 0.0, False),
        (False, True, False, True, 0.0, False),
        (False, True, True, True, 0.0, False),
        (False, False, False, False, PAUSE - 0.1, False),
        (False, False, False, False, PAUSE, True),
        (True, False, False, True, 0.0, False),
        (True, False, True, False, 0.0, True),
        (True, True, False, False, 0.0, False),
        (True, True, False, True, 0.0, True),
        (True, True, False, False, PAUSE, True),
    ],
)
def test_when_a_spare_is_tried_again(
    spares: Spares, clock: FakeClock, is_made: bool, is_quick: bool, is_older: bool,
    has_answered: bool, later: float, is_tried: bool,
) -> None:  # fmt: skip
    connection = Connection(clock)
    assert begins(spares, connection)
    assert not begins(spares, connection)
    spares.ends(is_made=is_made, is_quick=is_quick)
    clock.move(later)
    connection.identified_at -= is_older
    connection.received += has_answered
    assert begins(spares, connection) == is_tried
    assert begins(spares, connection) == (is_tried and is_older), "one is under way"


def test_after_a_failure_an_older_connection_gets_no_spare_at_once(
    spares: Spares, clock: FakeClock
) -> None:
    """Each channel has an older one, and looks every few milliseconds."""
    connection = Connection(clock)
    clock.move(1.0)
    assert begins(spares, connection)
    spares.ends(is_made=True, is_quick=True)
    for _ in range(3):
        assert begins(spares, connection)
        spares.ends(is_made=False, is_quick=False)
        clock.move(0.09)
        assert not begins(spares, connection)
        clock.move(0.01)


@pytest.mark.parametrize(
    "end", [Spares.forget, lambda spares: spares.ends(is_made=True, is_quick=True)]
)
def test_when_a_spare_began_is_known_until_it_ends(
    spares: Spares, clock: FakeClock, end: Callable[[Spares], None]
) -> None:
    assert spares.began_at == -math.inf
    begins(spares, Connection(clock))
    assert spares.began_at == clock.now()
    end(spares)
    assert spares.began_at == -math.inf
