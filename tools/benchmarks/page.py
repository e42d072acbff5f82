"""The page of one run: its tables, and the circumstances under which they were measured."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from celery_redlock.testing import find_server_binary
from tools.evidence.runs import run_now

Row = dict[str, Any]
"""The name of what was measured, and its figures by column, in the unit that the column names."""

PACKAGES = (
    "celery", "kombu", "redis", "hiredis", "redlock-py", "pottery", "python-redis-lock",
    "celery-singleton", "celery-once",
)  # fmt: skip
_DIGITS = 4


@dataclass
class Table:
    """One measure.

    Attributes:
        title: What was measured.
        rows: One for each of the things that were compared, and for each point of a curve.
        note: What a reader of the figures has to know.
    """

    title: str
    rows: list[Row] = field(default_factory=list)
    note: str = ""

    def row(self, name: str, **more: Any) -> Row:
        """Return the one row with that name and those figures.

        Raises:
            LookupError: There is no such row, or there are several.
        """
        wanted = {"name": name} | more
        found = [row for row in self.rows if row.items() >= wanted.items()]
        if len(found) != 1:
            raise LookupError(f"{self.title!r} has {len(found)} rows {wanted}")
        return found[0]


@dataclass
class Page:
    """All measures of one run, by name, and what they ran on."""

    tables: dict[str, Table] = field(default_factory=dict)
    circumstances: dict[str, Any] = field(default_factory=dict)

    def add(self, measure: str, title: str, rows: list[Row], note: str = "") -> None:
        """Add a measure, or rows to one that is there."""
        table = self.tables.setdefault(measure, Table(title, note=note))
        table.rows += [{name: _rounded(value) for name, value in row.items()} for row in rows]

    def save(self, path: Path) -> None:
        """Write the page as JSON, a row on a line."""
        as_dict = asdict(self)
        lines = {name: table.pop("rows") for name, table in as_dict["tables"].items()}
        for name, table in as_dict["tables"].items():
            table["rows"] = [f"<{name} {index}>" for index in range(len(lines[name]))]
        text = json.dumps(as_dict, indent=1)
        for name, rows in lines.items():
            for index, row in enumerate(rows):
                text = text.replace(f'"<{name} {index}>"', json.dumps(row))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    @classmethod
    def load(cls, path: Path) -> Page:
        """Read what `save` wrote."""
        read = json.loads(path.read_text())
        tables = {name: Table(**table) for name, table in read["tables"].items()}
        return cls(tables, read["circumstances"])


def circumstances(seconds: float) -> dict[str, Any]:
    """Return what the figures of this run depend on."""
    server = subprocess.run(
        [find_server_binary(), "--version"], capture_output=True, text=True, check=True
    )
    return {
        "seconds": seconds,
        "server": " ".join(server.stdout.split()[:3]),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": round(os.getloadavg()[2], 1),
        "packages": {name: _version(name) for name in PACKAGES},
        "run": run_now("performance"),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _rounded(value: Any) -> Any:
    """Return a number with a few digits: more would not be the same in the next run."""
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
