"""Checks of what a node lets its user do: the lock's own commands, on a key of the doctor's."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Any, cast

from celery_redlock.operate.node_set import Command, NodeSet, Replies, refusal_in
from celery_redlock.operate.target import Target
from celery_redlock.redlock.protocol.replies import says_denied, says_replica
from celery_redlock.redlock.protocol.scripts import (
    ALL,
    CONFIRM,
    EXTEND,
    GRANT,
    RELEASE,
    evalsha,
    lock_keys,
)
from celery_redlock.redlock.transport.direct import DirectConnection, ErrorReply

from . import traps
from .nodes import is_local
from .traps import Finding, Severity

_STORING = {b"appendonly": b"yes", b"appendfsync": b"always", b"no-appendfsync-on-rewrite": b"no"}
"""Settings of a node that stores each write before it replies."""
_TTL_MS = 10_000
_TOKEN = 2**52
"""Above any floor, so that each script does all of its work."""


def rights_findings(target: Target, nodes: NodeSet) -> Iterator[Finding]:
    """Yield what is wrong with the rights on the nodes, and with their persistence."""
    keys = lock_keys(target.key_prefix, f"%doctor:{secrets.token_hex(8)}")
    commands = _commands(keys)
    for url, connection in zip(target.urls, nodes.connections, strict=True):
        if connection.error is None:
            yield from _narrow(connection, commands)
        if connection.error is None:  # still
            yield from _others(target, url, connection, channel=keys[0])


def _others(
    target: Target, url: str, connection: DirectConnection, channel: str
) -> Iterator[Finding]:
    if not is_local(url):
        yield from _wide(connection)
    # Of one node the restart guard is off by default: that is a trap of its own.
    if not target.guard and len(target.urls) != 1:
        yield from _forgets(connection)
    # This comes last: who may subscribe, but not unsubscribe, can ask nothing else then.
    yield from _wakeups(connection, channel, has_pushes="protocol=3" in url)


def _commands(keys: tuple[str, str]) -> list[Command]:
    """Return every command that the lock sends; at the end none of its keys is left."""
    owner = f"{secrets.token_hex(16)}:doctor@doctor"
    lock, floor = keys
    return [
        *(script.loading for script in ALL),
        evalsha(GRANT, keys, owner, _TTL_MS, _TOKEN, 0, _TTL_MS, "", 0),
        evalsha(CONFIRM, keys, owner, _TOKEN, _TTL_MS, _TTL_MS),
        evalsha(EXTEND, keys, owner, _TOKEN, _TTL_MS, _TTL_MS),
        evalsha(RELEASE, keys, owner, _TOKEN, _TTL_MS, 0, 0, ""),
        # Once more with a floor that is not the token: that takes another command.
        evalsha(GRANT, keys, owner, _TTL_MS, 1, 0, _TTL_MS, "", 0),
        evalsha(RELEASE, keys, owner, 1, _TTL_MS, 0, 0, ""),
        ("SET", lock, owner, "PX", _TTL_MS, "NX"),
        ("GET", lock),
        ("PTTL", lock),
        ("PEXPIRE", lock, _TTL_MS),
        ("TIME",),
        ("DEL", lock),
        ("DEL", floor),
    ]


def _narrow(connection: DirectConnection, commands: Sequence[Command]) -> Iterator[Finding]:
    said = _errors(connection, commands)
    if connection.error is not None:
        yield traps.DOWN.at(connection.name, connection.error)
    elif denied := _denial_in(said):
        yield traps.NARROW.at(connection.name, denied, Severity.ERROR)
    # A replica has a trap of its own.
    elif others := [text for text in said if not says_replica(text)]:
        yield traps.REFUSES.at(connection.name, others[0], Severity.ERROR)


def _wakeups(connection: DirectConnection, channel: str, *, has_pushes: bool) -> Iterator[Finding]:
    commands: list[Command] = [("PUBSUB", "NUMSUB", channel), ("PUBLISH", channel, "")]
    if not has_pushes:  # there, a subscription has no reply
        commands += [("SUBSCRIBE", channel), ("UNSUBSCRIBE", channel)]
    if denied := _denial_in(_errors(connection, commands)):
        yield traps.NARROW.at(connection.name, f"wakeups of waiting callers: {denied}")


def _errors(connection: DirectConnection, commands: Sequence[Command]) -> list[str]:
    """Return the errors that a node replies with."""
    return [str(one) for one in connection.ask(commands) if isinstance(one, ErrorReply)]


def _denial_in(errors: Sequence[str]) -> str | None:
    """Return the first error for lack of a right."""
    return next(filter(says_denied, errors), None)


def _wide(connection: DirectConnection) -> Iterator[Finding]:
    replies = connection.ask([("ACL", "WHOAMI")])
    if refusal_in(replies) is not None:
        return
    user = cast("list[bytes]", replies)[0]
    # Only a user with rights of an administrator may ask this.
    rights = _fields_in(connection.ask([("ACL", "GETUSER", user)]))
    if rights and rights.get(b"commands", b"").startswith(b"+@all"):
        what = f"user {user.decode(errors='replace')}: {rights[b'commands'].decode()}"
        is_open = b"nopass" in rights.get(b"flags", ())
        yield traps.WIDE.at(connection.name, what + (", without a password" if is_open else ""))


def _forgets(connection: DirectConnection) -> Iterator[Finding]:
    """Yield a finding unless the node stores each write before it replies."""
    conf = _fields_in(connection.ask([("CONFIG", "GET", "*append*")]))
    if conf is None:
        what = "redlock_restart_guard is off, and CONFIG, which tells appendfsync, is forbidden"
        yield traps.FORGETS.at(connection.name, what, Severity.UNKNOWN)
    elif any(conf.get(name) != value for name, value in _STORING.items()):
        told = [f"{name.decode()} {conf[name].decode()}" for name in _STORING if name in conf]
        yield traps.FORGETS.at(connection.name, ", ".join(told), Severity.ERROR)


def _fields_in(replies: Replies) -> dict[bytes, Any] | None:
    """Return the fields in the one reply of a node, a list with protocol 2; None: an error."""
    if refusal_in(replies) is not None:
        return None
    reply = cast("list[Any]", replies)[0]
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=False))
