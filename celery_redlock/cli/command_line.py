"""Commands in what is printed, as lines that a reader can copy into a shell."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from .text import visible

_TYPED = "celery_redlock.typed"
PLACEHOLDER = "celery -A proj redlock"
"""Start of a command where the app is not known."""


def note_typed(ctx: click.Context, words: Sequence[str]) -> None:
    """Note the command line of this process, of which `words` are the subcommand and its own."""
    typed = [*_program(), *sys.argv[1:]]
    ctx.meta[_TYPED] = typed[: len(typed) - len(words)], words


def same_command(*more: str) -> str:
    """Return the command that was typed, with more options."""
    start, words = _typed()
    end = words.index("--") if "--" in words else len(words)
    return _line([*start, *words[:end], *more, *words[end:]])


def confirming(lock_id: str, expected: str | None) -> str:
    """Return the command that was typed, with --yes, for the holder of an id and no other."""
    return same_command("--yes", *(() if expected else ("--expect", lock_id)))


def same_command_with_app() -> str:
    """Return the command that was typed without an app, with the place for one."""
    return f"{PLACEHOLDER} {_line(_typed()[1])}"


def other_command(*words: str) -> str:
    """Return another subcommand, with the app, or the nodes, of the one that was typed."""
    return _line([*_typed()[0], *words])


def _typed() -> tuple[Sequence[str], Sequence[str]]:
    typed: tuple[Sequence[str], Sequence[str]] = click.get_current_context().meta[_TYPED]
    return typed


def _program() -> Sequence[str]:
    """Return how this program is called: by its name, its path, or ``python -m``."""
    path = sys.argv[0]
    name = Path(path).name
    if name == "__main__.py":
        return sys.orig_argv[: len(sys.orig_argv) - len(sys.argv[1:])]
    return [name if shutil.which(name) == path else path]


def _line(words: Sequence[str]) -> str:
    """Return words as a shell reads them; one that may hold a password is left out."""
    return visible(" ".join("…" if _is_secret(word) else shlex.quote(word) for word in words))


def _is_secret(word: str) -> bool:
    return "://" in word and ("@" in word or "password=" in word)
