"""However a run of the tests is told to end, fixtures stop what they have started."""

from __future__ import annotations

import signal

import pytest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_ends_the_tests_unwinds_them(number: signal.Signals) -> None:
    assert signal.getsignal(number) is signal.default_int_handler
