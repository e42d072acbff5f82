"""The rooms of the package by layer, from the contracts that import-linter checks."""

from __future__ import annotations

import ast
import re

from tests.support.root import ROOT

from .drawing import WIDTH, arrow, box, picture, text

_LEFT, _ROW, _GAP = 46, 28, 7
_CONTRACT = r'^id = "{}"\n(?:(?!\[\[).*\n)*?^layers = (\[\n(?:.*\n)*?\])'


def layers(contract: str, configuration: str) -> list[list[str]]:
    """Return the layers of a contract from the top, each with its rooms and files.

    Args:
        contract: Its id.
        configuration: The text of pyproject.toml. (Python 3.10 has no reader of its own for it.)

    Raises:
        ValueError: It has no such contract.
    """
    found = re.search(_CONTRACT.format(re.escape(contract)), configuration, re.MULTILINE)
    if found is None:
        raise ValueError(f"no contract {contract!r} with layers")
    names: list[str] = ast.literal_eval(found[1])
    return [[name.strip() for name in layer.split("|")] for layer in names]


def draw() -> str:
    """Return the picture of the whole package."""
    return _stacked("celery_redlock", "layers", {"redlock": "knows no Celery"})


def draw_lock() -> str:
    """Return the picture of the lock's own room."""
    seams = {"transport": "talks to redis-py, hiredis", "protocol": "decides, without I/O"}
    return _stacked("celery_redlock/redlock", "redlock-layers", seams)


def _stacked(folder: str, contract: str, notes: dict[str, str]) -> str:
    configuration = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = layers(contract, configuration)
    parts, described = [], []
    width = WIDTH - _LEFT - 18
    for row, names in enumerate(found):
        y = 50 + (_ROW + _GAP) * row
        # As wide as their names ask for.
        share = (width - 6 * (len(names) - 1)) / sum(len(name) + 3 for name in names)
        x: float = _LEFT
        for name in names:
            is_room = (ROOT / folder / name).is_dir()
            said = f"{name}/" if is_room else name
            if name in notes:
                said += f": {notes[name]}"
            room = round(share * (len(name) + 3), 1)
            parts.append(box(x, y, room, _ROW, "held" if is_room else "plain", said, "small"))
            x += room + 6
        described.append(f"{len(found) - 1 - row}: {', '.join(names)}.")
    bottom = 50 + (_ROW + _GAP) * len(found) - _GAP
    parts += [
        arrow(27, 50, 27, bottom, "plain"),
        f'<g transform="rotate(-90 22 {(50 + bottom) / 2:g})">'
        + text(22, (50 + bottom) / 2 - 2, "imports only from below", "faint middle small")
        + "</g>",
    ]
    description = "Layers from the top; each imports only from those below. " + " ".join(described)
    return picture(f"The layers of {folder}/", description, bottom + 18, parts)
