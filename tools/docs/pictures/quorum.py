"""A quorum round: GRANT and CONFIRM on five nodes, of which one is down."""

from __future__ import annotations

from celery_redlock.redlock.protocol.quorum import chosen_token, majority, unconfirmed
from celery_redlock.redlock.protocol.replies import Failed, Granted

from .drawing import arrow, box, picture, text

_PROPOSED = 71
# The floor of each node before the round; None: it is down.
_FLOORS = {"a": 40, "b": 40, "c": 73, "d": None, "e": 40}


def draw() -> str:
    """Return the picture; the package's own functions decide the round."""
    replies = [
        Failed("down") if floor is None else Granted(max(floor + 1, _PROPOSED))
        for floor in _FLOORS.values()
    ]
    token, _ = chosen_token(replies)
    asked, quorum, nodes = unconfirmed(replies, token), majority(len(replies)), len(replies)
    parts = [
        text(182, 66, "1. GRANT", "strong"),
        text(330, 66, f"2. CONFIRM {token}", "strong"),
        box(18, 141, 78, 58, "held"),
        text(57, 166, "client", "middle strong"),
        text(57, 186, f"P = {_PROPOSED}", "middle faint small"),
    ]
    described = [f"A client sends GRANT with the proposed token {_PROPOSED} to all nodes at once."]
    for row, (name, reply) in enumerate(zip(_FLOORS, replies, strict=True)):
        y = 96 + 37 * row
        about = "good" if isinstance(reply, Granted) else "bad"
        dashed = about if isinstance(reply, Granted) else "bad dashed"
        parts += [arrow(96, 170, 128, y, dashed), box(130, y - 14, 36, 28, dashed, name)]
        if not isinstance(reply, Granted):
            parts.append(text(182, y + 5, "down: no answer", about))
            described.append(f"Node {name} is down.")
            continue
        said = "confirmed" if row in asked else "has it already"
        parts.append(text(182, y + 5, f"granted: {reply.token}", about))
        parts.append(text(330, y + 5, f"✓ {said}", about))
        described.append(f"Node {name} grants {reply.token}.")
    granted = sum(isinstance(reply, Granted) for reply in replies)
    summary = [
        f"{granted} of {nodes} granted; a majority, {quorum}, is enough.",
        f"The token is the largest number granted: {token}.",
        "A majority has confirmed it: the client holds the lock.",
    ]
    parts += [text(18, 298 + 23 * row, said) for row, said in enumerate(summary)]
    described.append(f"The client sends CONFIRM {token} to those that granted less.")
    title = "A quorum round: one node of five is down"
    return picture(title, " ".join(described + summary), 362, parts)
