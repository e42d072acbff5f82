"""Mutants of the Lua scripts, which mutmut does not know: each is one small change of the text.

The contract suite runs on each, on one real server, until a test fails.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.root import ROOT

from .copied_tree import CopiedTree

FOLDER = "celery_redlock/redlock/protocol/lua"
_TESTS = ("tests/contract/test_scripts.py", "tests/contract/test_model.py", "-k", "on-path")
_COMMENT = re.compile(r"--[^\n]*")
_CHANGES = tuple(
    (re.compile(pattern), new)
    for pattern, new in [
        (r"==", "~="),
        (r"~=", "=="),
        (r"<=", "<"),
        (r">=", ">"),
        (r"(?<=\s)<(?=\s)", "<="),
        (r"(?<=\s)>(?=\s)", ">="),
        (r"\band\b", "or"),
        (r"\bor\b", "and"),
        (r"\bnot ", ""),
        (r"\+(?= )", "-"),
        (r"(?<= )-(?= )", "+"),
        (r"\b(?<!%\.)[01]\b(?!\])", "2"),
        (r"\bfalse\b", "true"),
        (r"'NX'", "'XX'"),
        (r"'(INCR|DECR|DEL|PEXPIRE|PUBLISH)'", "'EXISTS'"),
        (r"pcall", "call"),
        (r"\bmath\.max\b", "math.min"),
        (r"\bmath\.min\b", "math.max"),
        (r"86400000", "86400"),
    ]
)


class LuaMutant(NamedTuple):
    """A script with one change."""

    line: int
    removed: str
    added: str
    text: str


def mutants(text: str) -> Iterator[LuaMutant]:
    """Yield every mutant of a script."""
    comments = [match.span() for match in _COMMENT.finditer(text)]
    for pattern, new in _CHANGES:
        for match in pattern.finditer(text):
            begin, end = match.span()
            if any(first <= begin < last for first, last in comments):
                continue
            changed = text[:begin] + new + text[end:]
            number = text.count("\n", 0, begin)
            removed, added = (one.splitlines()[number].strip() for one in (text, changed))
            yield LuaMutant(number + 1, removed, added, changed)


def survivors(file: str, ends_at: float | None = None) -> tuple[int, list[LuaMutant], bool]:
    """Try the mutants of a script.

    Args:
        file: Name of the script.
        ends_at: Time to stop at, seconds on the monotonic clock; None: when every mutant was tried.

    Returns:
        How many were killed, those that live, and whether every mutant was tried.
    """
    text = (ROOT / FOLDER / file).read_text(encoding="utf-8")
    killed = 0
    alive: list[LuaMutant] = []
    with tempfile.TemporaryDirectory() as folder, CopiedTree(Path(folder)) as tree:
        status, printed = tree.run(*_TESTS)
        assert status == 0, printed
        for mutant in mutants(text):
            if ends_at is not None and time.monotonic() >= ends_at:
                return killed, alive, False
            with tree.changed(f"{FOLDER}/{file}", text, mutant.text):
                status, _ = tree.run(*_TESTS)
            if status == 0:
                alive.append(mutant)
            else:
                killed += 1
    return killed, alive, True
