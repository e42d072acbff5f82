"""Wait for something to become true: how a test stays independent of the machine's speed."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 180.0
"""Seconds; far more than it takes anywhere, so that only what never happens is a failure."""

_SHORTEST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.1


def eventually(is_true: Callable[[], object], claim: str = "", within: float = PATIENCE) -> None:
    """Return as soon as `is_true()` is truthy.

    Args:
        is_true: Asked again and again.
        claim: What is waited for, for the error's message.
        within: Seconds; when they have passed, the test fails.
    """
    began = time.monotonic()
    while not is_true():
        waited = time.monotonic() - began
        if waited > within:
            raise AssertionError(f"not within {within:g} s: {claim or is_true}")
        # To ask takes processor time that what is waited for may need: a fiftieth later is as good.
        time.sleep(min(_SHORTEST_PAUSE_S + waited / 50, _LONGEST_PAUSE_S))
