"""A lease, a rival's attempt from before a node's restart, and extensions that heal that node.

Unlike in `protocol`, time passes: a lock expires after its ttl and not before, so that two holders
are told from one whose lease is over. Messages of an attempt or a round arrive at any time, or
never; a reply is read when it is given. The rival proposes a higher token than the lease's.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from celery_redlock.redlock.protocol.quorum import Verdict, extend_verdict, majority
from celery_redlock.redlock.protocol.replies import Extended, Healed

from .explorer import Step

TTL: Final = 2
"""Ticks that a lock lasts."""
GUARD: Final = 2
"""Ticks without a vote after a restart."""
NODES: Final = 3
QUORUM: Final = majority(NODES)
NOBODY, LEASE, RIVAL = 0, 1, 2
"""Owners. Each one's token is its number."""
NEVER: Final = -9


class Node(NamedTuple):
    """One node, and what is on its way to it.

    Attributes:
        owner: Owner of the lock key.
        ends: Tick at which the lock key expires.
        floor: Highest token granted.
        opens: Tick from which it votes.
        grant: Whether the rival's grant is on its way.
        extension: Whether an extension is; 2: it counts, 1: it heals only.
    """

    owner: int = NOBODY
    ends: int = 0
    floor: int = 0
    opens: int = NEVER
    grant: bool = False
    extension: int = 0


class State(NamedTuple):
    """Everything at one instant.

    Attributes:
        now: Tick.
        forgetting: Restarts that may still happen.
        rounds: Extensions that may still be sent.
        deadline: Tick at which the lease is over.
        sent_at: Tick at which the latest extension was sent.
        extended: Nodes that have extended in it, as votes.
        rival_at: Tick at which the rival's attempt began.
        granted: Nodes that have granted it the lock.
        nodes: The nodes.
    """

    now: int
    forgetting: int
    rounds: int
    deadline: int
    sent_at: int
    extended: int
    rival_at: int
    granted: int
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Extensions:
    """A model for `explorer.explore`. The lease is held by a quorum at the start.

    Attributes:
        guarded_count: Whether a healed node counts for an extension inside its guard.
        end: The last tick.
    """

    guarded_count: bool
    end: int = 3

    def initial(self) -> State:
        """Return the state in which the lease has just been acquired, without the third node."""
        held = Node(LEASE, TTL, floor=LEASE)
        return State(0, 1, 2, TTL, NEVER, 0, NEVER, 0, (held, held, Node()))

    def canonical(self, state: State) -> State:
        """Return the state with its nodes in order."""
        return state._replace(nodes=tuple(sorted(state.nodes)))

    def broken_promise(self, state: State) -> str | None:
        """Return "two holders" if the lease and the rival's are valid at once."""
        is_rivals = state.granted >= QUORUM and state.now < state.rival_at + TTL
        return "two holders" if is_rivals and state.now < state.deadline else None

    def landmark(self, state: State) -> Hashable:
        """Return whether the lease was extended, and whether the rival has completed."""
        return state.deadline > TTL, state.granted >= QUORUM

    def describe(self, step: Step, after: State) -> str:
        """Return the step and where it leads."""
        return f"{step[0]} {step[2]}: {after}"

    def successors(self, state: State) -> Iterator[tuple[Step, State]]:
        """Yield everything that can happen next."""
        now = state.now
        if now < self.end:
            yield ("time passes", -1, -1), state._replace(now=now + 1)
        if state.rival_at == NEVER:
            asked = tuple(node._replace(grant=node.opens <= now) for node in state.nodes)
            yield ("the rival asks", RIVAL, -1), state._replace(rival_at=now, nodes=asked)
        if state.rounds and now < state.deadline:
            asked = tuple(
                node._replace(extension=1 + (self.guarded_count or node.opens <= now))
                for node in state.nodes
            )
            yield (
                ("an extension is sent", LEASE, -1),
                state._replace(sent_at=now, extended=0, rounds=state.rounds - 1, nodes=asked),
            )
        for number, node in enumerate(state.nodes):
            if node.grant:
                yield ("grants the rival", RIVAL, number), self._granted(state, number, node)
            if node.extension:
                yield ("extends", LEASE, number), self._extended(state, number, node)
            if state.forgetting:
                # A restart breaks the connections: what was on its way never arrives.
                empty = Node(opens=now + GUARD)
                fewer = state._replace(forgetting=state.forgetting - 1)
                yield ("forgets everything", -1, number), _with(fewer, number, empty)

    def _granted(self, state: State, number: int, node: Node) -> State:
        node = node._replace(grant=False)
        if node.owner != NOBODY and state.now < node.ends:
            return _with(state, number, node)
        node = node._replace(owner=RIVAL, ends=state.now + TTL, floor=RIVAL)
        return _with(state._replace(granted=state.granted + 1), number, node)

    def _extended(self, state: State, number: int, node: Node) -> State:
        votes, is_held = node.extension == 2, state.now < node.ends
        node = node._replace(extension=0)
        if node.floor > LEASE or (is_held and node.owner == RIVAL):
            return _with(state, number, node)
        renewed = node._replace(owner=LEASE, ends=state.now + TTL, floor=LEASE)
        after = _with(state, number, renewed)
        is_renewed = is_held and node.owner == LEASE
        before, reply = [Extended()] * state.extended, Extended() if is_renewed else Healed()
        silent = [None] * (NODES - len(before) - 1)
        verdict = extend_verdict([*before, reply, *silent], () if votes else [len(before)])
        # A lease that is over is never extended.
        if verdict is Verdict.REACHED and state.now < state.deadline:
            after = after._replace(deadline=state.sent_at + TTL)
        return after._replace(extended=state.extended + (votes and is_renewed))


def _with(state: State, number: int, node: Node) -> State:
    nodes = state.nodes
    return state._replace(nodes=(*nodes[:number], node, *nodes[number + 1 :]))
