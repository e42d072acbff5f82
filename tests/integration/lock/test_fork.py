"""A fork in the middle of everything: what is the parent's stays the parent's."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from celery_redlock.testing import Servers
from tests.support.processes.forking import SCENARIOS
from tests.support.root import ROOT

LONG = ("anywhere", "generations", "pooled", "reused")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize(
    "scenario",
    [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in SCENARIOS],
)
def test_a_fork(five: Servers, scenario: str) -> None:
    command = [sys.executable, "-m", "tests.support.processes.forking", scenario, *five.urls]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{SCENARIOS[scenario].__doc__}\n{done.stderr}"
