"""Lines of a file that others still write to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.whole_lines import whole_lines


@pytest.mark.parametrize(
    ("text", "lines"),
    [("", []), ("half", []), ("one\n", ["one"]), ("one\ntwo\nhalf", ["one", "two"])],
)
def test_a_line_that_is_not_complete_is_left_out(
    tmp_path: Path, text: str, lines: list[str]
) -> None:
    file = tmp_path / "lines"
    file.write_text(text)
    assert whole_lines(file) == lines
