"""What a node tells of its server's run: whether an operator admitted it, whether it stores all.

Under each key prefix there is a note with the run id of a server that an operator has declared new.
It is valid for that run, and does not expire. Losing it only makes the restart guard longer.
"""

from __future__ import annotations

from typing import cast

from .scripts import Argument

Command = tuple[Argument, ...]
_SAFE = {b"appendonly": b"yes", b"appendfsync": b"always", b"no-appendfsync-on-rewrite": b"no"}


def reading(prefix: str) -> Command:
    """Return the command that reads the note; `as_admitted` takes the reply."""
    return ("GET", admitted_key(prefix))


def as_admitted(raw: object) -> str:
    """Return the run id of the admitted server; '': none, or the user may not read it."""
    return raw.decode(errors="replace") if isinstance(raw, bytes) else ""


def stores_each_write(configuration: object) -> bool:
    """Return whether a server stores each write before it replies, by its reply to CONFIG GET."""
    if isinstance(configuration, dict):
        found = cast("dict[object, object]", configuration)
    elif isinstance(configuration, list):
        flat = cast("list[object]", configuration)
        found = dict(zip(flat[::2], flat[1::2], strict=False))
    else:
        return False
    return all(found.get(name) == value for name, value in _SAFE.items())


def admitted_key(prefix: str) -> str:
    """Return the key of the note. No lock has one like it: theirs have braces."""
    return f"{prefix}:admitted"
