"""The page of known bugs names each that is made, and the test that it fails."""

from __future__ import annotations

from tests.docs.known_bugs_page import PAGE, rows


def test_the_page_has_each_known_bug_and_its_test() -> None:
    # If this fails: `python -m tests.docs.known_bugs_page` writes the table again.
    shown = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if "::" in line]
    assert shown == rows()
