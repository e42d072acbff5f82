"""The report of known bugs names each that is made, and the test that it fails."""

from __future__ import annotations

from tools.docs.known_bugs_page import report
from tools.mutation.known_bugs import KNOWN_BUGS


def test_the_report_has_each_known_bug_and_its_test() -> None:
    shown = [line for line in report().splitlines() if "::" in line]
    assert len(shown) == len(KNOWN_BUGS)
    for line, bug in zip(shown, KNOWN_BUGS, strict=True):
        assert line.startswith(f"| {bug.name} |")
        assert bug.test.removeprefix("tests/") in line
