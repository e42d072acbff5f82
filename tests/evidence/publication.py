"""The page of evidence: figures of runs, collected into the documentation.

    python -m tests.evidence.publication [FOLDER]

FOLDER has what runs have recorded (`tests.support.evidence.record`). A kind that is not in it keeps
the figures that the documentation has. Without FOLDER only the page is written again.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from tests.support.evidence import recorded
from tests.support.root import ROOT

from .summary import KINDS, summary_of

PAGE = ROOT / "docs" / "explanation" / "evidence.md"
FOLDER = PAGE.with_suffix("")
_TEMPLATE = Path(__file__).with_name("evidence.md.j2")
Evidence = Mapping[str, Mapping[str, Any]]


def documentation(evidence: Evidence) -> str:
    """Return the page with the figures of these runs; a kind that is missing was not run."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  # Markdown, of our own figures
    )
    environment.filters |= {"shown": _shown, "words": _words}
    environment.globals |= {"kinds": KINDS, "summary_of": summary_of}
    environment.tests |= {"table": _is_table}
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    text = template.render(evidence=evidence, known=_known())
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return re.sub(r"\n{3,}", "\n\n", lines).rstrip() + "\n"


def collect(recorded_in: Path, into: Path) -> None:
    """Copy what runs have recorded, with their pictures, over what the documentation has."""
    into.mkdir(parents=True, exist_ok=True)
    for pattern in ("*.json", "*.svg"):
        for file in sorted(recorded_in.glob(pattern)):
            shutil.copy(file, into / file.name)


def _known() -> set[str]:
    """Return the kinds that have a section of their own."""
    return set(re.findall(r'section\("(\w+)"', _TEMPLATE.read_text(encoding="utf-8")))


def _is_table(figure: object) -> bool:
    """Tell whether a figure is rows of figures: all have the same names."""
    return isinstance(figure, list) and bool(figure) and all(isinstance(x, dict) for x in figure)


def _shown(figure: Any) -> str:
    """Return a figure as people read it."""
    match figure:
        case None:
            return "not run"
        case bool():
            return "yes" if figure else "no"
        case int():
            return f"{figure:,}"
        case float():
            return f"{figure:,.0f}" if abs(figure) >= 100 else f"{figure:.3g}"
        case list() | tuple():
            return ", ".join(map(_shown, figure)) or "none"
        case dict():
            return ", ".join(f"{_words(name)}: {_shown(one)}" for name, one in figure.items())
    return str(figure).replace("|", "\\|").replace("\n", " ")


def _words(name: str) -> str:
    return name.replace("_", " ")


def main(arguments: list[str]) -> None:
    """Collect, and write the page."""
    if arguments:
        collect(Path(arguments[0]), FOLDER)
    PAGE.write_text(documentation(recorded(FOLDER)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
