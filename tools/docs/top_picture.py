"""The picture of `redlock top`, from a real run: `python -m tools.docs.top_picture`."""

from __future__ import annotations

import importlib
import re
import sys
import time
from dataclasses import replace

from rich.console import Console

from celery_redlock.cli.list_ import header_of
from celery_redlock.cli.top import Update, rendered
from celery_redlock.operate.incidents import Incidents
from celery_redlock.operate.overview import read_overview
from celery_redlock.operate.running import running_tasks
from celery_redlock.operate.target import target_of_app
from tests.support.root import ROOT
from tools.docs import commands

FILE = ROOT / "docs" / "images" / "top.svg"
_COLUMNS, _LINES = 120, 24
_TITLE = "celery -A bank redlock top"


def main() -> None:
    """Write what `top` shows in a terminal at its second update."""
    with commands.project() as folder:
        sys.path.insert(0, str(folder))
        app = importlib.import_module("bank").app
        target = target_of_app(app)
        console = Console(record=True, width=_COLUMNS, force_terminal=True)
        with Incidents(app) as incidents:
            rate: float | str = ""
            while isinstance(rate, str):
                time.sleep(2)
                rate = incidents.conflict_rate(time.time())
            overview = read_overview(target, 20)
            running = running_tasks(target, overview.oldest)
            running.tell(overview.oldest)
            update = Update(replace(overview, problem=running.problem), rate, header_of(target))
            console.print(rendered(update, _COLUMNS, _LINES))
    svg = console.export_svg(title=_TITLE)
    # A page loads nothing from elsewhere.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = svg.replace("<style>", f"<title>{_TITLE}</title>\n    <style>", 1)
    FILE.write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
