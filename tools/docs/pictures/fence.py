"""A paused holder meets the fence: two workers and a database that compares tokens."""

from __future__ import annotations

from .drawing import arrow, box, dot, line, picture, text

_OLD, _NEW, _DATA = 70, 235, 410


def draw() -> str:
    """Return the picture."""
    heads = {"worker 1": _OLD, "worker 2": _NEW, "database": _DATA}
    parts = [box(x - 55, 48, 110, 30, "plain", name, "strong") for name, x in heads.items()]
    parts += [
        line(_OLD, 78, _OLD, 158, "held"),
        line(_OLD, 318, _OLD, 412, "plain"),
        line(_NEW, 78, _NEW, 216, "plain"),
        line(_NEW, 216, _NEW, 412, "held"),
        line(_DATA, 78, _DATA, 412, "plain"),
        dot(_OLD, 104, "held"),
        text(_OLD + 12, 109, "lock, token 33", "held"),
        _message(_OLD, 136, "claim 33", "good"),
        _fence(144, 33),
        # Frozen: longer than its lease.
        box(_OLD - 30, 158, 60, 160, "waits dashed", "frozen", "waits"),
        line(_OLD - 30, 196, _OLD + 110, 196, "bad dashed"),
        text(_OLD + 38, 190, "lease ends", "bad small"),
        dot(_NEW, 216, "held"),
        text(_NEW + 12, 221, "lock, token 34", "held"),
        _message(_NEW, 254, "claim 34", "good"),
        _fence(262, 34),
        _message(_NEW, 306, "write, 34", "good"),
        text(_DATA + 10, 311, "written", "good"),
        text(_OLD + 14, 334, "wakes up", "waits strong"),
        _message(_OLD, 372, "write, 33", "bad"),
        text(_DATA + 10, 377, "refused", "bad strong"),
        text(_DATA + 10, 395, "33 < 34", "bad small"),
        text(18, 440, "The lock could not stop worker 1. The token did.", "strong"),
    ]
    described = (
        "Worker 1 acquires the lock with token 33 and claims it in the database: the fence is 33. "
        "Worker 1 is frozen, and its lease ends. Worker 2 acquires the lock with token 34 and "
        "claims it: the fence is 34. Worker 2 writes with 34, which is accepted. Worker 1 wakes up "
        "and writes with 33, which the database refuses: 33 is less than 34."
    )
    return picture("A frozen holder meets the fence", described, 458, parts)


def _message(x: int, y: int, said: str, about: str) -> str:
    words = text(x + 14, y - 8, said, about)
    return f"{words}\n{arrow(x, y, _DATA - 4, y, about)}"


def _fence(y: int, token: int) -> str:
    return box(_DATA - 40, y, 80, 26, "good", f"fence {token}", "small")
