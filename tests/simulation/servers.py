"""A simulated server: a node with a clock of its own, which is stopped, started and emptied."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

from celery_redlock.redlock.protocol.scripts import ALL, lock_keys
from celery_redlock.redlock.transport.connection import ErrorReply
from celery_redlock.testing.memory_servers import encoded
from tests.support.fakes.simulated_node import SimulatedNode

from .world import World

PREFIX = "redlock"
_NAMES = {script.sha: script.name.upper() for script in ALL}
_REPLICATION = b"# Replication\r\nrole:master\r\n"
_ALWAYS: dict[tuple[str, ...], bytes] = {
    ("SCRIPT", "LOAD", script.text): encoded(script.sha.encode()) for script in ALL
} | {("INFO", "replication"): encoded(_REPLICATION)}
"""Commands of each handshake, and the replies to them, which never change."""
Command = tuple[str, list[str], list[str] | None]


class Client(Protocol):
    """The server's end of a connection."""

    def is_connected(self) -> bool: ...

    def push(self, data: bytes) -> None: ...


class Several(list[list[object]]):
    """More than one reply to a command."""


class Server(SimulatedNode):
    """One node.

    Args:
        world: Time.
        name: Name in traces.
        rate: Seconds that its clock counts in a second.
        ahead: By how much its clock is ahead, seconds.

    Attributes:
        is_up: Whether it runs.
        generation: How often it was started.
        on_set: Called with key and owner when a lock key is set.
    """

    def __init__(self, world: World, name: str, rate: float, ahead: float) -> None:
        super().__init__(self._time)
        self.world = world
        self.name = name
        self.is_up = True
        self.generation = 0
        self.stepped = 0.0
        self.on_set: Callable[[str, str], None] | None = None
        self._rate = rate
        self._ahead = ahead
        self._started_at = -1e6
        self._backlog: list[tuple[Callable[[Any], None], Any]] | None = None
        self._subscribed: dict[str, dict[Client, None]] = {}
        self._client: Any = None

    def _time(self) -> float:
        # Redis expires keys by its wall clock.
        return (self.world.time - 1000.0) * self._rate + 1000.0 + self._ahead + self.stepped

    # ---- stopping and starting

    def stop(self) -> None:
        """Be killed: what is in its sockets is lost."""
        self.is_up = False
        self.generation += 1
        self._backlog = None
        self._subscribed.clear()

    def start(self, *, forgets: bool) -> None:
        """Be started again, with what is on disk."""
        self.is_up = True
        self.generation += 1
        self._started_at = self._time()
        if forgets:
            self.forget()

    def hang(self) -> None:
        """Do nothing; what arrives waits."""
        if self._backlog is None:
            self._backlog = []

    def go_on(self) -> None:
        """Do what has been waiting."""
        backlog, self._backlog = self._backlog or [], None
        for do, argument in backlog:
            do(argument)

    def step_back(self, seconds: float) -> None:
        """Undo a step of its clock."""
        self.stepped -= seconds

    def waits(self, do: Callable[[Any], None], argument: Any) -> bool:
        """Return whether it hangs; then what has arrived is done when it goes on."""
        if self._backlog is None:
            return False
        self._backlog.append((do, argument))
        return True

    # ---- commands

    def replies(self, payload: bytes, client: Client) -> bytes:
        """Carry out a client's commands; return the replies in the servers' wire format."""
        made = b""
        self._client = client
        for step in _steps_of(payload):
            if isinstance(step, bytes):
                made += step
                continue
            name, argv, keys = step
            try:
                if keys is not None:
                    made += encoded(self._scripts[name](keys, argv))
                else:
                    reply = getattr(self, f"_do_{name.lower()}")(*argv)
                    made += b"".join(map(encoded, reply if type(reply) is Several else [reply]))
            except ErrorReply as error:
                made += encoded(error)
        return made

    def lock_owner(self, key: str) -> str | None:
        """Return who has the lock `key` here."""
        return self._get(lock_keys(PREFIX, key)[0])

    def locked(self) -> list[str]:
        """Return the keys of locks that somebody has here."""
        return sorted(key for key in list(self._data) if key[-1] == "}" and self._get(key))

    def owners(self) -> list[str]:
        """Return who has locks here."""
        return [str(self._get(key)) for key in self.locked()]

    def _do_info(self, section: str) -> bytes:
        if section == "replication":
            return _REPLICATION
        uptime = max(0, int(self._time()) - int(self._started_at))
        run_id = f"{self.name}-{self.generation}"
        return f"# Server\r\nrun_id:{run_id}\r\nuptime_in_seconds:{uptime}\r\n".encode()

    # ---- wake-ups

    def _do_subscribe(self, *channels: str) -> Several:
        for channel in channels:
            self._subscribed.setdefault(channel, {})[self._client] = None
        return Several([b"subscribe", channel.encode(), 1] for channel in channels)

    def _do_unsubscribe(self, *channels: str) -> Several:
        left = channels or tuple(self._subscribed)
        for channel in left:
            self._subscribed.get(channel, {}).pop(self._client, None)
        return Several([b"unsubscribe", channel.encode(), 0] for channel in left)

    def _release(self, keys: list[str], argv: list[str]) -> int | list[object]:
        held, token = super()._release(keys, argv), argv[1]
        listening = self._subscribed.get(keys[0], {})
        for client in [client for client in listening if not client.is_connected()]:
            del listening[client]
        if not (held and int(token) and listening):
            return held
        text = f"{token} {len(listening)}".encode()
        for client in listening:
            client.push(encoded([b"message", keys[0].encode(), text]))
        return [b"released", len(listening)]

    def _set(self, key: str, value: str, ttl_ms: float) -> None:
        self._has_written = False
        super()._set(key, value, ttl_ms)
        if self.on_set and key[-1] == "}":
            self.on_set(key, value)


@lru_cache(maxsize=256)
def _steps_of(payload: bytes) -> list[Command | bytes]:
    """Return what to do for a payload: commands, or replies that are known."""
    steps: list[Command | bytes] = []
    for command in commands_in(payload):
        name, argv, _ = command
        known = _ALWAYS.get((name, *argv))
        if known and steps and isinstance(steps[-1], bytes):
            steps[-1] += known
        else:
            steps.append(known or command)
    return steps


def commands_in(payload: bytes) -> list[Command]:
    """Return name, arguments and, for a script, keys of each packed command."""
    found: list[Command] = []
    # No word has a line's end as servers write it.
    lines = payload.decode().split("\r\n")
    at = 0
    while lines[at]:
        end = at + 1 + 2 * int(lines[at][1:])
        words = lines[at + 2 : end : 2]
        at = end
        if words[0] == "EVALSHA":
            keys = int(words[2])
            found.append((words[1], words[3 + keys :], words[3 : 3 + keys]))
        else:
            found.append((words[0], words[1:], None))
    return found


def shown(payload: bytes) -> str:
    """Return the commands in a payload, as a trace has them."""
    names = []
    for name, argv, keys in commands_in(payload):
        script = _NAMES.get(name)
        names.append(f"{script} {short(argv[0])} {argv[1]}" if keys and script else name)
    return "; ".join(names[:3]) + ("; …" if names[3:] else "")


def short(owner: str) -> str:
    """Return the part of an owner by which a trace tells it from others."""
    return owner[:6]
