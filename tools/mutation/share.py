"""How much of the package the mutation gate covers, and which files it leaves out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support.root import ROOT

from .scores import PACKAGE

_SUFFIXES = (".py", ".lua")


class Share(NamedTuple):
    """Share of the package, or of a room, that is mutated.

    Attributes:
        lines: Lines of the files that are mutated.
        of: Lines of all files.
        left_out: Files that are not mutated, below the package, and the lines of each.
    """

    lines: int
    of: int
    left_out: dict[str, int]

    def __str__(self) -> str:
        return f"{self.lines} of {self.of} lines ({self.lines / self.of:.0%})"


def files_with_code() -> list[str]:
    """Return the files of the package that have code, below it, in order."""
    return [file for file, _ in _lines()]


def share_of(files: Collection[str]) -> Share:
    """Return the share that these files, below the package, are of it."""
    return _share(files, dict(_lines()))


def by_room(files: Collection[str]) -> dict[str, Share]:
    """Return the share that these files are of each room, by its name; "*.py": of no room."""
    rooms: dict[str, dict[str, int]] = {}
    for file, count in _lines():
        room, slash, _ = file.partition("/")
        rooms.setdefault(room if slash else "*.py", {})[file] = count
    return {room: _share(files, lines) for room, lines in rooms.items()}


def _share(files: Collection[str], lines: Mapping[str, int]) -> Share:
    left_out = {file: count for file, count in lines.items() if file not in files}
    of = sum(lines.values())
    return Share(of - sum(left_out.values()), of, left_out)


def _lines() -> Iterator[tuple[str, int]]:
    """Yield the number of lines of each file of the package that has code."""
    package = ROOT / PACKAGE
    for path in sorted(path for path in package.rglob("*") if path.suffix in _SUFFIXES):
        count = _count(path)
        if count > 1:
            yield path.relative_to(package).as_posix(), count


def _count(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())
