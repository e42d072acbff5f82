"""Requests to a node: the four scripts, and the commands that need none, with their replies.

KEYS of each: the lock key, the floor key and, where said, the done mark. The keys share a hash
tag. Times are ms and tokens µs since the epoch, unless said otherwise. Arguments in brackets may be
left out: each costs the server time.

========  =========================================================  ==========================
script    ARGV                                                       reply
========  =========================================================  ==========================
grant     owner, ttl, proposed token, max clock skew in µs,          token, in digits: granted
          floor ttl, [owner that may be replaced or '',              {1, token, 0}: granted before
          highest floor to be granted under (0: any)]                {1, token, 1}: replaced one
          KEYS[3]: done mark to heed                                 {0, holder, pttl, floor,
                                                                       clock in µs}: '' and 0
                                                                       if nobody's
                                                                     {2, its pttl}: done before
confirm   owner, token, ttl, floor ttl                               1 confirmed, 0 not ours
extend    owner, token, ttl, floor ttl                               1 extended, 2 healed,
                                                                     3 occupied, 0 superseded
release   owner, token (0: an attempt without one), floor ttl,       1 it was ours, 0 it was not
          [time to keep the key, done ttl,                           {'released', listeners}:
          owner that was replaced or '': freed, too]                 it was ours, and they know
          KEYS[3]: done mark to write
========  =========================================================  ==========================
"""

from __future__ import annotations

import hashlib
import re
import reprlib
from dataclasses import dataclass
from importlib.resources import files
from typing import NewType

from celery_redlock.redlock.lease import is_reservation, without_nonces

from .replies import (
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
    """Text of a script, and the digest by which a server runs it once it is loaded."""

    name: str
    text: str
    sha: str

    @property
    def loading(self) -> tuple[str, str, str]:
        """Command that loads the script."""
        return ("SCRIPT", "LOAD", self.text)


def _load(name: str) -> Script:
    text = (files(__package__) / "lua" / f"{name}.lua").read_text(encoding="utf-8")
    # The server identifies the script by this digest; security does not rest on it.
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


GRANT = _load("grant")
CONFIRM = _load("confirm")
EXTEND = _load("extend")
RELEASE = _load("release")
ALL = (GRANT, CONFIRM, EXTEND, RELEASE)

Argument = bytes | str | int
Refusal = NewType("Refusal", str)
"""Reason why a node does not write what a lease needs; '' if it writes."""
HIGHEST_TOKEN = 2**53
"""The scripts count in doubles. A higher token is invalid, and would stay the highest for ever."""
_RESERVED = Granted(0)
_LONGEST_ERROR = 500
_is_number = re.compile(rb"\d{1,16}").fullmatch
_shown = reprlib.Repr()
_shown.maxlevel = 3
_shown.maxother = _shown.maxstring = 100


def evalsha(script: Script, keys: tuple[str, ...], *argv: Argument) -> tuple[Argument, ...]:
    """Return the command that runs `script`, unpacked."""
    return ("EVALSHA", script.sha, len(keys), *keys, *argv)


def lock_keys(prefix: str, key: str) -> tuple[str, str]:
    """Return the lock key and the floor key for `key`; one hash tag puts both in one hash slot."""
    lock = f"{prefix}:{{{key}}}"
    return lock, f"{lock}:floor"


def done_key(prefix: str, key: str, label: str) -> str:
    """Return the key of the done mark for the task `label`."""
    return f"{prefix}:{{{key}}}:done:{label}"


def as_grant(raw: object) -> GrantReply:
    """Parse a raw reply to GRANT."""
    match raw:
        case bytes() if _is_number(raw) and 1 <= int(raw) <= HIGHEST_TOKEN:
            return Granted(int(raw))
        # `int(token)` means the same and takes several times as long.
        case [1, int() as token, int() as took_over] if 1 <= token <= HIGHEST_TOKEN:
            return Granted(token, bool(took_over))
        case [0, bytes() as holder, int() as pttl, int() as floor, int() as now] if (
            0 <= floor <= HIGHEST_TOKEN
        ):
            return Busy(
                holder.decode(errors="replace"), pttl, floor, now - floor if floor else None
            )
        case [2, int(left)]:
            return Done(left)
    return _failed(raw)


def reserving(lock: str, owner: str, ttl_ms: int) -> list[tuple[Argument, ...]]:
    """Return the commands that set a lock key unless it exists, and read its owner."""
    return [("SET", lock, owner, "PX", ttl_ms, "NX"), *looking(lock)]


def looking(lock: str) -> list[tuple[Argument, ...]]:
    """Return the commands that read the owner of a lock key and its remaining time."""
    return [("GET", lock), ("PTTL", lock)]


def looking_closely(lock: str, floor: str, *done: str) -> list[tuple[Argument, ...]]:
    """Return the commands of `looking`, and those that read the floor and the node's clock.

    And the remaining time of each done mark.
    """
    return [*looking(lock), ("GET", floor), ("TIME",), *(("PTTL", mark) for mark in done)]


def as_held(raws: list[object]) -> GrantReply:
    """Parse the raw replies to `looking_closely`: Busy, with '' if the lock is free; or Done."""
    match raws:
        case [_, _, _, _, *marks] if any(isinstance(left, int) and left > 0 for left in marks):
            return Done(max(left for left in marks if isinstance(left, int)))
        case [bytes() | None as holder, int() as pttl, bytes() | None as raw_floor, raw_time, *_]:
            floor = int(raw_floor) if raw_floor and _is_number(raw_floor) else 0
            floor = floor if floor <= HIGHEST_TOKEN else 0
            time = as_time(raw_time)
            age_us = round(time * 1e6) - floor if floor and isinstance(time, float) else None
            if holder is None:
                return Busy("", 0, floor)
            return Busy(holder.decode(errors="replace"), pttl, floor, age_us)
    return _failed(next((raw for raw in raws if isinstance(raw, Exception)), raws))


def as_reserved(owner: bytes, raws: list[object]) -> GrantReply:
    """Parse the raw replies to `reserving`; a grant has the token 0."""
    done, holder, pttl = raws
    is_refused = isinstance(done, Exception)
    if holder == owner and not is_refused:
        return _RESERVED
    # A full server still recognizes a duplicate. A replica only repeats what another node has.
    is_busy = done is None or (is_refused and not str(done).startswith("READONLY"))
    if is_busy and isinstance(holder, bytes) and isinstance(pttl, int):
        return Busy(holder.decode(errors="replace"), pttl, 0)
    if done is None and holder is None and isinstance(pttl, int):
        # The lock was released between the two commands.
        return Busy("", 0, 0)
    return _failed(next((raw for raw in raws if isinstance(raw, Exception)), raws))


def as_ack(raw: object) -> AckReply:
    """Parse a raw reply to CONFIRM."""
    if raw == 1:
        return Acknowledged()
    return Declined() if raw == 0 else _failed(raw)


def as_release(raw: object) -> AckReply:
    """Parse a raw reply to RELEASE: acknowledged whether or not the lock key was ours."""
    match raw:
        case 0 | 1:
            return Acknowledged(raw == 1)
        case [b"released", int() as listeners] if listeners > 0:
            return Acknowledged(listeners=listeners)
    return _failed(raw)


def releasing(keys: tuple[str, ...], owner: str, *argv: Argument) -> list[tuple[Argument, ...]]:
    """Return the commands that release a lock of `owner`; the reply to the last one counts.

    A server that has lost its scripts still grants a reservation, for a long ttl. Nobody may be
    waiting for the reply to its release, so that loads the script first.
    """
    release = evalsha(RELEASE, keys, owner, *argv)
    return [RELEASE.loading, release] if is_reservation(owner) else [release]


def as_released(raws: list[object]) -> AckReply:
    """Parse the raw replies to `releasing`."""
    return as_release(raws[-1])


def as_extend(raw: object) -> ExtendReply:
    """Parse a raw reply to EXTEND."""
    match raw:
        case 1:
            return Extended()
        case 2:
            return Healed()
        case 3:
            return Occupied()
        case 0:
            return Superseded()
    return _failed(raw)


def as_probed(raws: list[object]) -> Refusal | Failed:
    """Parse the raw replies to a probe: GRANT, plain commands that others need, and RELEASE."""
    grant, *plain, release = raws
    if error := next((one for one in raws if isinstance(one, Exception)), None):
        return Refusal(_unexpected(error))
    if wrong := next((one for one in plain if not isinstance(one, int)), None):
        return _failed(wrong)
    for reply in (as_grant(grant), as_release(release)):
        if isinstance(reply, Failed):
            return reply
    return Refusal("")


def as_time(raw: object) -> float | Failed:
    """Parse a raw reply to TIME into seconds since the epoch."""
    match raw:
        case [bytes(seconds), bytes(micros)] if _is_number(seconds) and _is_number(micros):
            return int(seconds) + int(micros) / 1e6
    return _failed(raw)


def _failed(raw: object) -> Failed:
    """Return the failure of a node whose reply is an error, or none that was expected."""
    return Failed(_unexpected(raw), is_reply=True)


def _unexpected(raw: object) -> str:
    """Describe an unexpected reply, however long or nested it is."""
    said = str(raw) if isinstance(raw, Exception) else f"unexpected reply {_shown.repr(raw)}"
    return without_nonces(said[: 2 * _LONGEST_ERROR])[:_LONGEST_ERROR]
