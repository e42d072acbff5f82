"""The page about types shows what the type checkers say now."""

from __future__ import annotations

import pytest

from tests.docs.typing_page import PAGE, documentation


def test_the_page_has_the_output_of_the_type_checkers() -> None:
    pytest.importorskip("mypy")
    pytest.importorskip("pyright")
    # If this fails: `python -m tests.docs.typing_page` runs them and writes the page again.
    assert PAGE.read_text(encoding="utf-8") == documentation()
