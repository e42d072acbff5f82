"""The report of the first hour, made of the record of one walk; see `tools.docs.reports`."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Sequence
from typing import Any

from tests.support.root import ROOT
from tools.docs.first_hour.walk import Step

RECORD = ROOT / "docs" / "evidence" / "first-hour" / "walk.json"
_REPORT = """\
# The first hour

A stranger's path, walked by a program: `make hour` installs the wheel into an empty environment and
types what the [tutorial](../tutorial.md), [Test your own tasks](../how-to/test-your-tasks.md) and
[Use it with Django](../how-to/django.md) say. A step that ends otherwise stops it.

One walk, on {system} with {cpus} CPU cores and Python {python}, [recorded](first-hour/walk.json)
beside other programs and with downloads by pip: the times are only an order of magnitude.

| step | seconds | what shows that it worked |
| --- | ---: | --- |
{rows}
| **all** | **{total:.0f}** | |

{steps}

## What the site looks like

`make screenshots` takes these pictures, in both colours.

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


def report(record: dict[str, Any]) -> str:
    """Return the text of the report."""
    steps = [Step(**step) for step in record["steps"]]
    return _REPORT.format(
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
    """Store a record for the documentation."""
    RECORD.parent.mkdir(exist_ok=True)
    text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    RECORD.write_text(text, encoding="utf-8")


def _section(number: int, step: Step) -> str:
    return "\n".join([f"## {number}. {step.name}", "", "```text", *step.typed, "```"])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
