"""The recorded runs of the page are those of the code as it is."""

from __future__ import annotations

import json
import logging
import math
from typing import Any

import pytest

from tests.integration.ladder.rungs import RUNGS
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


def broke(events: Events) -> bool:
    """Return whether nobody got a dead client's lock, or one wrote after the next holder came."""
    holder = ""
    for kind, _, name, what, *rest in events:
        if kind == "client" and what == "gives up":
            return True
        if kind == "client" and what == "holds the lock":
            holder = name
        elif kind == "resource" and rest[0] and name != holder:
            return True
    return False


@pytest.mark.parametrize("number", range(len(RUNGS)), ids=[rung.name for rung in RUNGS])
def test_what_breaks_a_lock_of_the_ladder_does_not_break_this_one(number: int) -> None:
    wrong, ours = kept("ladder", 2 * number), kept("ladder", 2 * number + 1)
    assert broke(wrong)
    assert not broke(ours)
    assert any(accepted for _, accepted in writes(ours))


def test_a_frozen_holder_is_refused() -> None:
    events = kept("frozen", 0)
    assert writes(events)[-1] == ("A", False)
    assert ("B", True) in writes(events)
