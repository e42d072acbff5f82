"""The five lifetimes on a line of time, from what tests with real workers have seen."""

from __future__ import annotations

from tests.support.judges.lifetime_table import STAGES, Held

from .drawing import box, line, picture, text

_LEFT, _START, _END, _RIGHT = 18, 190, 350, 482
_TOP, _ROW = 116, 56
_COLOURS = {Held.PENDING_SLOT: ("waits", "its pending slot"), Held.LOCK: ("held", "the lock")}


def draw() -> str:
    """Return the picture."""
    parts = [
        text(_LEFT, 62, "publish", "strong"),
        text(_START, 62, "body starts", "strong middle"),
        text(_END, 62, "body ends", "strong middle"),
        text((_LEFT + _START) / 2, 84, "in the queue", "faint middle"),
        text((_START + _END) / 2, 84, "runs", "faint middle"),
    ]
    bottom = _TOP + _ROW * len(STAGES) - 8
    parts += [line(x, 70, x, bottom, "plain dashed") for x in (_START, _END)]
    described = []
    for row, (lifetime, stages) in enumerate(STAGES.items()):
        y = _TOP + _ROW * row
        spans = [
            (_LEFT, _START, stages.waiting),
            (_START, _END, stages.running),
            (_END, _RIGHT, stages.after),
        ]
        parts.append(
            f'<rect x="{_LEFT}" y="{y - 12}" width="{9 * len(lifetime.value)}" height="17" '
            'style="fill: var(--paper)"/>'
        )
        parts.append(text(_LEFT, y, lifetime.value, "code"))
        for first, last, held in _joined(spans):
            about, said = _COLOURS[held]
            if last == _RIGHT:
                said = "the lock, for lock_ttl from publish"
            parts.append(box(first, y + 8, last - first, 26, about, said, "small"))
        described.append(
            f"{lifetime.value}: {stages.waiting.value} in the queue, {stages.running.value} while "
            f"the body runs, {stages.after.value} after its end."
        )
    title = "What a message holds, by lifetime"
    return picture(title, " ".join(described), bottom + 14, parts)


def _joined(spans: list[tuple[int, int, Held]]) -> list[tuple[int, int, Held]]:
    """Return the spans in which something is held; neighbours of one kind are one."""
    found: list[tuple[int, int, Held]] = []
    for first, last, held in spans:
        if found and found[-1][1:] == (first, held):
            found[-1] = (found[-1][0], last, held)
        elif held is not Held.NOTHING:
            found.append((first, last, held))
    return found
