"""Tests that a machine can't run: skipped, or failed in CI unless it is known to lack a program."""

from __future__ import annotations

import pytest

from tests.support import requirements
from tests.support.requirements import WITHOUT_VARIABLE, unmet


@pytest.mark.parametrize(
    ("is_ci", "without", "ends"),
    [
        (False, "", pytest.skip.Exception),
        (True, "", pytest.fail.Exception),
        (True, "spin", pytest.fail.Exception),
        (True, "spin browser", pytest.skip.Exception),
    ],
)
def test_a_missing_program_fails_in_ci_unless_known(
    monkeypatch: pytest.MonkeyPatch, is_ci: bool, without: str, ends: type[BaseException]
) -> None:
    monkeypatch.setattr(requirements, "IN_CI", is_ci)
    monkeypatch.setenv(WITHOUT_VARIABLE, without)
    with pytest.raises(ends, match="no browser"):
        unmet("no browser here", "browser")


def test_what_every_machine_of_ci_has_is_never_excused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "IN_CI", True)
    monkeypatch.setenv(WITHOUT_VARIABLE, "spin browser")
    with pytest.raises(pytest.fail.Exception):
        unmet("no server here")
