"""What benchmarks share: how long they may take, and a report after the last of them."""

from __future__ import annotations

import io
import os
import platform
import subprocess
from importlib.metadata import version

import pytest
from rich.console import Console
from rich.table import Table

from celery_redlock.testing import find_server_binary

from .measure import Report, Variant

_REPORT = pytest.StashKey[Report]()


@pytest.fixture
def seconds() -> float:
    """How long one benchmark may measure, in seconds."""
    return float(os.environ.get("REDLOCK_BENCH_SECONDS") or 60)


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """Where to say what was measured; it is printed at the end."""
    return request.config.stash.setdefault(_REPORT, [])


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print what was measured: the tests that pass print nothing."""
    for title, variants, note in config.stash.get(_REPORT, []):
        terminalreporter.write(_rendered(_table(title, variants, note)))
    if _REPORT in config.stash:
        terminalreporter.write_line(_circumstances())


def _table(title: str, variants: list[Variant], note: str) -> Table:
    table = Table(title=title, title_justify="left", caption=note, caption_justify="left")
    table.add_column("")
    for heading in ("median µs", "ratio", "CPU µs", "ratio", "calls"):
        table.add_column(heading, justify="right")
    first = variants[0]
    for variant in variants:
        table.add_row(
            variant.name,
            f"{variant.median * 1e6:,.0f}",
            f"{variant.median / first.median:.2f}",
            f"{variant.cpu * 1e6:,.0f}",
            f"{variant.cpu / first.cpu:.2f}",
            f"{len(variant.walls):,}",
        )
    return table


def _rendered(table: Table) -> str:
    text = io.StringIO()
    Console(file=text, width=100).print(table)
    return text.getvalue() + "\n"


def _circumstances() -> str:
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    packages = ", ".join(f"{name} {version(name)}" for name in ("celery", "redis", "hiredis"))
    server = subprocess.run(
        [find_server_binary(), "--version"], capture_output=True, text=True, check=True
    )
    return (
        f"{' '.join(server.stdout.split()[:3])}, Python {platform.python_version()}, {packages}, "
        f"{platform.machine()}, {os.cpu_count()} cores, load {load}"
    )
