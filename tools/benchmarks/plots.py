"""The plots of a page, by the name of their file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .names import NODE_REDLOCK, OURS, OURS_ON_ONE, POTTERY, REDIS_PY, REDLOCK_PY, UNIVERSAL
from .page import Page, Row, Table
from .svg import Axis, bars, lines

BY_ROUND_TRIP = (OURS, OURS_ON_ONE, REDLOCK_PY, POTTERY, REDIS_PY, NODE_REDLOCK, UNIVERSAL)
"""As many lines as can be told apart."""


def plots(page: Page) -> Iterator[tuple[str, str]]:
    """Return the name of each plot's file, and its text."""
    tables = page.tables
    near = [row for row in tables["locks"].rows if row["rtt_ms"] == 0]
    title = "Acquire + release, nodes on this machine"
    axis = Axis("bar: median; dot: p99; µs")
    yield "peers.svg", bars(title, axis, _pairs(near, "p50_us", "p99_us"))
    few = [row for row in tables["locks"].rows if row["name"] in BY_ROUND_TRIP]
    yield "round-trip.svg", _curves(
        Table("Acquire + release", few), "rtt_ms", "p50_us", "round-trip time to the nodes, ms",
        Axis("median, ms, logarithmic", is_log=True), scale=1e-3,
    )  # fmt: skip
    yield "clients.svg", _curves(
        tables["clients"], "clients", "locks_per_s", "threads",
        Axis("locks per second"), is_even=True,
    )  # fmt: skip
    yield "nodes.svg", _curves(tables["nodes"], "nodes", "p50_us", "nodes", Axis("median, µs"))
    yield "faults.svg", _curves(
        tables["faults"], "state", "p50_us", "state of the five nodes",
        Axis("median, ms, logarithmic", is_log=True), scale=1e-3,
    )  # fmt: skip
    yield "hand-over.svg", bars(
        tables["hand_over"].title, Axis("bar: median; dot: p95; ms"),
        _pairs(tables["hand_over"].rows, "p50_us", "p95_us", 1e-3),
    )  # fmt: skip
    yield "contention.svg", bars(
        f"{tables['contention'].title}: the longest wait", Axis("s"),
        _pairs(tables["contention"].rows, "longest_s"),
    )  # fmt: skip
    yield "worker.svg", bars(
        "Worker CPU time for a task that does nothing", Axis("µs per task, all processes"),
        _pairs(tables["worker"].rows, "cpu_us"),
    )  # fmt: skip


def _pairs(
    rows: list[Row], bar: str, dot: str | None = None, scale: float = 1.0
) -> Mapping[str, tuple[float, float | None]]:
    return {
        row["name"]: (row[bar] * scale, row[dot] * scale if dot else None)
        for row in rows
        if "missing" not in row
    }


def _curves(
    table: Table,
    x: str,
    y: str,
    x_label: str,
    axis: Axis,
    *,
    scale: float = 1.0,
    is_even: bool = False,
) -> str:
    """Return a plot of a column against another; evenly spaced if that one has words."""
    points = list(dict.fromkeys(row[x] for row in table.rows))
    is_even = is_even or isinstance(points[0], str)
    places = {
        f"{point:,}" if isinstance(point, int) else str(point): index if is_even else point
        for index, point in enumerate(points)
    }
    names = sorted(dict.fromkeys(row["name"] for row in table.rows), key=lambda name: name != OURS)
    series: dict[str, list[float | None]] = {}
    for name in names:
        figures = [table.row(name, **{x: point}).get(y) for point in points]
        series[name] = [figure and figure * scale for figure in figures]
    return lines(table.title, axis, x_label, places, series)
