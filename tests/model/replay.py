"""Replay: what a real client and real nodes did with one key, taken step by step in the model.

    differences(3, seen)

Each thing that was seen has to be a step that the model allows, with the same owner, floor and
token after it. What the model leaves out, because others promise less without it, is put back:

- a lease may be extended any number of times, and a release be sent again;
- a reply may come too late: then an attempt that has completed is given up after all;
- a release without a token, of an attempt that did not fail, is what an expiry is;
- a thread may stand still between deciding to extend and sending it: as if it were sent before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from . import scripts
from .protocol import LockProtocol, Move
from .state import (
    CONFIRM,
    EXTEND,
    FREE,
    GRANT,
    NO_TOKEN,
    RELEASE,
    Client,
    Node,
    Phase,
    State,
    put,
    with_client,
    with_node,
)
from .variants import Attempt, Rules, Scope

_NAMES = {GRANT: "grant", CONFIRM: "confirmation", EXTEND: "extension", RELEASE: "release"}


class Message(NamedTuple):
    """A request. `kind` is one of `state.MESSAGES`; a `token` of 0 is none."""

    kind: int
    key: str
    owner: str
    token: int = 0
    superseded: str = ""
    highest_floor: int = 0
    gets_token: bool = True


class Stored(NamedTuple):
    """What a node stores for a key: the holder ('': nobody), and the floor (0: none)."""

    holder: str
    floor: int


class Sent(NamedTuple):
    """A client has sent a message to some nodes."""

    message: Message
    nodes: frozenset[int]


class Taken(NamedTuple):
    """A node has carried out a message."""

    message: Message
    node: int
    before: Stored
    after: Stored


class Told(NamedTuple):
    """A client has told its caller that a lease was "acquired", was "extended", or is "lost"."""

    what: str
    key: str
    owner: str
    token: int


Seen = Sent | Taken | Told


class Different(Exception):
    """The model does not allow what was seen."""


def differences(nodes: int, seen: Sequence[Seen]) -> list[str]:
    """Return, for each key, the first thing that was seen and that the model does not allow."""
    by_key: dict[str, list[Seen]] = {}
    for one in seen:
        by_key.setdefault(one.key if isinstance(one, Told) else one.message.key, []).append(one)
    found = []
    for key, of_key in by_key.items():
        replay = _Replay(nodes, of_key)
        for number, one in enumerate(of_key):
            try:
                replay.take(one)
            except Different as difference:
                found.append(f"{key!r}, step {number}: {difference}; seen: {one}")
                break
    return found


class _Replay(LockProtocol):
    """One key's state in the model, after what was seen so far."""

    def __init__(self, nodes: int, seen: Sequence[Seen]) -> None:
        # A client that was struck before its first grant still releases it.
        first = {one.message.owner: one.message for one in reversed(seen) if isinstance(one, Sent)}
        owners = list(reversed(first))
        self._index = {"": FREE} | {owner: number for number, owner in enumerate(owners)}
        self._rank = _ranks(seen)
        attempts = tuple(
            Attempt(
                owner[:6],
                supersedes=self._index.get(first[owner].superseded or "-"),
                is_handed_over=first[owner].highest_floor > 0,
                extends=True,
                gets_token=first[owner].gets_token,
            )
            for owner in owners
        )
        scope = Scope(attempts, nodes, releases=True, forgetting=len(seen))
        super().__init__(Rules(), scope, ())
        self._state = self.initial()
        self._in_flight: Counter[tuple[int, int, int]] = Counter()
        self._granted = NO_TOKEN
        self._acquired: set[int] = set()
        self._lost: set[int] = set()

    def take(self, seen: Seen) -> None:
        """Go on to the state after this.

        Raises:
            Different: The model does not.
        """
        match seen:
            case Sent(message, nodes):
                self._send(message, nodes)
            case Taken():
                self._carry_out(seen)
            case Told(what, _, owner, token):
                self._tell(what, self._attempt(owner), self._rank[token])

    # ---- what clients do

    def _send(self, message: Message, nodes: frozenset[int]) -> None:
        attempt = self._attempt(message.owner)
        client = self._state.clients[attempt]
        match message.kind:
            case kind if kind == GRANT:
                _that(client.phase is Phase.IDLE, "an owner is used again")
                self._go(self._start(self._state, attempt))
            case kind if kind == CONFIRM:
                token = self._rank[message.token]
                self._go(
                    (step, after)
                    for step, after in self._decide(self._state, attempt, client)
                    if after.clients[attempt].token == token
                    and nodes == _asked_to_confirm(after, attempt)
                )
            case kind if kind == EXTEND:
                _that(attempt not in self._lost, "a lost lease is extended")
                _that(self._rank[message.token] == client.token, "that is not its token")
                if client.phase is not Phase.RELEASING:
                    self._go(self._hold(self._state, attempt, client), "sends an extension")
            case _:
                self._send_release(message, attempt, client)
        for number in nodes:
            self._in_flight[attempt, number, message.kind] += 1

    def _send_release(self, message: Message, attempt: int, client: Client) -> None:
        gets_token = self.scope.attempts[attempt].gets_token
        if message.token or (not gets_token and client.phase is Phase.HELD):
            _that(self._rank[message.token] == client.token, "that is not its token")
            if client.phase is not Phase.RELEASING:
                self._go(self._hold(self._state, attempt, client), "sends its release")
        elif client.phase in (Phase.GRANTING, Phase.CONFIRMING):
            self._go(self._give_up(self._state, attempt, client))
        elif gets_token and client.phase is not Phase.FAILED:
            # Or the replies by which it has completed came too late.
            _that(attempt not in self._acquired, "a lease is released as if it had no token")

    def _tell(self, what: str, attempt: int, token: int) -> None:
        client = self._state.clients[attempt]
        if what == "acquired":
            if client.phase is Phase.GRANTING:
                self._go(
                    (step, after)
                    for step, after in self._decide(self._state, attempt, client)
                    if after.clients[attempt].phase is Phase.HELD
                )
            _that(self._state.clients[attempt].phase is Phase.HELD, "no majority has confirmed it")
            _that(self._state.clients[attempt].token == token, "that is not its token")
            self._acquired.add(attempt)
        elif what == "extended":
            _that(client.phase is Phase.EXTENDED, "no majority has extended it")
        else:
            _that(client.phase is Phase.LOST, "no majority of floors is above its token")
            self._lost.add(attempt)

    def _hold(self, state: State, attempt: int, client: Client) -> Iterator[Move]:
        """As in the model, but any number of extensions; one that is lost may be released, too."""
        phase = client.phase
        if Phase.HELD <= phase <= Phase.LOST:
            held = with_client(state, attempt, client._replace(phase=Phase.HELD))
            yield from super()._hold(held, attempt, held.clients[attempt])

    # ---- what nodes do

    def _carry_out(self, taken: Taken) -> None:
        message, number = taken.message, taken.node
        attempt = self._attempt(message.owner)
        _that(self._in_flight[attempt, number, message.kind] > 0, "nobody has sent it")
        self._in_flight[attempt, number, message.kind] -= 1
        self._let_expire(number, self._stored(taken.before))
        wanted = self._stored(taken.after)
        node = self._state.nodes[number]
        if message.kind == RELEASE:
            answer = self._released(node, attempt, message)
            self._state = with_node(
                self._state, number, node._replace(owner=answer[1], floor=answer[2])
            )
            _that(answer[1:3] == wanted, f"the model has {answer[1:3]}, not {wanted}")
            return
        wire = put(node.wire, attempt, node.wire[attempt] | message.kind)
        before = with_node(self._state, number, node._replace(wire=wire))
        self._granted = wanted[1]
        moves = list(self._arrive(before, number, attempt, message.kind))
        nodes = [after.nodes[number] for _, after in moves]
        self._go(
            (step, after)
            for (step, after), node in zip(moves, nodes, strict=True)
            if (node.owner, node.floor) == wanted
        )

    def _let_expire(self, number: int, stored: tuple[int, int]) -> None:
        """Let what is no longer on a node expire, or be forgotten."""
        owner, floor = stored
        node = self._state.nodes[number]
        if floor == 0 < node.floor:
            self._go(self._mishaps(self._state, number, node), "forgets everything")
        elif owner == FREE != node.owner:
            self._go(self._mishaps(self._state, number, node), "lets the lock expire")
        node = self._state.nodes[number]
        _that((node.owner, node.floor) == stored, f"the node has {stored}, in the model {node[:2]}")

    def _released(self, node: Node, attempt: int, message: Message) -> scripts.Answer:
        client = self._state.clients[attempt]
        is_lease = message.token > 0 or (client.phase is Phase.RELEASING and not client.token)
        client = client._replace(phase=Phase.RELEASING if is_lease else Phase.FAILED)
        superseded = self._index.get(message.superseded or "-")
        return scripts.release(node, attempt, superseded, client, self.rules)

    def _answers(
        self, state: State, node: Node, attempt: int, message: int
    ) -> Iterable[scripts.Answer]:
        """As in the model, but of all tokens only the one that was granted."""
        mine = self.scope.attempts[attempt]
        if message != GRANT or not mine.gets_token:
            return super()._answers(state, node, attempt, message)
        highest_floor = self._highest_floor(state, attempt)
        tokens = [self._granted] if self._granted > node.floor else []
        return scripts.grant(node, attempt, mine.supersedes, highest_floor, self.rules, tokens)

    # ---- steps

    def _go(self, moves: Iterable[Move], verb: str | None = None) -> None:
        """Take the first of these steps, of those with this verb if there is one."""
        for (done, _, _), after in moves:
            if verb is None or done == verb:
                self._state = after
                return
        raise Different("the model has no such step")

    def _attempt(self, owner: str) -> int:
        _that(owner in self._index, "its attempt has not begun")
        return self._index[owner]

    def _stored(self, stored: Stored) -> tuple[int, int]:
        return self._attempt(stored.holder), self._rank[stored.floor]


def _that(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise Different(otherwise)


def _asked_to_confirm(state: State, attempt: int) -> frozenset[int]:
    return frozenset(
        number for number, node in enumerate(state.nodes) if node.wire[attempt] & CONFIRM
    )


def _ranks(seen: Iterable[Seen]) -> dict[int, int]:
    """Return small numbers for tokens and floors: their order stays, and what is next to what."""
    real: set[int] = set()
    for one in seen:
        match one:
            case Sent(message):
                real.add(message.token)
            case Taken(message, _, before, after):
                real |= {message.token, before.floor, after.floor}
            case Told():
                real.add(one.token)
    real |= {number + 1 for number in real if number}
    return {number: rank for rank, number in enumerate(sorted(real | {0}))}
