"""Notes of who has released the lock of another holder, for that one to find.

A note counts for one lease, and only explains its loss: nothing is decided by it.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import NamedTuple

from celery_redlock.redlock.labels import bounded
from celery_redlock.redlock.lease import owner_id

from .replies import Acknowledged, AckReply, Failed

LASTS_MS = 3_600_000
"""Expiry of a note, ms: longer than it takes a holder to find its lease lost."""
_AUTHOR_BYTES = 255
_MOST_DIGITS = 11


class DropNote(NamedTuple):
    """Note that the lock of one owner was released by somebody else.

    Attributes:
        owner_id: Id of the owner, as `owner_id` returns it: the note tells nobody the owner.
        at: When, seconds since the epoch on the clock of the one who released it.
        author: Who released it.
    """

    owner_id: str
    at: int
    author: str

    @classmethod
    def of(cls, owner: str, at: float, author: str) -> DropNote:
        """Return the note for the lock of `owner`; a long author is shortened."""
        return cls(owner_id(owner), int(at), bounded(author, _AUTHOR_BYTES))

    @property
    def value(self) -> str:
        """Value of the note's key; `as_note` takes it."""
        return f"{self.owner_id} {self.at} {self.author}"

    @property
    def reason(self) -> str:
        """Reason of the loss, for its holder."""
        at = datetime.fromtimestamp(self.at, timezone.utc)
        return f"it was released by {self.author} at {at:%Y-%m-%d %H:%M:%S} UTC"


def dropped_key(prefix: str, key: str) -> str:
    """Return the key of the note under a lock's key."""
    return f"{prefix}:{{{key}}}:dropped"


def as_noted(raw: object) -> AckReply:
    """Parse a raw reply to SET of a note."""
    return Acknowledged() if raw == b"OK" else Failed("the note was not written")


def as_note(raw: object) -> DropNote | Failed:
    """Parse a raw reply to GET of a note."""
    if isinstance(raw, bytes):
        of, _, rest = raw.decode(errors="replace").partition(" ")
        at, _, author = rest.partition(" ")
        if at.isdecimal() and at.isascii() and len(at) <= _MOST_DIGITS and author:
            return DropNote(of, int(at), author)
    return Failed("there is no note")
