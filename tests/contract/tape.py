"""What clients send and tell their callers, put down for `tests.model.replay`.

    with taped(seen):
        redlock = Redlock(urls)
        ...
    assert differences(5, seen) == []

What nodes do is put down elsewhere: by simulated nodes, or from what real ones report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from celery_redlock.redlock import parts
from celery_redlock.redlock.access import Access
from celery_redlock.redlock.acquisition import Acquisition
from celery_redlock.redlock.errors import RedlockError
from celery_redlock.redlock.extension import Extension
from celery_redlock.redlock.lease import Lease
from celery_redlock.redlock.protocol.replies import ExtendReply
from celery_redlock.redlock.protocol.scripts import (
    CONFIRM,
    EXTEND,
    GRANT,
    RELEASE,
    Argument,
    lock_keys,
)
from celery_redlock.redlock.transport.channel import Channel, Command
from celery_redlock.redlock.transport.in_flight import Replies, Reply
from tests.model import state
from tests.model.replay import Message, Seen, Sent, Told


def message_of(command: Sequence[Argument]) -> Message | None:
    """Return the message that a command is; None: none of the protocol."""
    words = [one.decode() if isinstance(one, bytes) else str(one) for one in command]
    if words[0] == "SET" and words[-1] == "NX":
        return Message(state.GRANT, words[1], words[2], gets_token=False)
    if words[0] != "EVALSHA":
        return None
    first = 3 + int(words[2])
    lock_key, argv = words[3], words[first:]
    if words[1] == GRANT.sha:
        superseded, highest_floor = argv[5:7] or ("", "0")
        return Message(
            state.GRANT, lock_key, argv[0], superseded=superseded, highest_floor=int(highest_floor)
        )
    if words[1] == RELEASE.sha:
        return Message(state.RELEASE, lock_key, argv[0], int(argv[1]), argv[5] if argv[5:] else "")
    kind = {CONFIRM.sha: state.CONFIRM, EXTEND.sha: state.EXTEND}[words[1]]
    return Message(kind, lock_key, argv[0], int(argv[1]))


@contextmanager
def taped(seen: list[Seen]) -> Iterator[None]:
    """Let the clients that are made meanwhile add to `seen`."""

    class TapedChannel(Channel):
        def ask(
            self,
            commands: Sequence[Command],
            parse: Callable[[list[object]], Reply],
            is_decided: Callable[[Replies[Reply]], bool],
            among: Sequence[int],
            timeout: float | None = None,
        ) -> Replies[Reply]:
            messages = map(message_of, commands)
            seen.extend(Sent(one, frozenset(among)) for one in messages if one)
            return super().ask(commands, parse, is_decided, among, timeout)

    class TapedExtension(Extension):
        def note_replies(
            self, lease: Lease, replies: Sequence[ExtendReply | None], started: float
        ) -> RedlockError | None:
            was_lost = lease.lost
            outcome = super().note_replies(lease, replies, started)
            if outcome is None:
                seen.append(_told("extended", self, lease))
            elif lease.backing.is_lost and not was_lost and lease.deadline > self._clock.now():
                seen.append(_told("lost", self, lease))
            return outcome

    class TapedAcquisition(Acquisition):
        def settle(self, lease: Lease) -> None:
            super().settle(lease)
            seen.append(_told("acquired", self, lease))

    with pytest.MonkeyPatch.context() as patch:
        for taped_class in (TapedChannel, TapedExtension, TapedAcquisition):
            patch.setattr(parts, taped_class.__name__.removeprefix("Taped"), taped_class)
        yield


def _told(what: str, operation: Access, lease: Lease) -> Told:
    key, _ = lock_keys(operation._prefix, lease.key)
    return Told(what, key, lease.owner, lease.token)
