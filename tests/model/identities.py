"""One address, the servers there one after the other, and what a process concludes from a look.

A process that was idle counts a server's vote by what its parent saw of it. Every earlier server
there may have granted leases until it was replaced, which the new one does not know, whatever its
uptime is. Anybody may stand still between two steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from .explorer import Step

TTL: Final = 2
"""Ticks that a lease lasts."""
GUARD: Final = 2
"""Ticks without a vote; a lease lasts no longer."""
NEVER: Final = -9
NOBODY: Final = -1
"""Server that a process knows which has seen none."""


class Shared(Enum):
    """What a process takes over of its parent's knowledge. Only the first two are sound."""

    NOTHING = auto()
    TIME_OF_THIS_SERVER = auto()
    SERVER_WITHOUT_TIME = auto()
    TIME_OF_ANY_SERVER = auto()
    TIME_OF_A_REPLACEMENT = auto()
    HALF_A_RECORD = auto()


@dataclass(frozen=True, slots=True)
class Scope:
    """The world to explore.

    Attributes:
        shared: The rule.
        end: The last tick.
        replacements: How often the server is replaced.
        comes_back: Whether the second replacement brings back the first server, as it was.
        parent_knows: Whether the parent has seen the first server.
    """

    shared: Shared
    end: int = 4
    replacements: int = 2
    comes_back: bool = False
    parent_knows: bool = True


class Look(NamedTuple):
    """A look at the address: which server answered, and when the process read its clock then."""

    server: int
    at: int


class State(NamedTuple):
    """Everything at one instant.

    Attributes:
        now: Ticks.
        turn: How many servers were replaced.
        server: The one at the address.
        earlier_end: When the last lease ends that it does not know; 0: it has ended.
        parent: The server that the parent saw last.
        record: What it has written: the server, and a time.
        writes: The rest of a record that is being written, or None.
        looks: The look of parent and child that is under way, or None each.
        child: The server that the child saw last.
        votes_from: When that one's vote counts for the child; 0: it does.
        seen_at: When the child saw it last; NEVER: before the time in the record.
    """

    now: int
    turn: int
    server: int
    earlier_end: int
    parent: int
    record: Look
    writes: Look | None
    looks: tuple[Look | None, Look | None]
    child: int
    votes_from: int
    seen_at: int


Move = tuple[Step, State]
PARENT, CHILD = 0, 1


class Identities:
    """A model for `explorer.explore`."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def initial(self) -> State:
        """Return the state in which the child knows the first server."""
        parent = 0 if self.scope.parent_knows else NOBODY
        nothing = (None, None)
        return State(0, 0, 0, 0, parent, Look(parent, NEVER), None, nothing, 0, 0, 0)

    def canonical(self, state: State) -> State:
        """Return the state without times of which it only matters that they are past."""
        is_older = state.seen_at < state.record.at
        return state._replace(
            earlier_end=state.earlier_end if state.earlier_end > state.now else 0,
            votes_from=state.votes_from if state.votes_from > state.now else 0,
            seen_at=NEVER if is_older else state.seen_at,
        )

    def broken_promise(self, state: State) -> str | None:
        """No vote counts of a server that may not know a lease which has not ended."""
        counts = state.child == state.server and state.now >= state.votes_from
        return "no_forgotten_lease" if counts and state.earlier_end > state.now else None

    def landmark(self, state: State) -> bool:
        """Return whether the child counts a server that has replaced another one."""
        return state.child == state.server > 0 and state.now >= state.votes_from

    def describe(self, step: Step, after: State) -> str:
        """Return a step as a sentence."""
        return f"{step[0]}: {after}"

    def successors(self, state: State) -> Iterator[Move]:
        """Yield everything that can happen next."""
        if state.now < self.scope.end:
            yield ("time passes", -1, -1), state._replace(now=state.now + 1)
        if state.turn < self.scope.replacements:
            yield ("the server is replaced", -1, -1), self._replaced(state)
        for who, look in enumerate(state.looks):
            yield from self._look(state, who, look)
        if state.writes:
            yield (
                ("the parent has written", -1, -1),
                state._replace(record=state.writes, writes=None),
            )

    def _replaced(self, state: State) -> State:
        turn = state.turn + 1
        server = 0 if self.scope.comes_back and turn == self.scope.replacements else turn
        # Its last lease, as late as can be.
        return state._replace(turn=turn, server=server, earlier_end=state.now + TTL)

    def _look(self, state: State, who: int, look: Look | None) -> Iterator[Move]:
        """A server answers; later the process reads its clock; later it draws its conclusion."""
        if look is None:
            yield ("the server answers", who, -1), _with(state, who, Look(state.server, NEVER))
        elif look.at == NEVER:
            yield ("the clock is read", who, -1), _with(state, who, look._replace(at=state.now))
        elif who == CHILD:
            yield self._concluded(_with(state, CHILD, None), look)
        elif not state.writes:
            yield ("the parent has looked", who, -1), self._noted(_with(state, PARENT, None), look)

    def _noted(self, state: State, look: Look) -> State:
        """Return the state after the parent wrote, or began to write, which server it has seen."""
        if state.parent == look.server:
            return state
        record = look
        if self.scope.shared is Shared.TIME_OF_A_REPLACEMENT and state.parent == NOBODY:
            record = look._replace(at=NEVER)
        state = state._replace(parent=look.server)
        if self.scope.shared is Shared.HALF_A_RECORD:
            half = state.record._replace(server=look.server)
            return state._replace(record=half, writes=record)
        return state._replace(record=record)

    def _concluded(self, state: State, look: Look) -> Move:
        """The child concludes from when on the server's vote counts."""
        verb, votes_from = "the child knows it", state.votes_from
        if state.child != look.server:
            verb, replaced_at = "the child concludes by itself", look.at
            if self._counts(state, look):
                verb = "the child concludes by its parent"
                replaced_at = min(state.record.at, look.at)
            if verb.endswith("parent") and self.scope.shared is Shared.SERVER_WITHOUT_TIME:
                replaced_at = NEVER
            votes_from = replaced_at + GUARD
        after = state._replace(child=look.server, votes_from=votes_from, seen_at=look.at)
        return (verb, CHILD, -1), after

    def _counts(self, state: State, look: Look) -> bool:
        """Whether the parent's knowledge counts."""
        shared, record = self.scope.shared, state.record
        if shared is Shared.NOTHING:
            return False
        if shared is Shared.TIME_OF_ANY_SERVER:
            return record.server != NOBODY
        is_later = shared is not Shared.TIME_OF_THIS_SERVER or record.at > state.seen_at
        return record.server == look.server and is_later


def _with(state: State, who: int, look: Look | None) -> State:
    looks = (look, state.looks[CHILD]) if who == PARENT else (state.looks[PARENT], look)
    return state._replace(looks=looks)
