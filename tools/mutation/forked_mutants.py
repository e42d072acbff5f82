"""A plugin of pytest that tries mutants, each in a fork of the process that collected the tests.

The first fork runs all tests without a mutant, and tells which functions each of them reaches. A
mutant is tried on those that reach its function, the quickest first, up to the first that fails.
So nothing is imported or collected again, which takes longer than most tests do.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.state import state
from mutmut.utils.format_utils import mangled_name_from_mutant_name

PLAN = "REDLOCK_MUTANTS"
"""Name of the environment variable that has the path of the `Plan`, as JSON."""
OF_CONSTANT = ":"
"""In the name of a mutant, between a module and the number of it that is multiplied by ten."""
_AT_LEAST_S = 10.0
_TIMES = 10
"""Limits for a test, above the time it took: a busy machine does not reach them."""
_LOOK_S = 0.002


class Plan(NamedTuple):
    """What is to be tried.

    Attributes:
        mutants: Names of the mutants, as mutmut calls them.
        into: File for the verdicts: a line of JSON for each mutant that was tried.
        ends_at: Time to stop at, seconds on the monotonic clock; None: when all were tried.
    """

    mutants: list[str]
    into: str
    ends_at: float | None


class Verdict(NamedTuple):
    """Verdict on a mutant; `is_killed` is False if no test failed, or no test reaches it."""

    mutant: str
    is_killed: bool


class _Test(NamedTuple):
    took: float
    number: int


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Try all mutants instead of running the tests once."""
    plan = Plan(*json.loads(Path(os.environ[PLAN]).read_text(encoding="utf-8")))
    # Forks share it: each would make, and clean up, one of its own.
    session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    # Each call of a function that has mutants is three.
    sys.setrecursionlimit(3 * sys.getrecursionlimit())
    # At its end, a process would look through everything that was collected.
    gc.freeze()
    tests = _tests_by_function(session, Path(plan.into).with_suffix(".reached"))
    with Path(plan.into).open("w", encoding="utf-8") as into:
        for mutant in plan.mutants:
            if plan.ends_at is not None and time.monotonic() >= plan.ends_at:
                break
            reaching = _reaching(tests, mutant)
            verdict = Verdict(mutant, bool(reaching) and _is_killed(session, mutant, reaching))
            into.write(json.dumps(verdict) + "\n")
            into.flush()
    return True


def _tests_by_function(session: pytest.Session, into: Path) -> dict[str, list[_Test]]:
    """Run all tests without a mutant; return those that reach each function."""

    def run_all() -> int:
        set_mutant_under_test("stats")
        reaching: dict[str, list[_Test]] = defaultdict(list)
        following = [*session.items[1:], None]
        for number, (item, next_one) in enumerate(zip(session.items, following, strict=True)):
            began = time.monotonic()
            if _fails(session, item, next_one):
                told: Any = session.config.pluginmanager.get_plugin("terminalreporter")
                failures = told.stats["failed"]
                sys.stdout.write("".join(f"{one.longreprtext}\n" for one in failures))
                return 1
            for function in state()._stats:
                reaching[function].append(_Test(time.monotonic() - began, number))
            state()._stats.clear()
        into.write_bytes(pickle.dumps(reaching))
        return 0

    if _status_of_fork(run_all) != 0:
        raise pytest.UsageError("the tests fail without a mutant")
    # Written by this very process's fork.
    found: dict[str, list[_Test]] = pickle.loads(into.read_bytes())  # noqa: S301
    return found


def _reaching(tests: dict[str, list[_Test]], mutant: str) -> list[_Test]:
    """Return the tests that reach the function of a mutant, or any of a constant's module."""
    module, _, constant = mutant.partition(OF_CONSTANT)
    if not constant:
        return sorted(tests.get(mangled_name_from_mutant_name(mutant), ()))
    quickest = {
        test.number: test
        for function, reaching in tests.items()
        if function.rpartition(".")[0] == module
        for test in sorted(reaching, reverse=True)
    }
    return sorted(quickest.values())


def _set_constant(module: str, name: str) -> None:
    """Multiply a number of a module by ten, wherever it was imported to."""
    value = getattr(sys.modules[module], name)
    for each in list(sys.modules.values()):
        if vars(each).get(name) == value:
            setattr(each, name, value * 10)


def _is_killed(session: pytest.Session, mutant: str, tests: Sequence[_Test]) -> bool:
    def run_until_one_fails() -> int:
        module, _, constant = mutant.partition(OF_CONSTANT)
        if constant:
            _set_constant(module, constant)
        else:
            set_mutant_under_test(mutant)
        items = [session.items[test.number] for test in tests]
        for test, item, following in zip(tests, items, [*items[1:], None], strict=True):
            # Some mutants hang instead of failing, in a wait or in a loop.
            limit = _AT_LEAST_S + _TIMES * test.took
            item.add_marker(pytest.mark.timeout(limit), append=False)
            signal.setitimer(signal.ITIMER_VIRTUAL, limit / 4)
            if _fails(session, item, following):
                return 1
        return 0

    longest = 10 * _AT_LEAST_S + _TIMES * sum(test.took for test in tests)
    return _status_of_fork(run_until_one_fails, longest) != 0


def _fails(session: pytest.Session, item: pytest.Item, following: pytest.Item | None) -> bool:
    """Run a test; return whether it, or one before it, has failed."""
    session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    if session.testsfailed:
        session._setupstate.teardown_exact(None)
    return session.testsfailed > 0


def _status_of_fork(run: Callable[[], int], longest_s: float | None = None) -> int:
    """Return the status of a fork that ends with what `run` returns; 1 if it had to be killed."""
    fork = os.fork()  # noqa: TID251  # of a process without other threads
    if not fork:
        status = 1
        try:
            os.setpgid(0, 0)
            status = run()
        finally:
            sys.stdout.flush()
            os._exit(status)
    ends_at = None if longest_s is None else time.monotonic() + longest_s
    while True:
        ended, status = os.waitpid(fork, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if ends_at is not None and time.monotonic() >= ends_at:
            os.killpg(fork, signal.SIGKILL)
            os.waitpid(fork, 0)
            return 1
        time.sleep(_LOOK_S)
