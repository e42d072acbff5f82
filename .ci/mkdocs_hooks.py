"""What neither mkdocs.yml nor a page can say: the version, the reports, what has changed since."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

from celery_redlock import __version__

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.docs.files_page import tables
from tools.docs.reports import REPORTS, title
from tools.evidence.runs import all_runs, changes_since

_REPORTS = "<!-- the reports -->"
_FILES = "<!-- the files -->"
_MARK = "<!-- what has changed since -->"
_PAGES = {"explanation/evidence.md": None, "explanation/performance.md": "performance"}
"""Pages with figures of recorded runs, and of which kind these are; None: of all others."""


def on_config(config: Any) -> None:
    """Add the version to the site's name."""
    config.site_name += f" {__version__}"


def on_files(files: Any, config: Any) -> Any:
    """Add the reports, which are made of recorded data."""
    for name, made in REPORTS.items():
        path = f"evidence/{name}.md"
        if kept := files.get_file_from_path(path):
            files.remove(kept)
        files.append(File.generated(config, path, content=made()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Say where the reports are, what has changed since recorded runs, and what is in each file."""
    markdown = markdown.replace(_FILES, tables() if _FILES in markdown else "")
    if page.file.src_uri not in _PAGES:
        return markdown
    if _MARK not in markdown:
        raise LookupError(f"{page.file.src_uri} has no {_MARK}")
    only = _PAGES[page.file.src_uri]
    runs = all_runs()
    shown = [only] if only else [kind for kind in runs if kind not in _PAGES.values()]
    reports = [f"- [{title(made())}](../evidence/{name}.md)" for name, made in REPORTS.items()]
    markdown = markdown.replace(_REPORTS, "\n".join(reports))
    return markdown.replace(_MARK, changes_since({kind: runs[kind] for kind in shown}))
