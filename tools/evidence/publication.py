"""Figures of runs, collected into the documentation: the page of evidence, and the report of runs.

    python -m tools.evidence.publication [FOLDER]

FOLDER has what runs have recorded (`tests.support.evidence.record`). A kind that is not in it keeps
the figures that the documentation has. Without FOLDER the figures stay, and it takes a second: the
page, and that of performance, say again whether the code has changed since each run, and the page
what the mutation gate covers. The report is written as the site is built (`tools.docs.reports`).
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from tests.support.evidence import recorded
from tests.support.root import ROOT
from tools.benchmarks import publication as performance
from tools.mutation.gate import ALL
from tools.mutation.share import by_room, share_of

from .runs import FOLDER, Run, changed_since, oldest, runs_in
from .summary import KINDS, summary_of

PAGE = ROOT / "docs" / "explanation" / "evidence.md"
_TEMPLATE = Path(__file__).with_name("runs.md.j2")
_GATE = re.compile(r"^The gate covers .*$", re.MULTILINE)
_HEADER = "| kind | tried | result | run | code |\n| --- | --- | --- | --- | --- |\n"
Evidence = Mapping[str, Mapping[str, Any]]


def in_short(evidence: Evidence, runs: Mapping[str, Sequence[Run]]) -> str:
    """Return the table of the page of evidence; a kind that is missing was not run."""
    rows = (
        (
            _title(kind),
            *(summary_of(kind, evidence[kind]) if kind in evidence else ("not run", "not run")),
            *(_run_and_code(kind, runs[kind]) if kind in runs else ("", "")),
        )
        for kind in KINDS
    )
    return _HEADER + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def documentation(page: str, evidence: Evidence, runs: Mapping[str, Sequence[Run]]) -> str:
    """Return the page with another table in place of its own."""
    before, header, after = page.partition(_HEADER)
    if not header:
        raise ValueError(f"the page has no table {_HEADER!r}")
    return before + in_short(evidence, runs) + re.sub(r"\A(\|.*\n)*", "", after)


def with_shares(page: str) -> str:
    """Return the page with what the mutation gate covers now, of the package and of each room."""
    text, count = _GATE.subn(_gate(), page)
    if count != 1:
        raise ValueError(f"the page has {count} lines {_GATE.pattern!r}")
    return text


def report(evidence: Evidence, runs: Mapping[str, Sequence[Run]]) -> str:
    """Return the report of the figures of these runs; a kind that is missing was not run."""
    kinds_run = {kind: str(oldest(of_kind)) for kind, of_kind in runs.items()}
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  # Markdown, of our own figures
    )
    environment.filters |= {"shown": _shown, "words": _words}
    environment.tests |= {"table": _is_table}
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    text = template.render(evidence=evidence, known=_known(), runs=kinds_run)
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return re.sub(r"\n{3,}", "\n\n", lines).rstrip() + "\n"


def collect(recorded_in: Path, into: Path) -> None:
    """Copy what runs have recorded, with their pictures, over what the documentation has."""
    into.mkdir(parents=True, exist_ok=True)
    for pattern in ("*.json", "*.svg"):
        for file in sorted(recorded_in.glob(pattern)):
            shutil.copy(file, into / file.name)


def _gate() -> str:
    """Return the sentence about what the mutation gate covers; the room with most of it first."""
    whole = share_of(ALL)
    shares = {room: share.lines / share.of for room, share in by_room(ALL).items()}
    some = sorted((room for room in shares if shares[room]), key=lambda room: -shares[room])
    told = ", ".join(f"{_percent(shares[room])} of `{room}`" for room in some)
    none = ", ".join(f"`{room}`" for room in shares if not shares[room]) or "none"
    share = _percent(whole.lines / whole.of)
    return f"The gate covers {share} of the package's lines: {told}; left out wholly: {none}."


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _known() -> set[str]:
    """Return the kinds that have a section of their own."""
    return set(re.findall(r'(?:section|explored)\("(\w+)"', _TEMPLATE.read_text(encoding="utf-8")))


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


def _run_and_code(kind: str, runs: Sequence[Run]) -> tuple[str, str]:
    """Return which run the figures are of, and whether its code is still the same."""
    return str(oldest(runs)), "changed since" if changed_since(kind, runs) else "today's code"


def _title(kind: str) -> str:
    return _words(kind).capitalize().replace("Tls", "TLS")


def main(arguments: list[str]) -> None:
    """Collect, and write the pages again."""
    if arguments:
        collect(Path(arguments[0]), FOLDER)
    page = PAGE.read_text(encoding="utf-8")
    page = documentation(with_shares(page), recorded(FOLDER), runs_in(FOLDER))
    PAGE.write_text(page, encoding="utf-8")
    performance.main()


if __name__ == "__main__":
    main(sys.argv[1:])
