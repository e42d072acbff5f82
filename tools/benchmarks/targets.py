"""What the figures have to be, and the table that says which are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .names import BARE, EMPTY, KILLED, OURS, PLAIN, REDLOCK_PY, SINGLETON, UNTIL_EXECUTED
from .page import Page


@dataclass(frozen=True)
class Target:
    """One promise about speed.

    Attributes:
        measure: What is promised, as the table has it.
        result: Reads it from the page of a run.
        limit: The worst allowed.
        unit: Of both; '' for a ratio.
        is_least: Whether the limit is the least allowed, not the most.
        floor: Reads what bare sockets reach; None: nothing to compare with.
    """

    measure: str
    result: Callable[[Page], float]
    limit: float
    unit: str = ""
    is_least: bool = False
    floor: Callable[[Page], float] | None = None

    def judge(self, page: Page) -> tuple[str, str, str, str, str]:
        """Return measure, result, target, floor, and whether the target is met, as words.

        Raises:
            LookupError: The page has no such measure.
        """
        result = self.result(page)
        is_met = result >= self.limit if self.is_least else result <= self.limit
        sign = "≥" if self.is_least else "≤"
        unit = f" {self.unit}" if self.unit else ""
        return (
            self.measure,
            f"{result:.2f}{unit}",
            f"{sign} {self.limit:g}{unit}",
            f"{self.floor(page):.2f}{unit}" if self.floor else "",
            "met" if is_met else "missed",
        )


def ratio(
    measure: str, column: str, name: str, to: str, **which: object
) -> Callable[[Page], float]:
    """Return what reads the ratio of two rows' figures."""

    def read(page: Page) -> float:
        table = page.tables[measure]
        return float(table.row(name, **which)[column] / table.row(to, **which)[column])

    return read


def value(
    measure: str, column: str, name: str, scale: float = 1.0, **which: object
) -> Callable[[Page], float]:
    """Return what reads one figure."""
    return lambda page: float(page.tables[measure].row(name, **which)[column] * scale)


def per_many(column: str) -> Callable[[Page], float]:
    """Return what reads the seconds of a list of 100,000 locks; a short run lists fewer."""

    def read(page: Page) -> float:
        row = page.tables["listing"].row("list")
        return float(row[column] * 100_000 / row["locks"])

    return read


TARGETS = (
    Target(
        "worker CPU for a no-op task: ours / plain Celery",
        ratio("worker", "cpu_us", OURS, PLAIN), 1.45, floor=ratio("worker", "cpu_us", BARE, PLAIN),
    ),
    Target(
        "tasks per second: ours on five nodes / celery-singleton on one",
        ratio("worker", "tasks_per_s", OURS, SINGLETON), 0.9, is_least=True,
        floor=ratio("worker", "tasks_per_s", BARE, SINGLETON),
    ),
    Target(
        "the same with until_executed",
        ratio("worker", "tasks_per_s", UNTIL_EXECUTED, SINGLETON), 0.8, is_least=True,
    ),
    Target(
        "acquire + release, five nodes: ours / bare sockets",
        ratio("floor", "p50_us", OURS, BARE), 1.2, floor=lambda _: 1.0,
    ),
    Target(
        "acquire + release, five nodes: ours / redlock-py",
        ratio("locks", "p50_us", OURS, REDLOCK_PY, rtt_ms=0), 0.38,
        floor=ratio("locks", "p50_us", BARE, REDLOCK_PY, rtt_ms=0),
    ),
    # 4 and 2.6 µs on a machine whose server takes 0.6 µs for an empty script.
    Target("server time of GRANT / an empty script", ratio("scripts", "us", "GRANT", EMPTY), 6.7),
    Target(
        "server time of RELEASE / an empty script", ratio("scripts", "us", "RELEASE", EMPTY), 4.3
    ),
    Target(
        "a waiter gets the lock after its release, p50", value("hand_over", "p50_us", OURS, 1e-3),
        3, "ms",
    ),
    Target(
        "a waiter gets the lock after its release, p95", value("hand_over", "p95_us", OURS, 1e-3),
        15, "ms",
    ),
    Target(
        "`reschedule` meets a run of 1.5 s: its start after that run's end, median",
        value("waits", "p50_s", "reschedule"), 1.25, "s",
    ),
    Target("`coalesce`, the same", value("waits", "p50_s", "coalesce"), 0.4, "s"),
    Target(
        "`until_executed` publish, five nodes / celery-singleton on one",
        ratio("publish", "p50_us", OURS, SINGLETON, kind="new", rtt_ms=0), 1.0,
        floor=ratio("publish", "p50_us", BARE, SINGLETON, kind="new", rtt_ms=0),
    ),
    Target(
        "a pool process is killed, then its lock is free, p95", value("deaths", "p95_ms", KILLED),
        100, "ms",
    ),
    Target(
        "16 threads on one key: longest wait", value("contention", "longest_s", OURS), 0.5, "s",
    ),
    Target(
        "16 threads on one key: least / most turns",
        value("contention", "least_to_most", OURS), 0.5, is_least=True,
    ),
    Target("`list` of 100,000 locks: its CPU time", per_many("cpu_s"), 2, "s"),
    Target("the same: until it has ended", per_many("wall_s"), 3, "s"),
    Target(
        "the same: growth of its memory", value("listing", "peak_mib", "list"), 50, "MiB",
    ),
)  # fmt: skip


def judged(page: Page) -> Iterator[tuple[str, str, str, str, str]]:
    """Return, for each target, measure, result, target, floor, and whether it is met."""
    for target in TARGETS:
        yield target.judge(page)
