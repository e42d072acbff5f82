"""A simulated server: a node with a clock of its own, which is stopped, started and emptied."""

from __future__ import annotations

import math
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
FULL, REPLICA, LOADING, MISCONF = "full", "replica", "loading", "misconf"
CROWDED, HANGS_UP, LOCKED_OUT = "crowded", "hangs_up", "locked_out"
STATES = (FULL, REPLICA, LOADING, MISCONF, CROWDED, HANGS_UP, LOCKED_OUT)
"""For a while: stores no more; has a master; reads its disk; can't write there; has no room for one
more client; says so as a local one, to whom nothing can be written any more; lets no more clients
log in."""
REPLACED = "replaced"
"""A replica whose master's keys replace its own. Only a client that has seen it before knows."""
_REFUSALS = {
    REPLICA: "READONLY You can't write against a read only replica.",
    REPLACED: "READONLY You can't write against a read only replica.",
    LOADING: "LOADING Redis is loading the dataset in memory",
    MISCONF: "MISCONF Redis is configured to save RDB snapshots, but it's unable to persist",
    CROWDED: "ERR max number of clients reached",
    HANGS_UP: "ERR max number of clients reached",
    LOCKED_OUT: "WRONGPASS invalid username-password pair or user is disabled." * 300,
}
_WRITES = ("_set", "_del", "_pexpire")
_WHILE_LOADING = ("INFO", "SUBSCRIBE", "UNSUBSCRIBE")
_ALWAYS: dict[tuple[str, ...], bytes] = {
    ("SCRIPT", "LOAD", script.text): encoded(script.sha.encode()) for script in ALL
}
"""Commands of each handshake, and the replies to them, which never change."""
Command = tuple[str, list[str], list[str] | None]


class Client(Protocol):
    """The server's end of a connection.

    Attributes:
        is_stranger: Whether it has not logged in.
    """

    is_stranger: bool

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
        does_work: Whether it runs, and does not hang.
        generation: How often it was started.
        forgot_at: When it last lost its keys, seconds.
        state: One of `STATES`; "": it is in order.
        on_set: Called with key and owner when a lock key is set.
    """

    def __init__(self, world: World, name: str, rate: float, ahead: float) -> None:
        super().__init__(self._time)
        self.world = world
        self.name = name
        self.is_up = self.does_work = True
        self.generation = 0
        self.forgot_at = -math.inf
        self.state = ""
        self.stepped = 0.0
        self.on_set: Callable[[str, str], None] | None = None
        self._rate = rate
        self._ahead = ahead
        self._started_at = -1e6
        self._backlog: list[tuple[Callable[[Any], None], Any]] | None = None
        self._subscribed: dict[str, dict[Client, None]] = {}
        self._client: Any = None
        self._history = 0
        self._set_at: dict[str, float] = {}

    def _time(self) -> float:
        # Redis expires keys by its wall clock.
        return (self.world.time - 1000.0) * self._rate + 1000.0 + self._ahead + self.stepped

    # ---- stopping and starting

    def stop(self) -> None:
        """Be killed: what is in its sockets is lost."""
        self.is_up = self.does_work = False
        self.generation += 1
        self._backlog = None
        self._subscribed.clear()

    def start(self, *, forgets: bool) -> None:
        """Be started again, with what is on disk."""
        self.is_up, self.does_work = True, self._backlog is None
        self.generation += 1
        self._started_at = self._time()
        if forgets:
            self.forget()

    def forget(self) -> None:
        """Lose every key."""
        self.forgot_at = self.world.time
        super().forget()

    def hang(self) -> None:
        """Do nothing; what arrives waits."""
        if self._backlog is None:
            self._backlog, self.does_work = [], False

    def go_on(self) -> None:
        """Do what has been waiting."""
        backlog, self._backlog = self._backlog or [], None
        self.does_work = self.is_up
        for do, argument in backlog:
            do(argument)

    def step_back(self, seconds: float) -> None:
        """Undo a step of its clock."""
        self.stepped -= seconds

    def waits(self, do: Callable[[Any], None], argument: Any) -> bool:
        """Return whether it does nothing; what arrives while it hangs is done when it goes on."""
        if self._backlog is not None:
            self._backlog.append((do, argument))
        return not self.does_work

    # ---- commands

    def replies(self, payload: bytes, client: Client) -> tuple[bytes, bytes]:
        """Carry out a client's commands.

        Returns:
            The replies in the servers' wire format, and the rest of the payload: a command that is
            not whole yet.
        """
        made = b""
        self._client = client
        steps, rest = _steps_of(payload)
        if self.state:
            return self._replies_in_state(payload), rest
        for step in steps:
            if isinstance(step, bytes):
                made += step
            else:
                made += self._reply_to(*step)
        return made, rest

    def _reply_to(self, name: str, argv: list[str], keys: list[str] | None) -> bytes:
        self._has_written = False
        try:
            if keys is not None:
                return encoded(self._scripts[name](keys, argv))
            reply = getattr(self, f"_do_{name.lower()}")(*argv)
            return b"".join(map(encoded, reply if type(reply) is Several else [reply]))
        except ErrorReply as error:
            return encoded(error)

    # ---- states in which it refuses

    def enter(self, state: str) -> None:
        """Be in a state of `STATES`."""
        self.leave(self.state)
        self.state = state
        self.is_full = state == FULL
        self._history += state in (REPLICA, REPLACED)
        if state == REPLACED:
            self.forget()
        if state in (REPLICA, REPLACED, MISCONF):
            # Shadows the methods: a server in order pays nothing for this.
            for name in _WRITES:
                setattr(self, name, self._refuse)

    def leave(self, state: str) -> None:
        """Be in order again, unless it is in another state by now."""
        if state and state == self.state:
            self._history += state in (REPLICA, REPLACED)
            self.state, self.is_full = "", False
            for name in _WRITES:
                self.__dict__.pop(name, None)

    def greeting(self) -> bytes:
        """Return what it says to those who connect while it has no room for them."""
        return encoded(ErrorReply(_REFUSALS[CROWDED]))

    def _refuse(self, *_: object) -> None:
        raise ErrorReply(_REFUSALS[self.state])

    def _replies_in_state(self, payload: bytes) -> bytes:
        made = b""
        for name, argv, keys in commands_in(payload)[0]:
            if self.state == LOADING and name not in _WHILE_LOADING:
                made += encoded(ErrorReply(_REFUSALS[LOADING]))
            elif self.state == LOCKED_OUT and self._client.is_stranger:
                made += encoded(ErrorReply(_REFUSALS[LOCKED_OUT]))
            else:
                made += self._reply_to(name, argv, keys)
        return made

    def lock_owner(self, key: str) -> str | None:
        """Return who has the lock `key` here."""
        return self._get(lock_keys(PREFIX, key)[0])

    def held_since(self, key: str, owner: str, token: int) -> float:
        """Return since when `owner` has had the lock here without a gap; infinity: it hasn't.

        Nor has it if the floor is above its token: such a node never extends the lease. Its grant
        may have come late, when others that granted a lower token had decided.
        """
        floor = lock_keys(PREFIX, key)[1]
        return math.inf if int(self._get(floor) or 0) > token else self.set_at(key, owner)

    def set_at(self, key: str, owner: str) -> float:
        """Return when `owner` got the lock that it has here; infinity: it hasn't."""
        lock = lock_keys(PREFIX, key)[0]
        return self._set_at[lock] if self._get(lock) == owner else math.inf

    def locked(self) -> list[str]:
        """Return the keys of locks that somebody has here."""
        return sorted(key for key in list(self._data) if key[-1] == "}" and self._get(key))

    def owners(self) -> list[str]:
        """Return who has locks here."""
        return [str(self._get(key)) for key in self.locked()]

    def _do_auth(self, _: str) -> bytes:
        self._client.is_stranger = False
        return b"OK"

    def _do_info(self, section: str) -> bytes:
        if section == "replication":
            role = "slave" if self.state in (REPLICA, REPLACED) else "master"
            text = f"# Replication\r\nrole:{role}\r\nmaster_replid:{self.name}-{self._history}\r\n"
            return text.encode()
        uptime = max(0, int(self._time()) - int(self._started_at))
        run_id = f"{self.name}-{self.generation}"
        return f"# Server\r\nrun_id:{run_id}\r\nuptime_in_seconds:{uptime}\r\n".encode()

    # ---- wakeups

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
        super()._set(key, value, ttl_ms)
        if self.on_set and key[-1] == "}":
            self._set_at[key] = self.world.time
            self.on_set(key, value)


@lru_cache(maxsize=256)
def _steps_of(payload: bytes) -> tuple[list[Command | bytes], bytes]:
    """Return what to do for a payload, commands or replies that are known, and its rest."""
    steps: list[Command | bytes] = []
    commands, rest = commands_in(payload)
    for command in commands:
        name, argv, _ = command
        known = _ALWAYS.get((name, *argv))
        if known and steps and isinstance(steps[-1], bytes):
            steps[-1] += known
        else:
            steps.append(known or command)
    return steps, rest


def commands_in(payload: bytes) -> tuple[list[Command], bytes]:
    """Return name, arguments and, for a script, keys of each whole command, and the rest."""
    found: list[Command] = []
    # No word has a line's end as servers write it.
    lines = payload.decode().split("\r\n")
    at, whole = 0, len(lines) - 1
    while at < whole:
        end = at + 1 + 2 * int(lines[at][1:])
        if end > whole:
            break
        words = lines[at + 2 : end : 2]
        at = end
        if words[0] == "EVALSHA":
            keys = int(words[2])
            found.append((words[1], words[3 + keys :], words[3 : 3 + keys]))
        else:
            found.append((words[0], words[1:], None))
    return found, "\r\n".join(lines[at:]).encode()


def shown(payload: bytes) -> str:
    """Return the commands in a payload, as a trace has them."""
    names = []
    if payload[:1] != b"*":
        return "(the rest)"
    for name, argv, keys in commands_in(payload)[0]:
        script = _NAMES.get(name)
        names.append(f"{script} {short(argv[0])} {argv[1]}" if keys and script else name)
    return "; ".join(names[:3]) + ("; …" if names[3:] else "")


def short(owner: str) -> str:
    """Return the part of an owner by which a trace tells it from others."""
    return owner[:6]
