"""A register that refuses whoever was overtaken: what it should do, a real one, and its history.

register = Register(redis.Redis(...), Book(folder))
register.claim("stock", lease.token)
value = register.read("stock")
register.write("stock", lease.token, value + 1)

judgement = judge(history_in(folder), FencedRegister())
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Hashable
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final

from celery_redlock.redlock.clock import SystemClock
from tests.support.judges.linearizability import Operation
from tests.support.whole_lines import Journal, whole_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

ACCEPTED: Final = "accepted"
REFUSED: Final = "refused"

State = tuple[int, Hashable]
"""The highest token seen, and the value."""


class FencedRegister:
    """The specification: an operation with a token lower than the highest seen is refused."""

    def initial(self) -> State:
        """Return the state of a register that nobody has written to."""
        return 0, None

    def apply(
        self, state: State, name: str, arguments: tuple[Hashable, ...]
    ) -> tuple[Hashable, State]:
        """Return the result of an operation, and the state after it.

        ``write(token, value)`` and ``claim(token)`` are accepted or refused; ``read()`` is the
        value.
        """
        fence, value = state
        if name == "read":
            return value, state
        token = arguments[0]
        assert isinstance(token, int)
        if token < fence:
            return REFUSED, state
        if name == "claim":
            return ACCEPTED, (token, value)
        assert name == "write", name
        return ACCEPTED, (token, arguments[1])


# ---- a real one

_SCRIPT = """
local fence = tonumber(redis.call('HGET', KEYS[1], 'fence') or '0')
if ARGV[1] == 'fenced' and tonumber(ARGV[2]) < fence then
  return 'refused'
end
redis.call('HSET', KEYS[1], 'fence', ARGV[2])
if ARGV[3] then
  redis.call('HSET', KEYS[1], 'value', ARGV[3])
end
return 'accepted'
"""


class Register:
    """Registers on a Redis server, by name; each call is taken down in a book.

    Args:
        client: Of a server that is none of the lock's nodes.
        book: Where calls are taken down.
        is_fenced: False: it takes whatever comes, for a test that has to fail.
    """

    def __init__(self, client: redis.Redis, book: Book, *, is_fenced: bool = True) -> None:
        self._client = client
        self._book = book
        self._rule = "fenced" if is_fenced else "forgetful"

    def claim(self, key: str, token: int) -> bool:
        """Shut out all that have a lower token; return whether this one is not shut out itself."""
        return self._run(key, "claim", token) == ACCEPTED

    def write(self, key: str, token: int, value: str) -> bool:
        """Set the value, unless a higher token was seen; return whether it was set."""
        return self._run(key, "write", token, value) == ACCEPTED

    def read(self, key: str) -> str | None:
        """Return the value."""
        with self._book.call(key, "read") as replied:
            value = self._client.hget(f"register:{key}", "value")
            assert value is None or isinstance(value, bytes)
            replied.append(None if value is None else value.decode())
        return replied[0]

    def add_one(self, key: str, token: int) -> bool:
        """Claim, then read, then write one more, as docs/how-to/protect-a-resource.md says."""
        if not self.claim(key, token):
            return False
        return self.write(key, token, str(int(self.read(key) or 0) + 1))

    def _run(self, key: str, name: str, *arguments: int | str) -> str:
        with self._book.call(key, name, *arguments) as replied:
            reply = self._client.eval(_SCRIPT, 1, f"register:{key}", self._rule, *arguments)
            assert isinstance(reply, bytes)
            replied.append(reply.decode())
        assert replied[0] is not None
        return replied[0]


def count_up(client: redis.Redis, folder: Path, key: str, token: int) -> bool:
    """Count one register up, once, from any thread or greenlet; return whether it was counted.

    Args:
        client: As for `Register`.
        folder: Where the calls are taken down, in a book of their own.
        key: Which register.
        token: Of the lease.
    """
    book = Book(folder)
    try:
        return Register(client, book).add_one(key, token)
    finally:
        book.close()


# ---- its history


class Book:
    """Where one process takes down its calls, before and after each: it may be killed in between.

    Args:
        folder: That of all processes' books.
    """

    def __init__(self, folder: Path) -> None:
        self._now = SystemClock().now
        self._calls = 0
        self._journal = Journal(folder / f"{os.getpid()}-{time.time_ns()}.history")

    @contextmanager
    def call(self, key: str, name: str, *arguments: int | str) -> Iterator[list[str | None]]:
        """Take down a call; its block appends the result, or raises if it is not known."""
        self._calls += 1
        number = self._calls
        self._journal.say(
            call=number, process=os.getpid(), key=key, name=name, arguments=arguments,
            at=self._now(),
        )  # fmt: skip
        replied: list[str | None] = []
        yield replied
        self._journal.say(returned=number, result=replied[0], at=self._now())

    def close(self) -> None:
        """Close its file."""
        self._journal.close()


def history_in(folder: Path) -> list[Operation]:
    """Return the calls of all processes' books, with those that never returned."""
    history = []
    for file in sorted(folder.glob("*.history")):
        said = [json.loads(line) for line in whole_lines(file)]
        returned = {each["returned"]: each for each in said if "returned" in each}
        for call in (each for each in said if "call" in each):
            reply = returned.get(call["call"], {"result": None, "at": inf})
            operation = Operation(
                call["process"], call["key"], call["name"], tuple(call["arguments"]),
                reply["result"], call["at"], reply["at"],
            )  # fmt: skip
            history.append(operation)
    return history


def refused_in(history: list[Operation]) -> int:
    """Return how many writes and claims came too late."""
    return sum(operation.result == REFUSED for operation in history)


def updates_lost(history: list[Operation]) -> dict[str, int]:
    """Return how many updates each register has lost, if all who wrote to it counted it up.

    A history can be right and lose updates: if two holders have one token, no register can tell
    them apart.
    """
    written: dict[str, list[int]] = defaultdict(list)
    for operation in history:
        if operation.name == "write" and operation.result == ACCEPTED:
            written[operation.key].append(int(str(operation.arguments[1])))
    # A write that never returned may have counted, too: then the largest is larger.
    lost = {key: len(values) - max(values) for key, values in written.items()}
    return {key: count for key, count in lost.items() if count > 0}
