"""Replay: what a real client and real nodes did with one key, taken step by step in the model.

    differences(3, seen)

Each thing that was seen has to be a step that the model allows, with the same owner, floor and
token after it. It may have come about in several ways: a CONFIRM to nodes 1 and 3 follows from the
grants of 1, 2 and 3, and from those of 0, 1, 2 and 3. A replay keeps every state that fits, and
finds a difference only when none is left.

What the model leaves out, because others promise less without it, is put back:

- a lease may be extended any number of times, and a release be sent again;
- a reply may come too late: then an attempt that has completed is given up after all;
- a release without a token, of an attempt that did not fail, is what an expiry is;
- a thread may stand still between deciding to extend and sending it: as if it were sent before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
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
    new_round,
    put,
    with_client,
    with_node,
)
from .variants import Attempt, Rules, Scope

_MOST_STATES = 5_000
"""Far more than fit a real fight: attempts that wait for confirmations at one time are few."""


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
                replay.take(number, one)
            except Different as difference:
                found.append(f"{key!r}, step {number}: {difference}; seen: {one}")
                break
    return found


class _Replay(LockProtocol):
    """One key's states in the model: each that everything seen so far may have led to."""

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
        self._states = {self.initial()}
        self._rests_after = self._last_words(seen)
        self._in_flight: Counter[tuple[int, int, int]] = Counter()
        self._granted = NO_TOKEN
        self._acquired: set[int] = set()
        self._lost: set[int] = set()

    def _last_words(self, seen: Sequence[Seen]) -> dict[int, list[int]]:
        """Return, for each step, the attempts whose phase decides about no later one."""
        last: dict[int, int] = {}
        for number, one in enumerate(seen):
            if not isinstance(one, Taken):
                attempt = self._index[one.owner if isinstance(one, Told) else one.message.owner]
                last[attempt] = number
                superseded = self.scope.attempts[attempt].supersedes
                if superseded is not None:
                    last[superseded] = max(last.get(superseded, 0), number)
        rests_after: dict[int, list[int]] = {}
        for attempt, number in last.items():
            rests_after.setdefault(number, []).append(attempt)
        return rests_after

    def take(self, number: int, seen: Seen) -> None:
        """Go on to all states that this may lead to; `number` is its place in all that was seen.

        Raises:
            Different: The model has none.
        """
        match seen:
            case Sent(message, nodes):
                attempt = self._attempt(message.owner)
                self._go_on(partial(self._send, message, nodes, attempt))
                for node in nodes:
                    self._in_flight[attempt, node, message.kind] += 1
            case Taken(message, node, _, after):
                attempt = self._attempt(message.owner)
                _that(self._in_flight[attempt, node, message.kind] > 0, "nobody has sent it")
                self._in_flight[attempt, node, message.kind] -= 1
                self._granted = self._rank[after.floor]
                self._go_on(partial(self._carry_out, seen, attempt))
            case Told(what, _, owner, token):
                attempt = self._attempt(owner)
                self._go_on(partial(self._tell, what, attempt, self._rank[token]))
                if what in ("acquired", "lost"):
                    (self._acquired if what == "acquired" else self._lost).add(attempt)
        at_rest = self._rests_after.get(number, ())
        self._states = {_without_history(state, at_rest) for state in self._states}

    def _go_on(self, step: Callable[[State], Iterable[State]]) -> None:
        """Take a step in each state in which it is possible."""
        found: set[State] = set()
        differences = []
        for state in self._states:
            try:
                found.update(step(state))
            except Different as difference:
                differences.append(difference)
        if not found:
            raise differences[0]
        if len(found) > _MOST_STATES:
            raise RuntimeError(f"more than {_MOST_STATES} states fit what was seen")
        self._states = found

    # ---- what clients do

    def _send(
        self, message: Message, nodes: frozenset[int], attempt: int, state: State
    ) -> list[State]:
        client = state.clients[attempt]
        match message.kind:
            case kind if kind == GRANT:
                _that(client.phase is Phase.IDLE, "an owner is used again")
                return _after(self._start(state, attempt))
            case kind if kind == CONFIRM:
                token = self._rank[message.token]
                return _after(
                    (step, after)
                    for step, after in self._decide(state, attempt, client)
                    if after.clients[attempt].token == token
                    and nodes == _asked_to_confirm(after, attempt)
                )
            case kind if kind == EXTEND:
                _that(attempt not in self._lost, "a lost lease is extended")
                _that(self._rank[message.token] == client.token, "that is not its token")
                if client.phase is Phase.RELEASING:
                    return [state]
                return _after(self._hold(state, attempt, client), "sends an extension")
            case _:
                return self._send_release(message, attempt, state)

    def _send_release(self, message: Message, attempt: int, state: State) -> list[State]:
        client = state.clients[attempt]
        gets_token = self.scope.attempts[attempt].gets_token
        if message.token or (not gets_token and client.phase is Phase.HELD):
            _that(self._rank[message.token] == client.token, "that is not its token")
            if client.phase is not Phase.RELEASING:
                return _after(self._hold(state, attempt, client), "sends its release")
        elif client.phase in (Phase.GRANTING, Phase.CONFIRMING):
            return _after(self._give_up(state, attempt, client))
        elif gets_token and client.phase is not Phase.FAILED:
            # Or the replies by which it has completed came too late.
            _that(attempt not in self._acquired, "a lease is released as if it had no token")
        return [state]

    def _tell(self, what: str, attempt: int, token: int, state: State) -> list[State]:
        client = state.clients[attempt]
        if what == "acquired":
            decided = [state]
            if client.phase is Phase.GRANTING:
                decided = [after for _, after in self._decide(state, attempt, client)]
            held = [one for one in decided if one.clients[attempt].phase is Phase.HELD]
            _that(bool(held), "no majority has confirmed it")
            rightly = [one for one in held if one.clients[attempt].token == token]
            _that(bool(rightly), "that is not its token")
            return rightly
        if what == "extended":
            _that(client.phase is Phase.EXTENDED, "no majority has extended it")
        else:
            _that(client.phase is Phase.LOST, "no majority of floors is above its token")
        return [state]

    def _hold(self, state: State, attempt: int, client: Client) -> Iterator[Move]:
        """As in the model, but any number of extensions; one that is lost may be released, too."""
        phase = client.phase
        if Phase.HELD <= phase <= Phase.LOST:
            held = with_client(state, attempt, client._replace(phase=Phase.HELD))
            yield from super()._hold(held, attempt, held.clients[attempt])

    # ---- what nodes do

    def _carry_out(self, taken: Taken, attempt: int, state: State) -> list[State]:
        message, number = taken.message, taken.node
        state = self._let_expire(state, number, self._stored(taken.before))
        wanted = self._stored(taken.after)
        node = state.nodes[number]
        if message.kind == RELEASE:
            answer = self._released(state, node, attempt, message)
            _that(answer[1:3] == wanted, f"the model has {answer[1:3]}, not {wanted}")
            return [with_node(state, number, node._replace(owner=wanted[0], floor=wanted[1]))]
        wire = put(node.wire, attempt, node.wire[attempt] | message.kind)
        before = with_node(state, number, node._replace(wire=wire))
        return _after(
            (step, after)
            for step, after in self._arrive(before, number, attempt, message.kind)
            if after.nodes[number][:2] == wanted
        )

    def _let_expire(self, state: State, number: int, stored: tuple[int, int]) -> State:
        """Return the state after what is no longer on a node has expired, or is forgotten."""
        owner, floor = stored
        node = state.nodes[number]
        if floor == 0 < node.floor:
            [state] = _after(self._mishaps(state, number, node), "forgets everything")
        elif owner == FREE != node.owner:
            [state] = _after(self._mishaps(state, number, node), "lets the lock expire")
        node = state.nodes[number]
        _that(node[:2] == stored, f"the node has {stored}, in the model {node[:2]}")
        return state

    def _released(self, state: State, node: Node, attempt: int, message: Message) -> scripts.Answer:
        client = state.clients[attempt]
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

    def _attempt(self, owner: str) -> int:
        _that(owner in self._index, "its attempt has not begun")
        return self._index[owner]

    def _stored(self, stored: Stored) -> tuple[int, int]:
        return self._attempt(stored.holder), self._rank[stored.floor]


def _after(moves: Iterable[Move], verb: str | None = None) -> list[State]:
    """Return the states after these steps, or after those with this verb; there must be one."""
    found = [after for (done, _, _), after in moves if verb is None or done == verb]
    _that(bool(found), "the model has no such step")
    return found


def _without_history(state: State, at_rest: Iterable[int]) -> State:
    """Return the state without what decides about no later step, so that states are few.

    That is what promises are about, and, of the attempts `at_rest`, their phase and the replies to
    them: neither they nor those that supersede them say anything more. What nodes do with their
    messages depends on their token, and on whether they were released as a lease.
    """
    clients = [client._replace(bar=0, proposal=0) for client in state.clients]
    state = state._replace(clients=tuple(clients))
    for attempt in at_rest:
        client = clients[attempt]
        phase = Phase.RELEASING if client.phase is Phase.RELEASING else Phase.FAILED
        state = new_round(state, attempt, client._replace(phase=phase))
    return state


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
