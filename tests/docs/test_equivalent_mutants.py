"""The page of equivalent mutants has each that is known, with its reason."""

from __future__ import annotations

from tests.docs.equivalent_mutants_page import PAGE, page


def test_the_page_has_each_equivalent_mutant() -> None:
    # If this fails: `python -m tests.docs.equivalent_mutants_page` writes the tables again.
    assert PAGE.read_text(encoding="utf-8") == page()
