"""python -m tests.simulation: many schedules over several processes."""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import sys
import time
from multiprocessing import get_context

from tests.support.evidence import record

from .bugs import FOUND_WITHIN, SEEDS
from .campaign import Counts, campaign, control, explained, is_missed, slices_of


def main() -> int:
    """Run schedules; print what was found; return 1 if a schedule failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--schedules", type=int, default=100_000)
    parser.add_argument(
        "--calls", type=int, help="how many of them are of calls; a sixth, if not given"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the first schedule")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="begin no more after so long"
    )
    parser.add_argument("--replay", action="store_true", help="show one seed's trace, shrunk")
    parser.add_argument(
        "--controls",
        action="store_true",
        help="look for each known bug in fresh schedules that follow from --seed, not in the one"
        " that was picked for it; as many as `FOUND_WITHIN` says",
    )
    options = parser.parse_args()
    if options.replay:
        _say(explained(options.seed))
        return 0
    began = time.monotonic()
    whole = Counts()
    controls: list[dict[str, object]] = []

    def note_control(found: dict[str, object]) -> None:
        controls.append(found)
        _say(f"control {found}")

    # Spawned: each process starts alike.
    with get_context("spawn").Pool(options.processes, logging.disable) as pool:
        fresh = options.seed if options.controls else None
        # Those that take longest come first, and the schedules are run beside the last of them.
        sought = sorted(SEEDS, key=lambda bug: -FOUND_WITHIN[bug])
        seeking = [
            pool.apply_async(control, ((bug, fresh),), callback=note_control) for bug in sought
        ]
        calls = options.schedules // 6 if options.calls is None else options.calls
        slices = slices_of(options.seed, options.schedules - calls, calls)
        waiting = [
            pool.apply_async(campaign, (one,))
            for one in itertools.islice(slices, options.processes)
        ]
        while waiting:
            whole.add(waiting.pop(0).get())
            if time.monotonic() - began < options.seconds:
                waiting += [
                    pool.apply_async(campaign, (one,)) for one in itertools.islice(slices, 1)
                ]
        for one in seeking:
            one.get()
    seconds = round(time.monotonic() - began, 1)
    _say(
        f"{whole.schedules} of {options.schedules} schedules from seed {options.seed}, "
        f"{whole.of_calls} of them of calls, "
        f"{whole.acquisitions} acquisitions, {sum(whole.endings.values())} endings of messages, "
        f"{sum(whole.faults.values())} faults, {len(whole.failed)} violations, {seconds} s"
    )
    for seed, violation in whole.failed[:20]:
        _say(f"seed {seed}: {violation}")
    if whole.failed:
        _say(explained(whole.failed[0][0]))
    missed = [*filter(is_missed, controls)]
    record(
        "simulation",
        schedules=whole.schedules,
        schedules_of_calls=whole.of_calls,
        endings_of_messages=dict(sorted(whole.endings.items())),
        acquisitions=whole.acquisitions,
        faults=dict(sorted(whole.faults.items())),
        violations=len(whole.failed),
        controls=sorted(controls, key=lambda control: str(control["bug"])),
        controls_missed=[one["bug"] for one in missed],
        seconds=seconds,
        first_seed=options.seed,
    )
    return 1 if whole.failed or missed else 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
