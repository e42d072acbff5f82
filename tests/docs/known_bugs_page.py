"""The table of docs/explanation/known-bugs.md: `python -m tests.docs.known_bugs_page` writes it."""

from __future__ import annotations

from tests.mutation.known_bugs import KNOWN_BUGS
from tests.support.root import ROOT

PAGE = ROOT / "docs" / "explanation" / "known-bugs.md"


def rows() -> list[str]:
    """Return the rows of the table."""
    return [
        f"| {bug.name} | {bug.seen} | `{bug.test.removeprefix('tests/')}` |" for bug in KNOWN_BUGS
    ]


def main() -> None:
    """Replace the rows in the page."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    begin = lines.index("| --- | --- | --- |") + 1
    end = next(number for number in range(begin, len(lines)) if not lines[number].startswith("|"))
    lines[begin:end] = rows()
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
