"""The page about types shows what the type checkers say now."""

from __future__ import annotations

import pytest

from tools.docs.typing_page import PAGE, documentation, verdicts


@pytest.mark.long
def test_the_page_has_the_verdicts_of_the_type_checkers() -> None:
    pytest.importorskip("mypy")
    pytest.importorskip("pyright")
    # If this fails: `python -m tools.docs.typing_page` runs them and writes the page again.
    assert verdicts(PAGE.read_text(encoding="utf-8")) == verdicts(documentation())


def test_another_wording_of_an_error_is_no_other_verdict() -> None:
    page = PAGE.read_text(encoding="utf-8")
    reworded = (
        page.replace("mypy 2.", "mypy 9.")
        .replace("[call-arg]", "[new-code]")
        .replace("  mypy:    ", "  mypy:    Note\n  mypy:    ")
    )
    assert reworded != page
    assert verdicts(reworded) == verdicts(page)


def test_a_line_that_one_checker_accepts_now_is_another_verdict() -> None:
    page = PAGE.read_text(encoding="utf-8")
    line = next(line for line in page.splitlines(keepends=True) if line.startswith("  mypy:"))
    assert verdicts(page.replace(line, "", 1)) != verdicts(page)
