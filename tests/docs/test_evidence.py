"""The page of evidence shows the figures of recorded runs, and says what was not run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.evidence.publication import FOLDER, PAGE, collect, documentation
from tests.evidence.summary import KINDS, summary_of
from tests.support.evidence import record, recorded


def test_the_page_has_the_figures_of_the_runs() -> None:
    # If this fails: `make evidence RUNS=` writes the page again from the figures that there are.
    assert PAGE.read_text(encoding="utf-8") == documentation(recorded(FOLDER))


def test_another_figure_makes_another_page() -> None:
    assert "123,456" in documentation({"simulation": {"schedules": 123_456}})


def test_what_was_not_run_is_no_zero() -> None:
    page = documentation({})
    assert page.count("**Not run.**") == page.count("| not run | not run |") == 17


def test_what_was_run_is_not_called_otherwise() -> None:
    page = documentation({"ladder": {"rungs": 8, "foils_failed": 7, "ours_held": 8}})
    assert "| [Ladder](#ladder) | 8 rungs | 7 of 8 foils failed; ours held on 8 of 8 |" in page
    assert page.count("**Not run.**") == 16


def test_a_figure_that_was_not_recorded_is_no_zero() -> None:
    page = documentation({"ladder": {"rungs": 8}})
    assert "| [Ladder](#ladder) | 8 rungs | not recorded |" in page


def test_each_recorded_kind_says_in_short_what_came_of_it() -> None:
    evidence = recorded(FOLDER)
    kinds = evidence.keys() - {"histories_of_chaos", "histories_of_storm"}
    assert kinds <= set(KINDS)
    assert all("not recorded" not in summary_of(kind, evidence[kind]) for kind in kinds)


def test_parts_of_a_kind_are_figures_of_one(tmp_path: Path) -> None:
    for part, count in ("keys", 3), ("settings", 4):
        text = json.dumps({"tried": {part: count}, "violations": 0})
        (tmp_path / f"hostile_input--{part}.json").write_text(text)
    assert recorded(tmp_path) == {
        "hostile_input": {"tried": {"keys": 3, "settings": 4}, "violations": 0}
    }


def test_rows_of_figures_are_a_table() -> None:
    rows = [{"peer": "a|b", "overlaps": 3}, {"peer": "c", "overlaps": None}]
    page = documentation({"peers": {"counts": rows}})
    assert "| peer | overlaps |\n| --- | --- |\n| a\\|b | 3 |\n| c | not run |" in page


def test_a_kind_that_nobody_foresaw_has_a_section() -> None:
    assert "## Long nights\n\n- hours: 8" in documentation({"long_nights": {"hours": 8}})


def test_a_collected_kind_replaces_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    into = tmp_path / "docs"
    for folder, kind, count in [(into, "model", 1), (into, "chaos", 2), (tmp_path, "chaos", 3)]:
        monkeypatch.setenv("REDLOCK_EVIDENCE_INTO", str(folder))
        record(kind, count=count)
    collect(tmp_path, into)
    assert recorded(into) == {"model": {"count": 1}, "chaos": {"count": 3}}
