"""The page about performance shows the figures of one run, and nothing else."""

from __future__ import annotations

import copy

import jinja2
import pytest

from tests.support.root import ROOT
from tools.benchmarks.page import Page
from tools.benchmarks.plots import plots
from tools.benchmarks.publication import DOCUMENTATION, FOLDER, RESULTS, documentation, report
from tools.evidence.runs import run_now

FOLDER_OF_PAGES = ROOT / "docs" / "explanation"
PAGE = Page.load(FOLDER_OF_PAGES / FOLDER / RESULTS)


def test_the_page_has_the_figures_of_the_run() -> None:
    page = (FOLDER_OF_PAGES / DOCUMENTATION).read_text(encoding="utf-8")
    assert page == documentation(PAGE), (
        "its words or the code have changed; this makes the page true again, and measures nothing: "
        ".venv/bin/python -m tools.evidence.publication"
    )


def test_the_page_says_whether_the_code_has_changed_since() -> None:
    other = copy.deepcopy(PAGE)
    other.circumstances["run"] = run_now("performance")
    assert "The code is still the same today." in documentation(other)
    other.circumstances["run"]["content"] = {"celery_redlock": "another"}
    assert "The code has changed since." in documentation(other)


@pytest.mark.parametrize(("name", "text"), list(plots(PAGE)), ids=lambda value: value[:20])
def test_a_plot_has_the_figures_of_the_run(name: str, text: str) -> None:
    assert (FOLDER_OF_PAGES / FOLDER / name).read_text(encoding="utf-8") == text


def test_another_figure_makes_another_page() -> None:
    other = copy.deepcopy(PAGE)
    other.tables["scripts"].row("GRANT")["us"] = 123_456.0
    assert "123,456" in documentation(other)
    other.tables["worker"].rows[0]["cpu_us"] = 123_457.0
    assert "123,457" in report(other)


@pytest.mark.parametrize("measure", PAGE.tables)
def test_a_measure_that_is_missing_makes_no_page(measure: str) -> None:
    other = copy.deepcopy(PAGE)
    del other.tables[measure]
    with pytest.raises((KeyError, jinja2.UndefinedError), match=measure):
        _ = documentation(other), report(other)
