"""The report of equivalent mutants, made of the code; `tools.docs.reports` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from tools.mutation.gate import ALL, LEFT_OUT
from tools.mutation.scores import Equivalent, equivalents
from tools.mutation.share import share_of

_INTRO = """\
# Mutants that change nothing

`make mutation` changes the rules of the lock and of tasks, one place at a time, and a fast test has to fail for each change, but for those below: each has the reason why no test can tell. Any other mutant that survives makes `make mutation` fail, and so does a reason whose mutant is gone.

The gate covers {share:.0%} of the package's lines, in {files} files. No figure for mutants says anything about the others, which are listed first. The changes are those of mutmut and of `tools/mutation/operators.py`. Types, functions with a decorator, the words of messages, and what is evaluated when a module is imported are left alone.
"""  # noqa: E501


def report() -> str:
    """Return the text of the report."""
    covered = share_of(ALL)
    intro = _INTRO.format(share=covered.lines / covered.of, files=len(ALL))
    return "\n".join([intro.rstrip(), *_left_out(), *_tables()]) + "\n"


def _left_out() -> Iterator[str]:
    yield from ["", "## Files that are not mutated", "", "| why | files |", "| --- | --- |"]
    for why, group in groupby(LEFT_OUT, key=LEFT_OUT.__getitem__):
        yield f"| {why} | {', '.join(f'`{file}`' for file in sorted(group))} |"


def _tables() -> Iterator[str]:
    by_file = sorted(equivalents(), key=lambda one: one.file)
    for file, group in groupby(by_file, key=lambda one: one.file):
        yield from ["", f"## `{file}`", "", "| before | after | reason |", "| --- | --- | --- |"]
        yield from map(_row, group)


def _row(one: Equivalent) -> str:
    lines = one.change.splitlines()
    before, after = (_code(line[2:] for line in lines if line[0] == sign) for sign in "-+")
    return f"| {before} | {after} | {one.reason} |"


def _code(lines: Iterator[str]) -> str:
    return "<br>".join(f"`{line}`".replace("|", "\\|") for line in lines)
