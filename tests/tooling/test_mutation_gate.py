"""The mutation gate mutates files that are there, with tests that are there."""

from __future__ import annotations

from tests.mutation.gate import _RULES, _TESTS, GATED, LOCK, WATCHED, known_equivalents
from tests.support.root import ROOT


def test_the_gate_names_files_and_tests_that_exist() -> None:
    assert all((ROOT / LOCK / file).is_file() for file in (*GATED, *WATCHED))
    assert all((ROOT / "tests/unit/redlock" / test).exists() for test in (_RULES, *_TESTS))


def test_each_equivalent_mutant_has_a_reason() -> None:
    assert all(change and reason for change, reason in known_equivalents().items())
