"""The page of a benchmark: its figures, its plots, its targets."""

from __future__ import annotations

import itertools
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tools.benchmarks.page import Page, Table
from tools.benchmarks.report import shown
from tools.benchmarks.sampling import Samples, Variant, interleaved, percentiles_us, timed
from tools.benchmarks.svg import Axis, bars, lines
from tools.benchmarks.targets import Target, ratio, value

SVG = "{http://www.w3.org/2000/svg}"


def page_with(**rows: float) -> Page:
    page = Page()
    page.add("measure", "Title", [{"name": name, "us": us} for name, us in rows.items()])
    return page


def test_a_saved_page_is_read_back(tmp_path: Path) -> None:
    page = page_with(one=1.0, other=2.0)
    page.add("empty", "Nothing", [], "a note")
    page.circumstances = {"seconds": 3}
    page.save(tmp_path / "page.json")
    assert Page.load(tmp_path / "page.json") == page


def test_figures_are_kept_with_four_digits() -> None:
    assert page_with(one=123.456789).tables["measure"].row("one")["us"] == 123.5


@pytest.mark.parametrize("rows", [[], [{"name": "one"}, {"name": "one"}]])
def test_a_row_that_is_missing_or_there_twice_is_an_error(rows: list[dict[str, str]]) -> None:
    with pytest.raises(LookupError, match="'Title' has"):
        Table("Title", rows).row("one")


def test_percentiles_are_calls_that_took_as_long() -> None:
    row = percentiles_us([number / 1e6 for number in range(1000, 0, -1)])
    assert [round(row[f"{name}_us"]) for name in ("p50", "p95", "p99", "p999")] == [
        501, 951, 991, 1000,
    ]  # fmt: skip


def test_a_failed_call_is_counted_and_a_silent_one_is_not() -> None:
    results = itertools.cycle([False, None, True])
    samples = timed(lambda: next(results))(9)
    assert (len(samples.walls), samples.failed) == (9, 3)


def test_each_variant_is_measured_at_least_once_and_as_often() -> None:
    def block(calls: int) -> Samples:
        return Samples([0.001] * calls, 0.0005 * calls)

    variants = interleaved({"one": block, "other": block}, 0.0, in_a_row=3)
    assert [(one.name, len(one.walls)) for one in variants] == [("one", 3), ("other", 3)]
    assert variants[0].row(nodes=5)["cpu_us"] == pytest.approx(500)


def test_a_variant_without_cpu_time_has_none() -> None:
    assert Variant("one", [0.1]).row()["cpu_us"] is None


@pytest.mark.parametrize(
    ("limit", "is_least", "verdict"),
    [(2, False, "met"), (1.9, False, "missed"), (2, True, "met"), (2.1, True, "missed")],
)
def test_a_target_is_met_or_missed(limit: float, is_least: bool, verdict: str) -> None:
    target = Target("it", ratio("measure", "us", "one", "other"), limit, is_least=is_least)
    *_, said = target.judge(page_with(one=4.0, other=2.0))
    assert said == verdict


def test_a_target_has_its_unit() -> None:
    target = Target("it", value("measure", "us", "one", 1e-3), 3, "ms")
    assert target.judge(page_with(one=2500.0)) == ("it", "2.50 ms", "≤ 3 ms", "", "met")


def test_a_target_shows_the_floor_beside_it() -> None:
    floor = value("measure", "us", "other", 1e-3)
    target = Target("it", value("measure", "us", "one", 1e-3), 3, "ms", floor=floor)
    *_, shown_floor, _ = target.judge(page_with(one=2500.0, other=2000.0))
    assert shown_floor == "2.00 ms"


@pytest.mark.parametrize(
    ("figure", "text"),
    [(None, "\N{EN DASH}"), (0.123456, "0.123"), (1234.5, "1,234"), ("word", "word")],
)
def test_figures_are_shown_short(figure: object, text: str) -> None:
    assert shown(figure) == text


def test_a_plot_names_every_line_and_leaves_gaps_out() -> None:
    plot = lines(
        "Title", Axis("ms", is_log=True), "nodes", {"1": 1, "3": 3},
        {"a < b": [1.0, 20.0], "half": [None, 5.0], "none": [None, None]},
    )  # fmt: skip
    drawing = ET.fromstring(plot)  # noqa: S314  # our own
    texts = [text.text for text in drawing.iter(f"{SVG}text")]
    assert {"Title", "ms", "nodes", "1", "3", "a < b", "half"} <= set(texts)
    assert "none" not in texts
    assert len(list(drawing.iter(f"{SVG}circle"))) == 3


def test_names_of_lines_that_end_together_stand_apart() -> None:
    series: dict[str, list[float | None]] = {f"line {n}": [1.0, 5.0] for n in range(12)}
    drawing = ET.fromstring(  # noqa: S314  # our own
        lines("Title", Axis("ms"), "x", {"0": 0, "1": 1}, series)
    )
    at = sorted(float(t.attrib["y"]) for t in drawing.iter(f"{SVG}text") if t.text in series)
    assert all(below - above >= 17 for above, below in itertools.pairwise(at))


def test_bars_are_as_long_as_their_figures() -> None:
    drawing = ET.fromstring(  # noqa: S314  # our own
        bars("Title", Axis("µs"), {"one": (10, None), "other": (20, 30)})
    )
    short, long = [float(bar.attrib["width"]) for bar in drawing.iter(f"{SVG}rect")][1:]
    assert long == pytest.approx(2 * short, rel=0.01)
