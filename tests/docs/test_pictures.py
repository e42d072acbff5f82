"""The pages show pictures that exist, that say what they show, and that are not stale."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.support.root import ROOT
from tools.docs.markdown import pages
from tools.docs.pictures import PICTURES
from tools.docs.pictures.house import layers
from tools.docs.reports import REPORTS

_SHOWN = re.compile(r"!\[(?P<says>[^]]*)\]\((?P<target>[^)\s]+)\)")
_SVG = "{http://www.w3.org/2000/svg}"
FILES = sorted((ROOT / "docs").rglob("*.svg"))


def shown() -> list[tuple[Path, str, Path]]:
    """Return each picture of each page: the page, what stands for the picture, and its file."""
    texts = {page: page.read_text(encoding="utf-8") for page in pages()}
    texts |= {ROOT / "docs" / "evidence" / f"{name}.md": made() for name, made in REPORTS.items()}
    return [
        (page, found["says"], (page.parent / found["target"]).resolve())
        for page, text in texts.items()
        for found in _SHOWN.finditer(text)
    ]


def parsed(file: Path) -> ET.Element:
    return ET.fromstring(file.read_text(encoding="utf-8"))  # noqa: S314 (our own files)


def test_each_picture_exists_and_has_an_alternative_text() -> None:
    assert shown()
    for page, says, file in shown():
        assert file.is_file(), f"{page}: {file}"
        assert says.strip(), f"{page}: {file}"


def test_no_picture_is_left_over() -> None:
    files = {
        file for ending in ("svg", "png", "webp") for file in (ROOT / "docs").rglob(f"*.{ending}")
    }
    assert files - {file for _, _, file in shown()} == set()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_drawing_has_a_title_and_loads_nothing(file: Path) -> None:
    drawing = parsed(file)
    assert drawing.tag == f"{_SVG}svg"
    assert (drawing.findtext(f"{_SVG}title") or "").strip()
    text = file.read_text(encoding="utf-8")
    assert not re.search(r"@import|@font-face|<script|<image|url\((?!#)", text)


@pytest.mark.parametrize(("file", "draw"), PICTURES.items(), ids=[file.name for file in PICTURES])
def test_a_drawn_picture_is_not_stale(file: Path, draw: Callable[[], str]) -> None:
    # If this fails: `python -m tools.docs.pictures` draws them again.
    assert file.read_text(encoding="utf-8") == draw()


@pytest.mark.parametrize("file", PICTURES, ids=lambda file: file.name)
def test_a_drawn_picture_is_described_and_has_both_schemes(file: Path) -> None:
    assert len(parsed(file).findtext(f"{_SVG}desc") or "") > 100
    assert "@media (prefers-color-scheme: dark)" in file.read_text(encoding="utf-8")


def test_the_layers_are_read_from_the_contract_that_is_named() -> None:
    configuration = (
        '[[contracts]]\nid = "other"\nlayers = [\n    "x",\n]\n\n'
        '[[contracts]]\nid = "wanted"\nname = "A"\nlayers = [\n    "top",\n    "a | b",\n]\n'
    )
    assert layers("wanted", configuration) == [["top"], ["a", "b"]]
    with pytest.raises(ValueError, match="missing"):
        layers("missing", configuration)
    with pytest.raises(ValueError, match="bare"):
        layers("bare", '[[contracts]]\nid = "bare"\n\n' + configuration)
