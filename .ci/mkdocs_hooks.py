"""What neither mkdocs.yml nor a page can say: the version, the reports, the files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

from celery_redlock import __version__

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.docs.files_page import tables
from tools.docs.reports import REPORTS, title

_REPORTS = "<!-- the reports -->"
_FILES = "<!-- the files -->"


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


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Say where the reports are, and what is in each file."""
    markdown = markdown.replace(_FILES, tables() if _FILES in markdown else "")
    return markdown.replace(_REPORTS, _reports() if _REPORTS in markdown else "")


def _reports() -> str:
    """Return the list of the reports, with links."""
    links = [f"- [{title(made())}](../evidence/{name}.md)" for name, made in REPORTS.items()]
    return "\n".join(links)
