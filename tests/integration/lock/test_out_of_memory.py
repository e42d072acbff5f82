"""Memory that runs out at whichever allocation of an acquisition leaves no lock behind."""

from __future__ import annotations

import subprocess
import sys

import pytest

from celery_redlock.testing import Servers
from tests.support.eventually import eventually
from tests.support.judges.nodes import holders_on
from tests.support.root import ROOT

ALLOCATIONS = 400
"""More than one acquisition makes; the rest fail elsewhere, or not at all."""
FREED_S = 40.0
"""Less than the ttl: it is freed, and does not just expire."""


def test_no_allocation_that_fails_leaves_a_lock(five: Servers) -> None:
    pytest.importorskip("_testcapi", reason="this Python comes without its own test modules")
    three = Servers(five[:3])
    command = [sys.executable, "-m", "tests.support.processes.out_of_memory", str(ALLOCATIONS)]
    with subprocess.Popen(
        [*command, *three.urls], cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:  # fmt: skip
        assert process.stdout
        assert process.stdin
        try:
            assert int(process.stdout.readline()) > 50
            for number in range(ALLOCATIONS):
                free = lambda key=f"memory-{number}": set(holders_on(three, key)) == {None}  # noqa: E731
                eventually(free, f"allocation {number} leaves no lock", within=FREED_S)
        finally:
            process.stdin.close()
    assert process.returncode == 0
