"""What mkdocs.yml can't say: the version of the package, in the title of each page."""

from __future__ import annotations

from typing import Any

from celery_redlock import __version__


def on_config(config: Any) -> None:
    """Add the version to the site's name."""
    config.site_name += f" {__version__}"
