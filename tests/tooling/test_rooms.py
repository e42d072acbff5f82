"""The unit tests mirror the package."""

from __future__ import annotations

from pathlib import Path

from tests.support.root import ROOT

UNIT = ROOT / "tests" / "unit"
# Its rooms are tested like the package's.
EXAMPLE = "example_project"


def test_each_folder_of_unit_tests_is_a_room() -> None:
    folders = {file.parent.relative_to(UNIT) for file in UNIT.rglob("test_*.py")}
    strangers = {folder for folder in folders if not (ROOT / "celery_redlock" / folder).is_dir()}
    assert strangers == {Path(EXAMPLE)}
