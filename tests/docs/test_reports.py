"""The reports are made of the recorded data alone, and lead to pages and pictures that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.root import ROOT
from tools.docs.reports import REPORTS, main, title

FOLDER = ROOT / "docs" / "evidence"


def test_each_report_is_written_under_its_name(tmp_path: Path) -> None:
    main([str(tmp_path)])
    for name, made in REPORTS.items():
        assert (tmp_path / f"{name}.md").read_text(encoding="utf-8") == made()


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_has_a_title_and_its_links_lead_somewhere(name: str) -> None:
    text = REPORTS[name]()
    assert title(text)
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        file = (FOLDER / target).resolve()
        assert file.exists() or (file.parent == FOLDER and file.stem in REPORTS), target
