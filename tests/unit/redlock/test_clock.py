"""The clock that leases are measured with."""

from __future__ import annotations

import runpy
import time

import pytest

from celery_redlock.redlock import clock
from tests.support.requirements import linux_only


@linux_only("has this clock")
def test_leases_are_measured_on_the_clock_that_counts_suspend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A machine that was suspended for an hour: its other clocks stood still meanwhile.
    clocks = {time.CLOCK_BOOTTIME: 3700.0, time.CLOCK_MONOTONIC: 100.0}
    monkeypatch.setattr(time, "clock_gettime", clocks.__getitem__)
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    # The module takes its clock when it is imported.
    fresh = runpy.run_path(clock.__file__)["SystemClock"]
    assert fresh().now() == 3700.0


@pytest.mark.parametrize("refusal", [OSError(22, "Invalid argument"), PermissionError()], ids=repr)
def test_a_clock_that_is_refused_is_not_used(
    monkeypatch: pytest.MonkeyPatch, refusal: OSError
) -> None:
    def refuse(_: int) -> float:
        raise refusal

    monkeypatch.setattr(time, "CLOCK_BOOTTIME", 7, raising=False)
    monkeypatch.setattr(time, "clock_gettime", refuse)
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    assert runpy.run_path(clock.__file__)["SystemClock"]().now() == 100.0


def test_tokens_are_proposed_in_whole_microseconds_since_the_epoch() -> None:
    proposed = clock.SystemClock().wall_us()
    assert isinstance(proposed, int)
    assert proposed / 1e6 == pytest.approx(time.time(), abs=60.0)


def test_a_pause_of_no_time_is_over() -> None:
    clock.SystemClock().sleep(0.0)
