"""The files of the package, each with the first line of its docstring, room by room.

    python -m tools.docs.files_page

It prints the tables that stand in the built page docs/explanation/architecture.md.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from tests.support.root import ROOT
from tools.docs.pictures.house import layers

PACKAGE = ROOT / "celery_redlock"
_CONTRACTS = {"redlock": "redlock-layers", "redlock/transport": "transport-layers"}
"""Rooms whose files have layers of their own, and the contract that names these."""


def files() -> dict[str, str]:
    """Return the first line of each file's docstring, by its name below the package.

    Raises:
        ValueError: A file has none.
    """
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        if not text:
            raise ValueError(f"{path} has no docstring")
        first = text.partition("\n\n")[0].replace("\n", " ")
        found[path.relative_to(PACKAGE).as_posix()] = first.replace("``", "`").replace("|", "\\|")
    return found


def tables() -> str:
    """Return a table for each room: that of the lock first, with the layers of its files."""
    said = files()
    rooms = {
        room: [name for name in names if Path(name).name != "__init__.py"]
        for room, names in groupby(sorted(said, key=_room), key=_room)
    }
    order = sorted(rooms, key=lambda room: (not room.startswith("redlock"), room))
    return "\n".join("\n".join(_table(room, rooms[room], said)) for room in order)


def _room(name: str) -> str:
    return name.rpartition("/")[0]


def _table(room: str, names: list[str], said: dict[str, str]) -> Iterator[str]:
    whole = f"{room}/__init__.py".lstrip("/")
    yield f"### `{room or 'celery_redlock'}/`\n\n{said[whole]}\n"
    layer_of = _layers(room)
    yield "| file | layer | contents |" if layer_of else "| file | contents |"
    yield "| --- | --- | --- |" if layer_of else "| --- | --- |"
    for name in sorted(names, key=lambda name: (-layer_of.get(Path(name).stem, 0), name)):
        layer = f" {layer_of[Path(name).stem]} |" if layer_of else ""
        yield f"| `{Path(name).name}` |{layer} {said[name]} |"
    yield ""


def _layers(room: str) -> dict[str, int]:
    """Return the layer of each file and folder of a room, 0 is the lowest; {}: it has none."""
    if room not in _CONTRACTS:
        return {}
    configuration = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = layers(_CONTRACTS[room], configuration)[::-1]
    return {name: number for number, names in enumerate(found) for name in names}


if __name__ == "__main__":
    sys.stdout.write(tables())
