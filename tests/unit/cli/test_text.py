"""Plain text of the commands."""

from __future__ import annotations

import click
import pytest

from celery_redlock.cli import text


def test_a_column_is_as_wide_as_its_widest_cell_without_colour() -> None:
    table = text.columns(("NODE", "STATE", "UP"), [("a", click.style("votes", fg="green"), "1 s")])
    assert click.unstyle(table) == "NODE  STATE  UP\na     votes  1 s"


LONG = "a-key-of-20-letters."


@pytest.mark.parametrize(
    ("key", "width", "dropped", "header", "row"),
    [
        (LONG, 26, ("AGE",), "KEY                   AGE", f"{LONG}  1 s"),
        (LONG, 25, ("AGE",), "KEY                   AGE", f"{LONG}  1 s"),
        (LONG, 24, ("AGE",), "KEY                  AGE", "a-key-of-…-letters.  1 s"),
        (LONG, 13, ("AGE",), "KEY       AGE", "a-ke…rs.  1 s"),
        (LONG, 12, ("AGE",), "KEY", "a-key-…ters."),
        (LONG, 5, ("AGE",), "KEY", "a-ke…rs."),
        (LONG, 5, ("ROOM",), "KEY       AGE", "a-ke…rs.  1 s"),
        ("abc", 8, ("AGE",), "KEY  AGE", "abc  1 s"),
        ("abc", 7, (), "KEY  AGE", "abc  1 s"),
        ("abc", 7, ("AGE",), "KEY", "abc"),
    ],
)
def test_a_table_that_is_too_wide_is_shortened_and_then_cut(
    key: str, width: int, dropped: tuple[str, ...], header: str, row: str
) -> None:
    fit = text.Fit({"HOLDER": 4, "KEY": 8}, dropped)
    lines = text.fitted(("KEY", "AGE"), [(key, "1 s")], width, fit)
    assert [click.unstyle(line) for line in lines] == [header, row]
    assert lines[0] == click.style(header.ljust(len(lines[0]) - 8), bold=True)


def test_columns_are_dropped_one_after_the_other() -> None:
    fit = text.Fit({}, ("B", "C"))
    cells = [("1", "2", "3")]
    found = [text.fitted(("A", "B", "C"), cells, width, fit)[1] for width in (7, 6, 4, 3)]
    assert found == ["1  2  3", "1  3", "1  3", "1"]


def test_a_document_is_indented_and_has_nothing_that_a_terminal_acts_on() -> None:
    assert text.document({"a": ["b"]}) == '{\n  "a": [\n    "b"\n  ]\n}'
    for character, escaped in (("\x1b", "001b"), ("\x7f", "007f"), ("\u2028", "2028")):
        expected = f'{{\n  "a": "b\\u{escaped}c"\n}}'
        assert text.document({"a": f"b{character}c"}) == expected


def test_color_takes_no_room_in_a_column() -> None:
    red = "\x1b[31mred\x1b[0m"
    colored, plain = (text.padded([one, "x"], [5, 1]) for one in (red, "red"))
    assert colored.replace(red, "red") == plain
