"""Observe one run of the simulation: messages, nodes, clients, and the resource that is written."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from typing import Any

import hiredis

from celery_redlock.redlock.lease import holder_of
from celery_redlock.redlock.protocol.scripts import ALL, lock_keys
from tests.simulation.servers import PREFIX, Server, commands_in
from tests.simulation.wire import Socket
from tests.simulation.world import World

KEY = "job"
_SCRIPTS = {script.sha: script.name.lower() for script in ALL}
_EVERY_S = 0.02


class RecordedWorld(World):
    """Time, with a tap on each segment that is sent through the simulated network.

    Attributes:
        events: What was observed, in order: kind, time in ms, and the rest by kind.
        servers: The nodes to look at.
        struck: Faults that struck, by kind.
        foil_key: Key on the nodes of a lock that is not ours; "": it is ours.
    """

    def __init__(self) -> None:
        super().__init__()
        self.events: list[list[Any]] = []
        self.servers: list[Server] = []
        self.struck: Counter[str] = Counter()
        self.foil_key = ""
        self._asked: dict[int, deque[str]] = defaultdict(deque)
        self._shown: dict[str, list[Any]] = {}
        self._sockets: list[Socket] = []
        self.after_switch = self.look

    def ms(self, time: float | None = None) -> float:
        """Return a time of the run in ms since its beginning; None: now."""
        return round(((self.time if time is None else time) - 1000.0) * 1000, 1)

    def record(self, kind: str, *rest: Any) -> None:
        """Record an event that happens now."""
        self.events.append([kind, self.ms(), *rest])

    def at(self, time: float, do: Callable[[Any], None], argument: Any = None) -> None:
        """Call `do` then; if it delivers a segment, record the message and whether it arrives."""
        socket = getattr(do, "__self__", None)
        if isinstance(socket, Socket) and isinstance(argument, bytes):
            do = self._tapped(socket, do, argument, time)
        super().at(time, do, argument)

    def message(self, sender: str, receiver: str, text: str, arrives_at: float) -> list[Any]:
        """Record a message that is sent now, and return its event."""
        event = ["message", self.ms(), self.ms(arrives_at), sender, receiver, text, True]
        self.events.append(event)
        return event

    def _tapped(
        self, socket: Socket, do: Callable[[Any], None], data: bytes, arrives_at: float
    ) -> Callable[[Any], None]:
        client, node = socket.process.name, socket.server.name
        is_request = getattr(do, "__name__", "") == "_arrive"
        if id(socket) not in self._asked:
            self._sockets.append(socket)  # an id is not used again while its socket is kept
        asked = self._asked[id(socket)]
        if is_request:
            names = [_verb(name, keys) for name, _, keys in commands_in(data)[0]]
            asked.extend(names)
            texts = [name for name in names if name in _SCRIPTS.values()]
            event = self.message(client, node, ", ".join(texts), arrives_at) if texts else None
        else:
            texts = list(filter(None, (_said(asked, reply) for reply in _replies(data))))
            event = self.message(node, client, ", ".join(texts), arrives_at) if texts else None

        def deliver(argument: Any) -> None:
            if event:
                event[6] = _gets_through(socket, is_request=is_request)
            do(argument)

        return deliver

    # ---- nodes

    def look(self) -> None:
        """Record each node that has changed."""
        for server in self.servers:
            lock, floor = (self.foil_key, "") if self.foil_key else lock_keys(PREFIX, KEY)
            owner = str(server._get(lock) or "") if server.is_up else ""
            shown = [
                server.is_up, _holder(owner),
                str(server._get(floor) or "") if server.is_up else "", round(server.stepped, 3),
            ]  # fmt: skip
            if self._shown.get(server.name) != shown:
                self._shown[server.name] = shown
                self.record("node", server.name, *shown)

    def look_until(self, time: float) -> None:
        """Look at the nodes at regular times, too: an expiry sends nothing."""
        steps = int((time - 1000.0) / _EVERY_S)
        for step in range(steps):
            super().at(1000.0 + step * _EVERY_S, lambda _: self.look())


def _verb(name: str, keys: list[str] | None) -> str:
    return _SCRIPTS.get(name, name) if keys is not None else name


def _replies(data: bytes) -> list[Any]:
    reader = hiredis.Reader(encoding="utf-8")
    reader.feed(data)
    found: list[Any] = []
    while (reply := reader.gets()) is not False:
        found.append(reply)
    return found


def _said(asked: deque[str], reply: Any) -> str:
    """Return a reply to one of the lock's requests in words; "": a reply to something else."""
    if isinstance(reply, list) and reply[:1] in (["message"], ["subscribe"], ["unsubscribe"]):
        return "wakeup" if reply[0] == "message" else ""
    verb = asked.popleft() if asked else ""
    if verb not in _SCRIPTS.values():
        return ""
    if isinstance(reply, Exception):
        return f"{verb}: error {reply}"
    if verb == "grant":
        return _granted(reply)
    code = reply[0] if isinstance(reply, list) else reply
    return f"{verb}: {'no' if code in (0, '0') else 'yes'}"


def _granted(reply: Any) -> str:
    if isinstance(reply, list) and reply[0] == 0 and reply[1]:
        return f"grant: held by {_holder(str(reply[1]))}"
    if isinstance(reply, list) and reply[0] != 1:
        return "grant: refused"
    token = reply[1] if isinstance(reply, list) else reply
    return f"grant: token {token}"


def _holder(owner: str) -> str:
    """Return the client that an owner names."""
    return holder_of(owner).partition("@")[0]


def _gets_through(socket: Socket, *, is_request: bool) -> bool:
    if is_request:
        server = socket.server
        return (
            server.is_up
            and not socket.is_gone
            and server.generation == socket.server_generation
        )  # fmt: skip
    return not (socket.is_closed or socket.is_reset or socket.is_lost)
