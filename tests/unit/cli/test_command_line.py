"""Commands that the commands print."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest

from celery_redlock.cli import command_line


def line(monkeypatch: pytest.MonkeyPatch, argv: list[str], words: int, *more: str) -> str:
    """Return the same command with more options; the last `words` are the subcommand's."""
    monkeypatch.setattr(sys, "argv", argv)
    with click.Context(click.Command("redlock")) as ctx:
        command_line.note_typed(ctx, argv[len(argv) - words :])
        return command_line.same_command(*more)


def test_words_are_quoted_for_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["celery", "-A", "my app", "redlock", "release", "a'b"]
    expected = """celery -A 'my app' redlock release 'a'"'"'b' --yes"""
    assert line(monkeypatch, argv, 2, "--yes") == expected


def test_options_come_before_the_end_of_options(monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["celery", "-A", "bank", "redlock", "release", "--", "-k"]
    assert line(monkeypatch, argv, 3, "--yes").endswith(" release --yes -- -k")


def test_a_program_on_the_path_is_called_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "celery"
    program.touch(0o755)
    assert line(monkeypatch, [str(program), "redlock", "admit"], 1) == f"{program} redlock admit"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert line(monkeypatch, [str(program), "redlock", "admit"], 1) == "celery redlock admit"


def test_a_module_is_called_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-m", "celery", "redlock", "admit"])
    argv = ["/lib/celery/__main__.py", "redlock", "admit"]
    assert line(monkeypatch, argv, 1) == "python3 -m celery redlock admit"


@pytest.mark.parametrize(
    "url", ["redis://:secret@a", "redis://u:secret@a/0", "unix:///s?password=secret"]
)
def test_a_password_is_left_out(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    argv = ["celery-redlock", "--node", url, "--node", "redis://b", "admit"]
    assert line(monkeypatch, argv, 1) == "celery-redlock --node … --node redis://b admit"
    argv[2] = f"--node={url}"
    assert "secret" not in line(monkeypatch, argv, 1)


@pytest.mark.parametrize("word", ["me@host", "password=4", "redis://b"])
def test_a_word_that_is_no_url_with_a_password_is_shown(
    monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    argv = ["celery", "redlock", "release", word]
    assert line(monkeypatch, argv, 2) == f"celery redlock release {word}"


def test_what_is_not_printable_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["celery", "redlock", "release", "a\x1b[2J"]
    assert line(monkeypatch, argv, 2) == r"celery redlock release 'a\x1b[2J'"
