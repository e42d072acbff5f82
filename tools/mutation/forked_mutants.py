"""A plugin of pytest that tries mutants, each in a fork of the process that collected the tests.

The first fork runs all tests without a mutant, and tells which functions each of them reaches. A
mutant is tried on those that reach its function, up to the first that fails: quick ones come first,
and those that have failed for others of this function. So nothing is imported or collected
again, which takes longer than most tests do. There are as many forks at a time as processors.
"""

from __future__ import annotations

import gc
import json
import math
import mmap
import os
import pickle
import signal
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
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
_AT_A_TIME = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
_NUMBER_BYTES = 8
_UNTRIED = 0.01
"""Kills that are expected of any test."""
_OVERHEAD_S = 0.001


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
        for verdict in _verdicts(session, plan, tests):
            into.write(json.dumps(verdict) + "\n")
            into.flush()
    return True


def _verdicts(
    session: pytest.Session, plan: Plan, tests: dict[str, list[_Test]]
) -> Iterator[Verdict]:
    """Try the mutants that there is time for; yield the verdict on each as it is known."""
    left, trials = deque(plan.mutants), list[_Trial]()
    killers: dict[str, Counter[int]] = defaultdict(Counter)
    while left or trials:
        if plan.ends_at is not None and time.monotonic() >= plan.ends_at:
            left.clear()
        while left and len(trials) < _AT_A_TIME:
            mutant = left.popleft()
            kills = killers[_where(mutant)]
            trials.append(_Trial(session, mutant, _in_order(_reaching(tests, mutant), kills)))
        for trial in trials.copy():
            if (verdict := trial.verdict()) is not None:
                trials.remove(trial)
                killers[_where(trial.mutant)].update(trial.killers())
                yield verdict
        time.sleep(_LOOK_S)


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

    fork = _Fork(run_all, math.inf)
    while (status := fork.status()) is None:
        time.sleep(_LOOK_S)
    if status != 0:
        raise pytest.UsageError("the tests fail without a mutant")
    # Written by this very process's fork.
    found: dict[str, list[_Test]] = pickle.loads(into.read_bytes())  # noqa: S301
    return found


def _where(mutant: str) -> str:
    """Return the function of a mutant, or the module of a constant."""
    module, _, constant = mutant.partition(OF_CONSTANT)
    return module if constant else mangled_name_from_mutant_name(mutant)


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


def _in_order(tests: Sequence[_Test], kills: Counter[int]) -> list[_Test]:
    """Return the tests in the order in which a mutant is probably killed soonest."""

    def kills_a_second(test: _Test) -> float:
        return (kills[test.number] + _UNTRIED) / (test.took + _OVERHEAD_S)

    return sorted(tests, key=kills_a_second, reverse=True)


def _set_constant(module: str, name: str) -> None:
    """Multiply a number of a module by ten, wherever it was imported to."""
    value = getattr(sys.modules[module], name)
    for each in list(sys.modules.values()):
        if vars(each).get(name) == value:
            setattr(each, name, value * 10)


class _Trial:
    """One mutant, on the tests that reach it."""

    def __init__(self, session: pytest.Session, mutant: str, tests: Sequence[_Test]) -> None:
        self.mutant = mutant
        self._killer = mmap.mmap(-1, _NUMBER_BYTES)
        self._session = session
        self._tests = tests
        longest_s = 10 * _AT_LEAST_S + _TIMES * sum(test.took for test in tests)
        self._fork = _Fork(self._run_until_one_fails, longest_s)

    def verdict(self) -> Verdict | None:
        """Return the verdict; None: it is not known yet."""
        status = self._fork.status()
        return None if status is None else Verdict(self.mutant, status != 0)

    def killers(self) -> list[int]:
        """Return the number of the test that failed, if one did before a limit was over."""
        number = int.from_bytes(self._killer[:], "big")
        return [number - 1] if number else []

    def _run_until_one_fails(self) -> int:
        module, _, constant = self.mutant.partition(OF_CONSTANT)
        if constant:
            _set_constant(module, constant)
        else:
            set_mutant_under_test(self.mutant)
        items = [self._session.items[test.number] for test in self._tests]
        for test, item, following in zip(self._tests, items, [*items[1:], None], strict=True):
            # Some mutants hang instead of failing, in a wait or in a loop.
            limit = _AT_LEAST_S + _TIMES * test.took
            item.add_marker(pytest.mark.timeout(limit), append=False)
            signal.setitimer(signal.ITIMER_VIRTUAL, limit / 4)
            self._killer[:] = (test.number + 1).to_bytes(_NUMBER_BYTES, "big")
            if _fails(self._session, item, following):
                return 1
        self._killer[:] = bytes(_NUMBER_BYTES)
        return 0


def _fails(session: pytest.Session, item: pytest.Item, following: pytest.Item | None) -> bool:
    """Run a test; return whether it, or one before it, has failed."""
    session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    if session.testsfailed:
        session._setupstate.teardown_exact(None)
    return session.testsfailed > 0


class _Fork:
    """Fork that ends with the status that `run` returns; 1 if it has to be killed."""

    def __init__(self, run: Callable[[], int], longest_s: float) -> None:
        self._ends_at = time.monotonic() + longest_s
        self._pid = os.fork()  # noqa: TID251  # of a process without other threads
        if not self._pid:
            status = 1
            try:
                os.setpgid(0, 0)
                status = run()
            finally:
                sys.stdout.flush()
                os._exit(status)

    def status(self) -> int | None:
        """Return the status; None: it has not ended."""
        ended, status = os.waitpid(self._pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() < self._ends_at:
            return None
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        return 1
