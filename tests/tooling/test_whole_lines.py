"""Lines of a file that others still write to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.whole_lines import lines_after, whole_lines


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


def test_lines_are_read_on_from_the_end_of_the_last_whole_one(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("öne\ntw")
    lines, end = lines_after(file, 0)
    assert lines == ["öne"]
    with file.open("a") as opened:
        opened.write("o\nthree\nfo")
    assert lines_after(file, end)[0] == ["two", "three"]
