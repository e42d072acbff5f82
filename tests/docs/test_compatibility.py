"""The page about other libraries names what the extra `compat` pins, and what is tried."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.compat import page as compat
from tests.integration.compat.libraries import LIBRARIES, TRIES
from tests.support.root import ROOT
from tools.docs.markdown import tables


def test_the_page_has_every_library_in_the_version_that_is_pinned() -> None:
    # If this fails: `make compat` tries them and writes the page again.
    [rows] = tables(compat.PAGE)
    shown = [(row["library"], row["version"], row["tried"], row["remarks"]) for row in rows]
    assert shown == [
        (
            " + ".join((one.name, *one.beside)),
            one.shown,
            ", ".join(TRIES[name] for name in one.tries),
            one.remark,
        )
        for one in LIBRARIES
    ]


def test_each_package_of_the_extra_is_tried() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    [extra] = re.findall(r"^compat = \[\n(.*?)^\]", project, re.DOTALL | re.MULTILINE)
    pins = dict(re.findall(r'"([\w-]+)==([\w.]+)"', extra))
    tried = {wanted for one in LIBRARIES if not one.version for wanted in one.requirements}
    assert tried == {f"{name}=={version}" for name, version in pins.items()}


def test_a_library_that_was_not_tried_keeps_the_page_from_being_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "ROWS", tmp_path)
    for one in LIBRARIES:
        for tried in one.tries:
            compat.write_row(one, tried)
    assert "| ddtrace |" in compat.page(tmp_path)
    next(tmp_path.glob("ddtrace-*")).unlink()
    with pytest.raises(LookupError, match="ddtrace"):
        compat.page(tmp_path)
