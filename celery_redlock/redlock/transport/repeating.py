"""Rounds that are repeated, on new connections, if theirs turn out to be dead.

Only for requests that may be made twice. A grant may not: it takes a new attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from celery_redlock.redlock.protocol.quorum import majority
from celery_redlock.redlock.protocol.replies import Failed

from .channel import Channel, Command
from .in_flight import Replies, Reply

_REPEATS = 3
"""A sidecar that is reloaded may close new connections, too."""


def ask_repeatably(
    channel: Channel,
    commands: Sequence[Command],
    parse: Callable[[list[object]], Reply],
    is_decided: Callable[[Replies[Reply]], bool],
    among: Callable[[], Sequence[int]],
    timeout: float | None = None,
    *,
    parse_again: Callable[[list[object]], Reply] | None = None,
    is_short: Callable[[Replies[Reply]], bool] | None = None,
) -> Replies[Reply]:
    """Ask as `Channel.ask` does; if failed nodes are missed, again on new connections.

    Args:
        channel: Channel to the nodes.
        commands: As in `Channel.ask`.
        parse: As in `Channel.ask`.
        is_decided: As in `Channel.ask`.
        among: Returns the nodes to ask.
        timeout: As in `Channel.ask`. Connections that were idle get a part of it at first.
        parse_again: Parses the replies to a repeated request; None: as `parse`.
        is_short: Returns whether the failed nodes are missed; None: if no quorum is left.

    Returns:
        The replies to the last request.
    """

    def is_missed() -> bool:
        failed = list(map(type, replies)).count(Failed)
        if is_short and failed:
            return is_short(replies)
        return failed > len(replies) - majority(len(replies))

    first = None if timeout is None else channel.first_timeout(timeout)
    replies = channel.ask(commands, parse, is_decided, among(), first)
    repeats = 0
    while repeats < _REPEATS and is_missed() and channel.renew():
        replies = channel.ask(commands, parse_again or parse, is_decided, among(), timeout)
        repeats += 1
    return replies


def replies_to(number: int, replies: Sequence[list[Any] | Failed | None]) -> Sequence[Any]:
    """Return the replies to one of the requests that were made together, by its number."""
    return [reply[number] if isinstance(reply, list) else reply for reply in replies]
