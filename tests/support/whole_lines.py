"""Lines of a file that several processes write to, and that a kill may cut short."""

from __future__ import annotations

import json
import os
from pathlib import Path


def whole_lines(file: Path) -> list[str]:
    """Return the lines of a file, without a last one that is not complete.

    One write is not seen at once: where a line crosses a page of the file, its first part is there
    for a moment alone, and for good if its writer is killed just then.
    """
    return lines_after(file, 0)[0]


def lines_after(file: Path, position: int) -> tuple[list[str], int]:
    """Return the whole lines after a position in bytes, and the position of their end."""
    with file.open("rb") as opened:
        opened.seek(position)
        whole, newline, _ = opened.read().rpartition(b"\n")
    return whole.decode().splitlines(), position + len(whole) + len(newline)


class Journal:
    """A file of JSON lines, each added in one go: the next moment may be its writer's last.

    Args:
        file: It may be there already. Lines of several writers never mix.
    """

    def __init__(self, file: Path) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def say(self, **said: object) -> None:
        """Add a line."""
        os.write(self._file, json.dumps(said).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
