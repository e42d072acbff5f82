"""Log of what operators have done, on the nodes: who, when, why, and with what result.

A list under the key prefix has the latest actions, on each node that took them. Nothing is decided
by it, and an action does not fail for want of it.
"""

from __future__ import annotations

import itertools
import json
import logging
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, cast

from celery_redlock.redlock.errors import shown
from celery_redlock.redlock.protocol.quorum import majority

from .locks import Kind, Lock
from .node_set import NodeSet, refusal_in
from .target import Target

logger = logging.getLogger(__name__)
MOST = 1000
"""Actions that a node keeps."""
KEPT_S = 90 * 86_400.0
"""Time for which an action is shown, and the list is kept after the last one."""
_LONGEST = 500
_PAGE = 25
"""Actions in one reply, which is less than the 1 MiB that a reply may have, whatever is in them."""
_END_OF_TIME = 1e11


@dataclass(frozen=True, slots=True)
class Action:
    """An action of an operator.

    Attributes:
        action: "release", "end" or "admit".
        author: Who did it.
        what: What it was done to: the holder of a lock, or nodes.
        key: Key of the lock; '': it was about nodes.
        reason: Why; '': nobody said.
        result: What became of it.
        at: When, seconds since the epoch by the operator's clock.
        id: Random, the same on all nodes.
    """

    action: str
    author: str
    what: str
    key: str = ""
    reason: str = ""
    result: str = ""
    at: float = 0.0
    id: str = ""

    @classmethod
    def on(cls, lock: Lock, action: str, author: str, reason: str) -> Action:
        """Return an action on a lock or a done mark, without a result."""
        is_mark = lock.kind is Kind.DONE
        what = f"done mark {lock.owner}" if is_mark else f"{lock.kind.value} by {lock.holder()}"
        return cls(action, author, f"{what} (id {lock.id})", lock.key, reason)


class Result:
    """Result of the action that is being recorded: set `text`."""

    text = "interrupted"


def log_key(prefix: str) -> str:
    """Return the Redis key of the log. No lock has one like it: theirs have braces."""
    return f"{prefix}:log"


@contextmanager
def recorded(target: Target, nodes: NodeSet, action: Action) -> Iterator[Result]:
    """Record an action after the ``with`` block in which it is done, however that ends.

    Args:
        target: The nodes.
        nodes: Connections to them.
        action: The action; the block sets its result.
    """
    result = Result()
    try:
        yield result
    except Exception as error:
        result.text = f"failed: {error}"
        raise
    finally:
        _write(target, nodes, replace(
            action, result=result.text, at=time.time(), id=secrets.token_hex(8)
        ))  # fmt: skip


def _write(target: Target, nodes: NodeSet, action: Action) -> None:
    """Write an action to all nodes; one that refuses goes without."""
    texts = {
        name: value[:_LONGEST] if isinstance(value, str) else value
        for name, value in asdict(action).items()
    }
    key = log_key(target.key_prefix)
    commands = [
        ("LPUSH", key, json.dumps(texts)),
        ("LTRIM", key, 0, MOST - 1),
        ("PEXPIRE", key, round(KEPT_S * 1000)),
    ]
    said = [refusal_in(replies) for replies in nodes.ask(commands)]
    if said.count(None) < majority(len(nodes)):
        why = next(one for one in said if one is not None)
        logger.warning(
            "operator's action not recorded on a quorum key=%s action=%s error=%s",
            shown(action.key), action.action, shown(why),
        )  # fmt: skip


def read_log(
    target: Target, nodes: NodeSet, most: int = MOST
) -> tuple[list[Action], dict[str, str]]:
    """Return the actions that any node has, the latest last, and why nodes were left out.

    Args:
        target: The nodes.
        nodes: Connections to them.
        most: Most actions, the latest.
    """
    found, errors = {}, {}
    key, since = log_key(target.key_prefix), time.time() - KEPT_S
    commands = [("LRANGE", key, start, start + _PAGE - 1) for start in range(0, most, _PAGE)]
    for name, replies in zip(nodes.names, nodes.ask(commands), strict=True):
        if (why := refusal_in(replies)) is not None:
            errors[name] = why
            continue
        pages = cast("list[list[bytes]]", replies)
        for raw in itertools.chain.from_iterable(pages):
            if action := _action_in(raw, since):
                found[action.id] = action
    return sorted(found.values(), key=lambda one: (one.at, one.id))[-most:], errors


def _action_in(raw: bytes, since: float) -> Action | None:
    """Return the action in an element of the list; None: it is older, or anybody else's."""
    try:
        value: Any = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    at = value.get("at")
    if not isinstance(at, (int, float)) or not since < at < _END_OF_TIME:
        return None
    names = [one.name for one in fields(Action) if one.name != "at"]
    return Action(at=float(at), **{name: str(value.get(name) or "")[:_LONGEST] for name in names})
