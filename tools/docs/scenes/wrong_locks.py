"""The ladder's locks, with nodes in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.integration.ladder.foils import Foil
from tests.simulation.link import Link
from tests.simulation.process import Process

from .recorder import RecordedWorld

_BETWEEN_S = 0.2
"""Time between the two commands of a lock that sends two."""


def simulated(foil: type[Foil], process: Process, ways: Sequence[Link]) -> Any:
    """Return a client of a lock, whose nodes are at the ends of these ways."""
    client: Any = foil.__new__(foil)
    client._clock = process
    client._nodes = [_Node(process, way) for way in ways]
    client._redis = client._nodes[0]
    client.seconds_between = _BETWEEN_S
    return client


class _Node:
    """One simulated node, with the commands that these locks send. It notes who set a key."""

    def __init__(self, process: Process, link: Link) -> None:
        self._process, self._link, self._server = process, link, link.server

    def set(self, key: str, value: str, *, nx: bool, px: int) -> bool:
        """Set the key if it is not set; `px`: ms."""
        assert nx
        return bool(self._ask("SET NX PX", lambda: self._set_if_free(key, value, px)))

    def setnx(self, key: str, value: str) -> bool:
        """Set the key, without an expiry, if it is not set."""
        return bool(self._ask("SETNX", lambda: self._set_if_free(key, value)))

    def pexpire(self, key: str, px: int) -> None:
        """Set the expiry of the key, ms."""
        self._ask("PEXPIRE", lambda: self._server._pexpire(key, px))

    def get(self, key: str) -> bytes | None:
        """Return the value of the key."""
        return _as_bytes(self._ask("GET", lambda: self._value(key)))

    def getset(self, key: str, value: str) -> bytes | None:
        """Set the key, without an expiry, and return its value before."""

        def do() -> str | None:
            before = self._value(key)
            self._set(key, value)
            return before

        return _as_bytes(self._ask("GETSET", do))

    def delete(self, key: str) -> None:
        """Delete the key."""
        self._ask("DEL", lambda: self._server._del(key))

    def eval(self, _script: str, _count: int, key: str, value: str) -> bool:
        """Delete the key if it has this value."""

        def do() -> bool:
            is_own = self._value(key) == value
            if is_own:
                self._server._del(key)
            return is_own

        return bool(self._ask("compare and DEL", do))

    def _value(self, key: str) -> str | None:
        stored = self._server._get(key)
        return str(stored).partition(":")[0] if stored is not None else None

    def _set(self, key: str, value: str, px: float = float("inf")) -> bool:
        self._server._set(key, f"{value}:{self._process.name}", px)
        return True

    def _set_if_free(self, key: str, value: str, px: float = float("inf")) -> bool:
        return self._value(key) is None and self._set(key, value, px)

    def _ask(self, text: str, do: Callable[[], object]) -> Any:
        """Send a command; return what the node replies, None if it is down."""
        process, world, link = self._process, self._process.world, self._link
        assert isinstance(world, RecordedWorld)
        arrives = link.after(0.0, link.out_until, world.time)
        sent = world.message(process.name, self._server.name, text, arrives)
        world.wait(arrives)
        if not self._server.is_up:
            sent[6] = False
            return None
        done = do()
        arrives = link.after(0.0, link.in_until, world.time)
        said = {True: "yes", False: "no", None: "nothing"}.get(done, str(done))  # type: ignore[call-overload]
        world.message(self._server.name, process.name, f"{text}: {said}", arrives)
        world.wait(arrives)
        return done


def _as_bytes(value: str | None) -> bytes | None:
    return value.encode() if value is not None else None
