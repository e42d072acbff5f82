"""What the workflows of .github/ load is fixed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

WORKFLOWS = sorted((Path(__file__).parents[2] / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


def uses(text: str) -> list[str]:
    return re.findall(r"^ *-? *uses: (.*)$", text, re.MULTILINE)


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_every_action_is_pinned_by_commit(file: Path) -> None:
    actions = uses(file.read_text())
    assert actions
    assert [action for action in actions if not PINNED.fullmatch(action)] == []


def test_an_action_has_one_version_in_all_workflows() -> None:
    pins = {action for file in WORKFLOWS for action in uses(file.read_text())}
    assert len(pins) == len({action.split("@")[0] for action in pins})
