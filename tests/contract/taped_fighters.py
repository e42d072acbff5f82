"""Processes that fight for one lock, and put down what they send and tell, for a replay.

    python -m tests.contract.taped_fighters FOLDER SECONDS PROCESSES BUG URL...

Their scripts are the real ones, each of which also says what the node stored before and after it:
by an ECHO, that a wiretap hears. `seen_in` puts both together, by time: all of it is of one
machine's clock. BUG is one of `tests.simulation.bugs`, or of `NODE_BUGS`, or ''.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from celery_redlock.redlock.clock import SystemClock
from celery_redlock.redlock.lease import Lease
from celery_redlock.redlock.protocol.scripts import ALL, GRANT, RELEASE, Script
from celery_redlock.redlock.transport import connection, handshake
from celery_redlock.redlock.transport.connection import pack
from tests.model.replay import Message, Seen, Sent, Stored, Taken, Told
from tests.simulation.bugs import with_bug
from tests.support.judges.fight import Fighter, StandingWallClock
from tests.support.judges.wiretap import Command
from tests.support.processes.forks import keep_forked
from tests.support.root import ROOT
from tests.support.whole_lines import Journal, whole_lines

from .tape import message_of, taped

NODE_BUGS = {
    "grant_at_or_below_the_floor": (GRANT, "token <= floor", "false"),
    "release_leaves_the_floor": (RELEASE, "call('INCR', KEYS[2]) == token + 1", "true"),
}  # fmt: skip
"""Script, a rule of it, and what is there instead."""
CRASHES = 0.1
_REPORTING = """
local function carry_out()
{text}
end
local function stored()
  return (redis.call('GET', KEYS[1]) or '') .. ' ' .. (redis.call('GET', KEYS[2]) or '0')
end
local before = stored()
local reply = carry_out()
redis.call('ECHO', 'stored ' .. before .. ' ' .. stored())
return reply
"""
_WORDS = re.compile(r'"((?:[^"\\]|\\.)*)"')


def reporting(text: str) -> str:
    """Return a script that does the same, and says what the node stored before and after it."""
    return _REPORTING.format(text=text)


def digest(text: str) -> str:
    """Return by what a server knows a script."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


# ---- what was seen


def fight_taped(
    folder: Path, urls: Sequence[str], *, seconds: float, processes: int, bug: str = ""
) -> subprocess.Popen[bytes]:
    """Return the program of so many processes, begun; they end by themselves after `seconds`."""
    arguments = [str(folder), str(seconds), str(processes), bug, *urls]
    return subprocess.Popen([sys.executable, "-m", __name__, *arguments], cwd=ROOT)


def seen_in(folder: Path, heard: Iterable[Command], ports: Sequence[int], bug: str) -> list[Seen]:
    """Return what clients put down and what nodes said, in order.

    Args:
        folder: The clients'.
        heard: What a wiretap heard of the nodes.
        ports: Those of the nodes, in the order in which clients know them.
        bug: As for the clients.
    """
    # At the same time, a message is sent, then carried out, then its sender tells of it.
    found: list[tuple[float, int, Seen]] = []
    for file in folder.glob("*.tape"):
        for line in map(json.loads, whole_lines(file)):
            at, kind, (message, *rest) = line["at"], line["kind"], line["said"]
            if kind == "Sent":
                found.append((at, 0, Sent(Message(*message), frozenset(rest[0]))))
            else:
                found.append((at, 2, Told(message, *rest)))
    scripts = {digest(_text_with(bug, one)): one.sha for one in ALL}
    last: dict[int, tuple[float, Message | None]] = {}
    for command in heard:
        words = _WORDS.findall(command.text)
        node = ports.index(command.port)
        if words[0] == "EVALSHA":
            words[1] = scripts.get(words[1], words[1])
            last[node] = command.at, message_of(words)
        elif words[0] == "ECHO" and words[1].startswith("stored "):
            at, message = last[node]
            assert message
            _, *before_and_after = words[1].split(" ")
            holder, floor, holder_after, floor_after = before_and_after
            stored = Stored(holder, int(floor)), Stored(holder_after, int(floor_after))
            found.append((at, 1, Taken(message, node, *stored)))
    return [seen for *_, seen in sorted(found, key=lambda one: one[:2])]


def _text_with(bug: str, script: Script) -> str:
    text = script.text
    if bug in NODE_BUGS and NODE_BUGS[bug][0] is script:
        _, rule, instead = NODE_BUGS[bug]
        assert text.count(rule) == 1
        text = text.replace(rule, instead)
    return reporting(text)


# ---- the processes


class _Tape(list[Seen]):
    """A list that is a file of the process that adds to it."""

    def __init__(self, folder: Path) -> None:
        self._journal = cache(lambda pid: Journal(folder / f"{pid}.tape"))

    def append(self, seen: Seen) -> None:
        said = (tuple(seen[0]), sorted(seen[1])) if isinstance(seen, Sent) else tuple(seen)
        self._journal(os.getpid()).say(at=time.time(), kind=type(seen).__name__, said=said)

    def extend(self, seen: Iterable[Seen]) -> None:
        for one in seen:
            self.append(one)


class TapedFighter(Fighter):
    """One process. It keeps no key after a release, which the model does not have."""

    def release_lease(self, lease: Lease) -> None:
        self.redlock.release(lease)


def _report(bug: str) -> None:
    """Have the scripts of this process say what nodes store."""
    for script in ALL:
        text = _text_with(bug, script)
        object.__setattr__(script, "text", text)
        object.__setattr__(script, "sha", digest(text))
    loading = b"".join(pack(script.loading) for script in ALL)
    handshake._QUESTIONS = handshake._QUESTIONS.replace(connection.LOAD_SCRIPTS, loading)
    connection.LOAD_SCRIPTS = loading


def main(folder: Path, seconds: float, processes: int, bug: str, urls: list[str]) -> None:
    """Keep so many processes fighting for so long."""
    _report(bug)
    clock = StandingWallClock()
    end = SystemClock().now() + seconds

    def fight() -> None:
        TapedFighter(folder, urls, CRASHES, clock, None).fight_until(end)

    with with_bug(bug), taped(_Tape(folder)):
        keep_forked(fight, processes, end)


if __name__ == "__main__":
    logging.disable()  # of nodes that were stopped they have much to say
    main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5:])
