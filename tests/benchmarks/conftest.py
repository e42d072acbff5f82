"""One run of all measures makes one page: tables on the terminal, JSON, plots, documentation.

REDLOCK_BENCH_SECONDS is how long each measure may take; REDLOCK_BENCH_INTO is the folder into which
the page is written once every measure has run.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.benchmarks.page import Page, circumstances
from tools.benchmarks.publication import write
from tools.benchmarks.report import judgement, lines

_PAGE = pytest.StashKey[Page]()
INCOMPLETE = "incomplete.json"


@pytest.fixture
def seconds() -> float:
    """How long one measure may take, in seconds."""
    return float(os.environ.get("REDLOCK_BENCH_SECONDS") or 30)


@pytest.fixture
def page(request: pytest.FixtureRequest) -> Page:
    """The page of this run, to which each measure adds its tables."""
    return request.config.stash.setdefault(_PAGE, Page())


@pytest.fixture(autouse=True)
def _many_files() -> Iterator[None]:
    """Allow as many connections as the machine does: hundreds of clients have thousands."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config, exitstatus: int
) -> None:
    """Print what was measured, and write it down."""
    if _PAGE not in config.stash:
        return
    page = config.stash[_PAGE]
    page.circumstances = circumstances(float(os.environ.get("REDLOCK_BENCH_SECONDS") or 30))
    for line in lines(page):
        terminalreporter.write_line(line)
    into = os.environ.get("REDLOCK_BENCH_INTO")
    if not into:
        return  # of a run of some measures
    if exitstatus != pytest.ExitCode.OK:
        # Nothing is made of it, but minutes of measuring are not lost.
        page.save(Path(into) / INCOMPLETE)
        terminalreporter.write_line(f"a measure failed: {into}/{INCOMPLETE} has the others")
        return
    # A measure that is missing on the page is an error here.
    for line in judgement(page):
        terminalreporter.write_line(line)
    write(page, Path(into))
    terminalreporter.write_line(f"written to {into}")
