"""Plain text of the commands."""

from __future__ import annotations

import click

from celery_redlock.cli import text


def test_a_column_is_as_wide_as_its_widest_cell_without_colour() -> None:
    table = text.columns(("NODE", "STATE", "UP"), [("a", click.style("votes", fg="green"), "1 s")])
    assert click.unstyle(table) == "NODE  STATE  UP\na     votes  1 s"
