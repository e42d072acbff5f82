"""One tick of beat on three replicas: one of them publishes it."""

from __future__ import annotations

from .drawing import arrow, box, dot, line, picture, text

_DUE, _CLAIM, _PUBLISH, _KEEP = 122, 214, 322, 432


def draw() -> str:
    """Return the picture."""
    steps = {"due": _DUE, "claim": _CLAIM, "publish": _PUBLISH, "extend": _KEEP}
    parts = [
        text(x, 66, f"{number}. {name}", "strong middle")
        for number, (name, x) in enumerate(steps.items(), 1)
    ]
    for row, name in enumerate("abc"):
        y = 100 + 52 * row
        wins = name == "c"
        parts += [
            box(18, y - 16, 72, 32, "held" if wins else "plain", f"beat {name}"),
            line(90, y, _KEEP if wins else _CLAIM, y, "held" if wins else "plain"),
            box(_DUE - 24, y - 12, 48, 24, "plain", "03:00", "small"),
        ]
        if wins:
            parts += [dot(x, y, "good") for x in (_CLAIM, _PUBLISH, _KEEP)]
            parts += [
                text(_CLAIM, y - 12, "claimed", "good middle small"),
                text(_KEEP, y - 12, "extended", "good middle small"),
            ]
        else:
            parts += [
                dot(_CLAIM, y, "plain"),
                text(_CLAIM + 14, y + 5, "claimed by c: nothing to do", "faint small"),
            ]
    parts += [
        arrow(_PUBLISH, 210, _PUBLISH, 244, "good"),
        box(_PUBLISH - 112, 246, 272, 34, "good", "queue: 1 message, nightly at 03:00", "small"),
        text(18, 268, "3 replicas, 1 tick:", "strong"),
        text(18, 312, "If c dies before step 4, its claim ends after 10 s, and another"),
        text(18, 333, "replica publishes the tick, with the same task id."),
    ]
    described = (
        "Three replicas of beat, a, b and c, find the entry nightly due at 03:00. All three claim "
        "the tick on the lock nodes; c gets the claim, a and b have nothing to do. c publishes "
        "one message and extends its claim. If c dies before that, the claim ends after 10 s, and "
        "another replica publishes the tick, with the same task id."
    )
    return picture("One tick, three replicas of beat", described, 350, parts)
