"""The four scripts, and what goes without one: what they are given and what they reply.

KEYS of each: the lock key, the floor key and, where said, the done mark. The keys share a hash
tag. Times are ms and tokens µs since the epoch, unless said otherwise.

========  =========================================================  ==========================
script    ARGV                                                       reply
========  =========================================================  ==========================
grant     owner, ttl, proposed token, max clock skew in µs,          {1, token}: granted
          floor ttl, owner that may be replaced or '',               {0, holder, pttl, floor}:
          highest floor to be granted under (0: any)                   '' and 0 if nobody's
          KEYS[3]: done mark to heed                                 {2, its pttl}: done before
confirm   owner, token, ttl, floor ttl                               1 confirmed, 0 not ours
extend    owner, token, ttl, floor ttl                               1 extended, 2 healed,
                                                                     3 occupied, 0 superseded
release   owner, token (0: an attempt without one), floor ttl,       1 it was ours, 0 it was not
          time to keep the key, done ttl,
          owner that was replaced or '': freed, too
          KEYS[3]: done mark to write
========  =========================================================  ==========================
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

from .quorum import (
    Acknowledged,
    AckReply,
    Busy,
    Declined,
    Done,
    Extended,
    ExtendReply,
    Failed,
    Granted,
    GrantReply,
    Healed,
    Occupied,
    Superseded,
)


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text and the digest under which a server that has loaded it runs it."""

    name: str
    text: str
    sha: str

    @property
    def loading(self) -> tuple[str, str, str]:
        """The command that has a server load it."""
        return ("SCRIPT", "LOAD", self.text)


def _load(name: str) -> Script:
    text = (files(__package__) / "lua" / f"{name}.lua").read_text(encoding="utf-8")
    # The digest is the server's name for the script, not a safeguard.
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


GRANT = _load("grant")
CONFIRM = _load("confirm")
EXTEND = _load("extend")
RELEASE = _load("release")
ALL = (GRANT, CONFIRM, EXTEND, RELEASE)

Argument = bytes | str | int
_RESERVED = Granted(0)


def evalsha(script: Script, keys: tuple[str, ...], *argv: Argument) -> tuple[Argument, ...]:
    """Return the command that runs `script`, not packed yet."""
    return ("EVALSHA", script.sha, len(keys), *keys, *argv)


def lock_keys(prefix: str, key: str) -> tuple[str, str]:
    """Return the lock key and the floor key of the lock named `key`: one hash tag, one slot."""
    lock = f"{prefix}:{{{key}}}"
    return lock, f"{lock}:floor"


def done_key(prefix: str, key: str, label: str) -> str:
    """Return the key of the mark that says: the task `label` has run to its end."""
    return f"{prefix}:{{{key}}}:done:{label}"


def as_grant(raw: object) -> GrantReply:
    """Return what a raw reply to GRANT means."""
    match raw:
        # Not `int(token)`, which means the same and takes several times as long.
        case [1, int() as token, int() as took_over]:
            return Granted(token, bool(took_over))
        case [0, bytes() as holder, int() as pttl, int() as floor]:
            return Busy(holder.decode(errors="replace"), pttl, floor)
        case [2, int(left)]:
            return Done(left)
    return Failed(_unexpected(raw))


def reserving(lock: str, owner: str, ttl_ms: int) -> list[tuple[Argument, ...]]:
    """Return the commands that set a lock key if nobody has it, and tell who has it then."""
    return [("SET", lock, owner, "PX", ttl_ms, "NX"), ("GET", lock), ("PTTL", lock)]


def as_reserved(owner: bytes, raws: list[object]) -> GrantReply:
    """Return what the raw replies to `reserving` mean: a grant has the token 0."""
    done, holder, pttl = raws
    is_refused = isinstance(done, Exception)
    if holder == owner and not is_refused:
        return _RESERVED
    # A full server, say, still tells a duplicate. A replica tells what another node does.
    is_busy = done is None or (is_refused and not str(done).startswith("READONLY"))
    if is_busy and isinstance(holder, bytes) and isinstance(pttl, int):
        return Busy(holder.decode(errors="replace"), pttl, 0)
    if done is None and holder is None and isinstance(pttl, int):
        # It was freed in between.
        return Busy("", 0, 0)
    return Failed(_unexpected(next((raw for raw in raws if isinstance(raw, Exception)), raws)))


def as_ack(raw: object) -> AckReply:
    """Return what a raw reply to CONFIRM means."""
    if raw == 1:
        return Acknowledged()
    return Declined() if raw == 0 else Failed(_unexpected(raw))


def as_release(raw: object) -> AckReply:
    """Return what a raw reply to RELEASE means: either way the node has done its part."""
    return Acknowledged(raw == 1) if raw in (0, 1) else Failed(_unexpected(raw))


def as_extend(raw: object) -> ExtendReply:
    """Return what a raw reply to EXTEND means."""
    match raw:
        case 1:
            return Extended()
        case 2:
            return Healed()
        case 3:
            return Occupied()
        case 0:
            return Superseded()
    return Failed(_unexpected(raw))


def as_time(raw: object) -> float | Failed:
    """Return what a node's TIME says, in seconds since the epoch."""
    match raw:
        case [bytes(seconds), bytes(micros)]:
            return int(seconds) + int(micros) / 1e6
    return Failed(_unexpected(raw))


def _unexpected(raw: object) -> str:
    return str(raw) if isinstance(raw, Exception) else f"unexpected reply {raw!r}"
