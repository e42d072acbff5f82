"""What a page of the documentation holds: its code blocks and its tables.

Which python blocks run, and how, is told by what a reader sees:

- ```` ```python ````: runs, in one namespace a page.
- ```` ```pycon ````: runs there, too, and prints what it says (`...` stands for anything).
- ```` ```python title="tasks.py" ````: is written to that file, for later blocks to import.
- after `<!-- not run: reason -->`: is compiled only.
- `<!-- hidden: … -->`: runs, but is not shown, such as starting servers.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.root import ROOT

_PIECE = re.compile(
    r"""
    ^<!--[ ](?P<comment>hidden|not[ ]run):(?P<text>.*?)-->
    |
    ^(?P<indent>[ ]*)```(?P<language>[\w+-]*)([ ]title="(?P<title>[^"]+)")?\n
    (?P<code>.*?)^(?P=indent)```$
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_CELL_BORDER = re.compile(r"(?<!\\)\|")
_CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class Block:
    """One block of code.

    Attributes:
        language: As the fence names it; "hidden" for what is in a comment.
        code: Its text, without indentation that it owes to a list.
        line: Number of its first line in the page.
        title: The file it belongs into, or None.
        not_run: Why it does not run, or None.
    """

    language: str
    code: str
    line: int
    title: str | None = None
    not_run: str | None = None


def pages() -> list[Path]:
    """Return every page that is shown to readers."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page in order.

    Raises:
        ValueError: A block or a comment of ours is not closed, or a reason is missing.
    """
    text = page.read_text(encoding="utf-8")
    if rest := re.search(r"^ *```.*|^<!-- (hidden|not run).*", _PIECE.sub("", text), re.MULTILINE):
        raise ValueError(f"{page}: {rest[0]!r} is not closed, or nothing that is known here")
    reason: str | None = None
    for piece in _PIECE.finditer(text):
        name = "code" if piece["comment"] is None else "text"
        line = text.count("\n", 0, piece.start(name)) + 1
        if piece["comment"] == "hidden":
            yield Block("hidden", piece["text"].lstrip(" "), line)
        elif piece["comment"]:
            reason = piece["text"].strip()
            if not reason:
                raise ValueError(f"{page}:{line}: say why it is not run")
        else:
            code = textwrap.dedent(piece["code"])
            yield Block(piece["language"], code, line, piece["title"], reason)
            reason = None


def tables(page: Path) -> list[list[dict[str, str]]]:
    """Return the tables of a page, each as a list of rows: a cell's text by its column's name."""
    found: list[list[dict[str, str]]] = []
    header: list[str] | None = None
    for line in page.read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            header = None
            continue
        cells = [cell.strip() for cell in _CELL_BORDER.split(line.strip())[1:-1]]
        if header is None:
            header = cells
            found.append([])
        elif not all(set(cell) <= set("-: ") for cell in cells):
            found[-1].append(dict(zip(header, cells, strict=True)))
    return found


def codes(cell: str) -> list[str]:
    """Return what a cell shows as code."""
    return [code.replace("\\|", "|") for code in _CODE.findall(cell)]
