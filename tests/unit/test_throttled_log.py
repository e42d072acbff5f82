"""The log level of an event that many messages meet."""

from __future__ import annotations

import logging

from celery_redlock.throttled_log import ThrottledLog
from tests.support.fakes.fake_clock import FakeClock


def levels(log: ThrottledLog, times: int) -> list[int]:
    return [log.occurred(logging.WARNING) for _ in range(times)]


def test_a_repeated_event_is_loud_once_and_again_after_a_while() -> None:
    clock = FakeClock()
    log = ThrottledLog(clock.now)
    assert levels(log, 3) == [logging.WARNING, logging.DEBUG, logging.DEBUG]
    clock.move(30)
    assert levels(log, 2) == [logging.WARNING, logging.DEBUG]
    assert log.count == 5


def test_the_end_of_an_event_is_logged_once_with_its_count() -> None:
    log = ThrottledLog()
    assert log.ended() == 0
    levels(log, 3)
    assert [log.ended(), log.ended()] == [3, 0]


def test_an_event_that_comes_and_goes_is_loud_no_more_often() -> None:
    clock = FakeClock()
    log = ThrottledLog(clock.now)
    said = []
    for _ in range(5):
        said += [*levels(log, 2), log.ended()]
    assert said == [logging.WARNING, logging.DEBUG, 2] + [logging.DEBUG, logging.DEBUG, 0] * 4
    clock.move(30)
    assert [*levels(log, 1), log.ended()] == [logging.WARNING, 1]
