"""The recorded runs of the page are those of the code as it is."""

from __future__ import annotations

import json
import logging
import math
from typing import Any

import pytest

from tests.support.root import ROOT
from tools.docs.scenes import stage
from tools.docs.scenes.recordings import PATH, recordings
from tools.docs.scenes.scenes import SCENES

pytest.importorskip("greenlet", reason="comes with the extra dev")

Events = list[list[Any]]


def kept(name: str, number: int) -> Events:
    """Return the events of one recorded run."""
    text = PATH.read_text(encoding="utf-8")
    scenes = json.loads(text[text.index("[") : text.rindex("]") + 1])
    found: Events = next(s for s in scenes if s["name"] == name)["variants"][number]["events"]
    return found


def writes(events: Events) -> list[tuple[str, bool]]:
    """Return who wrote, and whether it was accepted."""
    return [(event[2], event[4]) for event in events if event[0] == "resource"]


def test_the_kept_recordings_are_what_the_code_does() -> None:
    assert PATH.read_text(encoding="utf-8") == recordings(), (
        "record the scenes again: python -m tools.docs.scenes"
    )


def test_a_run_is_the_same_whoever_keeps_its_log_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "_REST_MS", math.inf)
    [scene] = [one for one in SCENES if one.name == "partition"]
    options = scene.variants[1].options
    kept_by_pytest = stage.recorded(**options)
    logging.disable()
    try:
        assert stage.recorded(**options) == kept_by_pytest
    finally:
        logging.disable(logging.NOTSET)


def test_each_scene_is_on_the_page() -> None:
    page = (ROOT / "docs" / "explanation" / "see-it-run.md").read_text(encoding="utf-8")
    assert [scene.name for scene in SCENES if f'data-scene="{scene.name}"' not in page] == []


def test_a_frozen_holder_is_refused_but_not_without_tokens() -> None:
    ours, plain = kept("frozen", 0), kept("ladder", 0)
    assert writes(ours)[-1] == ("A", False)
    assert writes(plain)[-1] == ("A", True)
    assert ("B", True) in writes(plain)


def test_nodes_that_forgot_are_counted_by_plain_redlock_alone() -> None:
    plain, ours = kept("ladder", 2), kept("ladder", 3)
    assert ("B", True) in writes(plain)
    assert ("B", True) not in writes(ours)
