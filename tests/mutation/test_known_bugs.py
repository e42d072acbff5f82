"""Each bug that locks on Redis are known for is caught by a fast test if it is made here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.evidence import record
from tools.mutation.copied_tree import CopiedTree
from tools.mutation.known_bugs import KNOWN_BUGS, KnownBug

_FAILED = 1
"""Exit status of pytest if tests failed; others say that it could not run them."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CopiedTree]:
    with CopiedTree(tmp_path_factory.mktemp("tree")) as tree:
        yield tree


@pytest.fixture(scope="module")
def caught() -> Iterator[dict[str, str]]:
    """Take down which test caught which bug."""
    by_bug: dict[str, str] = {}
    yield by_bug
    if len(by_bug) == len(KNOWN_BUGS):
        record("known_bugs", caught=len(by_bug), tests=by_bug)


@pytest.mark.mutation
def test_the_tests_pass_without_a_bug(tree: CopiedTree) -> None:
    status, printed = tree.run(*sorted({bug.test for bug in KNOWN_BUGS}))
    assert status == 0, printed


@pytest.mark.mutation
@pytest.mark.parametrize("bug", KNOWN_BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_a_known_bug_is_caught(tree: CopiedTree, caught: dict[str, str], bug: KnownBug) -> None:
    with tree.changed(bug.file, bug.old, bug.new):
        status, printed = tree.run(bug.test)
    assert status == _FAILED, f"not caught: {bug.name}\n{printed}"
    assert f"FAILED {bug.test}" in printed, printed
    caught[bug.name] = bug.test


def test_each_known_bug_can_be_made_here() -> None:
    for bug in KNOWN_BUGS:
        path = Path(__file__).parents[2] / bug.file
        assert path.read_text(encoding="utf-8").count(bug.old) == 1, bug.name


def test_a_known_bug_is_told_once() -> None:
    assert len({bug.name for bug in KNOWN_BUGS}) == len(KNOWN_BUGS) >= 25
