"""The page docs/explanation/first-hour.md, made from the record of one walk."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Sequence
from typing import Any

from tests.docs.first_hour.walk import Step
from tests.support.root import ROOT

PAGE = ROOT / "docs" / "explanation" / "first-hour.md"
RECORD = PAGE.with_suffix("") / "walk.json"
_PAGE = """\
# The first hour

A stranger's path, walked by a program. `make hour` builds the wheel, installs it into an
empty environment, and types what the [tutorial](../tutorial.md),
[Test your own tasks](../how-to/test-your-tasks.md) and [Use it with Django](../how-to/django.md)
say. A step that ends otherwise than they say stops it. `make wheel` includes this walk.

All times and outputs on this page come from one walk, on {system} with {cpus} CPU cores and
Python {python}. Its record is [beside this page](first-hour/walk.json). Other programs ran on the
machine, and pip loaded packages over the network, so the times are only an order of magnitude.

| step | seconds | what shows that it worked |
| --- | ---: | --- |
{rows}
| **all** | **{total:.0f}** | |

{steps}

## What the site looks like

`make screenshots` takes a picture of the site's main pages, of a search and of each drawing, in
both colours. These are its sheets:

![Home, tutorial, options, evidence, two how-to pages, the API, this page and a search, in light colours](first-hour/site-light.webp)

![The same pages in dark colours](first-hour/site-dark.webp)
"""  # noqa: E501


def recorded_walk(steps: Sequence[Step]) -> dict[str, Any]:
    """Return what is stored of a walk."""
    return {
        "system": platform.system(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "steps": [dataclasses.asdict(step) for step in steps],
    }


def documentation(record: dict[str, Any]) -> str:
    """Return the page that shows a recorded walk."""
    steps = [Step(**step) for step in record["steps"]]
    return _PAGE.format(
        system=record["system"],
        cpus=record["cpus"],
        python=record["python"],
        rows="\n".join(f"| {one.name} | {one.seconds:.1f} | {_cell(one.saw)} |" for one in steps),
        total=sum(one.seconds for one in steps),
        steps="\n\n".join(_section(number, one) for number, one in enumerate(steps, 1)),
    )


def read_record() -> dict[str, Any]:
    """Return the record that the documentation has."""
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return record


def write(record: dict[str, Any]) -> None:
    """Store a record, and write the page that shows it."""
    RECORD.parent.mkdir(exist_ok=True)
    text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    RECORD.write_text(text, encoding="utf-8")
    PAGE.write_text(documentation(record), encoding="utf-8")


def _section(number: int, step: Step) -> str:
    return "\n".join([f"## {number}. {step.name}", "", "```text", *step.typed, "```"])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
