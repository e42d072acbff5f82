"""A plugin of pytest for tests that mutants are tried on: the quickest first, each within limits.

Most mutants fail the first tests that reach them, so what takes seconds is seldom run at all. Some
mutants hang instead.
"""

from __future__ import annotations

import gc
import os

import pytest
from mutmut.state import state

_AT_LEAST_S = 2.0
_TIMES = 10


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort tests by how long each took without a mutant, and stop it after some times as long."""
    took = state().duration_by_test
    if not took:
        return
    # At its end, pytest looks through everything several times, which takes longer than most tests.
    gc.freeze()
    items.sort(key=lambda item: took.get(item.nodeid, 0.0))
    for item in items:
        item.add_marker(pytest.mark.timeout(_AT_LEAST_S + _TIMES * took.get(item.nodeid, 0.0)))


def pytest_sessionfinish(exitstatus: int) -> None:
    """Let a mutant live whose tests can't be run: mutmut would count it as one that hangs."""
    if exitstatus == pytest.ExitCode.USAGE_ERROR:
        os._exit(0)
