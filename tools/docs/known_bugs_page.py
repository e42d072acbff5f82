"""The report of known bugs, made from the code; `tools.docs.reports` writes it."""

from __future__ import annotations

from tools.mutation.known_bugs import KNOWN_BUGS

_INTRO = """\
# Known bugs, made on purpose

Bugs that locks on Redis are known for, made one at a time in a copy of the source tree: for each, the test that is named has to fail. `make bugs` does it. To add one, see `tools/mutation/known_bugs.py`.

| bug | where locks have it | test that fails |
| --- | --- | --- |
"""  # noqa: E501


def report() -> str:
    """Return the text of the report."""
    return _INTRO + "".join(
        f"| {bug.name} | {bug.seen} | `{bug.test.removeprefix('tests/')}` |\n" for bug in KNOWN_BUGS
    )
