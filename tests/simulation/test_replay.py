"""A seed is all that a run depends on."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.support.root import ROOT

from .bugs import KNOWN_SEEDS
from .campaign import explained, shrunk, traced
from .shapes import schedule_of
from .tasks.schedule import FIRST_SEED

_PRINT = """
from tests.simulation.campaign import traced
from tests.simulation.shapes import schedule_of
for seed in {seeds}:
    print("\\n".join(traced(schedule_of(seed)).trace))
"""


def test_a_seed_replays_byte_for_byte_in_another_process() -> None:
    seeds = [*range(8), *range(FIRST_SEED, FIRST_SEED + 4)]
    code = _PRINT.format(seeds=seeds)
    here = "".join("\n".join(traced(schedule_of(seed)).trace) + "\n" for seed in seeds)
    made = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "7"}, capture_output=True, check=True,
    )  # fmt: skip
    assert made.stdout.decode() == here
    assert here.count("\n") > 300


@pytest.mark.parametrize("seed", [1, FIRST_SEED])
def test_seeds_differ_in_their_schedules_and_their_delays(seed: int) -> None:
    schedule, other = schedule_of(seed), schedule_of(seed + 1)
    assert replace(schedule, seed=other.seed) != other
    same_with_other_delays = replace(schedule, seed=other.seed)
    assert traced(schedule).trace != traced(same_with_other_delays).trace


def test_a_failing_schedule_is_shrunk_and_explained() -> None:
    bug = "release_of_any_owner"
    first = KNOWN_SEEDS[bug]
    seed = next(
        seed for seed in range(first, first + 3000) if traced(schedule_of(seed), bug).violation
    )
    violation = traced(schedule_of(seed), bug).violation
    assert violation
    small = shrunk(schedule_of(seed), violation.kind, bug)
    assert _size(small) < _size(schedule_of(seed))
    assert small == shrunk(small, violation.kind, bug)
    assert violation.kind in explained(seed, bug)


def _size(schedule: object) -> int:
    return len(str(schedule))
