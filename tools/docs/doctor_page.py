"""The page of the doctor's traps, made from the code: `python -m tools.docs.doctor_page`."""

from __future__ import annotations

from celery_redlock.operate.doctor.traps import PAGE, TRAPS
from tests.support.root import ROOT

FILE = ROOT / PAGE
_INTRO = """# Traps that the doctor finds

[`celery redlock doctor`](commands.md#doctor) checks nodes, settings and tasks for these traps.
Their codes are stable.

<!-- Made from the code by `python -m tools.docs.doctor_page`. -->
"""


def page() -> str:
    """Return the text of the page."""
    parts = [_INTRO]
    for trap in TRAPS:
        title = f"## {trap.code}: {trap.title} {{ #{trap.code.lower()} }}"
        parts.append(f"{title}\n\n{trap.why}\n\n**Remedy.** {trap.fix}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
