"""Whether a history of concurrent operations is one that a sequential object could have given.

    judgement = judge(history, FencedRegister())
    assert judgement.is_linearizable, str(judgement)

The search of Wing and Gong, with the memory that Lowe added: a set of operations that were tried
before in another order, and led to the same state, is not tried again.

Source: Wing, Gong: Testing and Verifying Concurrent Objects, 1993; Lowe: Testing for
Linearizability, 2016.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Generic, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Operation:
    """One call, as its caller saw it.

    Attributes:
        process: Who called.
        key: Which object; the histories of different objects are judged apart.
        name: What was called.
        arguments: With what.
        result: What came back; None if nothing did.
        invoked: When it was called, seconds on the clock of all.
        completed: When it returned. Infinite: it never did, so its effect may come at any time
            after the call, or never.
    """

    process: int
    key: str
    name: str
    arguments: tuple[Hashable, ...]
    result: Hashable
    invoked: float
    completed: float = inf

    def __str__(self) -> str:
        arguments = ", ".join(map(repr, self.arguments))
        ended = "no reply" if self.completed == inf else f"{self.result!r} at {self.completed:.6f}"
        return f"{self.invoked:.6f} [{self.process}] {self.name}({arguments}) -> {ended}"


class Specification(Protocol[S]):
    """A sequential object: what it does if one operation follows the other."""

    def initial(self) -> S:
        """Return the state of a new object."""

    def apply(self, state: S, name: str, arguments: tuple[Hashable, ...]) -> tuple[Hashable, S]:
        """Return the result of an operation in a state, and the state after it."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of a history.

    Attributes:
        is_linearizable: Whether some order explains all of it.
        operations: How many there were, of all keys.
        keys: How many objects.
        visited: How many sets of operations were tried.
        explained: Of the first object that has no order, the longest that explains a part of it.
        stuck_at: The operation whose result none of the orders explains; None if there is one.
    """

    is_linearizable: bool
    operations: int
    keys: int
    visited: int
    explained: tuple[Operation, ...] = ()
    stuck_at: Operation | None = None

    def __str__(self) -> str:
        if self.is_linearizable:
            return f"linearizable: {self.operations} operations on {self.keys} keys"
        lines = [f"not linearizable: no order explains\n  {self.stuck_at}\nafter"]
        return "\n".join([*lines, *(f"  {each}" for each in self.explained[-10:])])


class UndecidedError(Exception):
    """The search was given up: nothing is known of this history."""


def judge(
    history: Iterable[Operation], specification: Specification[S], max_visited: int = 2_000_000
) -> Judgement:
    """Return whether each object's operations have an order that explains their results.

    In that order an operation that returned before another was called comes before it.

    Args:
        history: The operations of all objects, in any order.
        specification: What each object is.
        max_visited: Give up beyond this many sets of operations of one object.

    Raises:
        UndecidedError: It was given up.
    """
    objects: dict[str, list[Operation]] = defaultdict(list)
    for operation in history:
        objects[operation.key].append(operation)
    operations, visited = sum(map(len, objects.values())), 0
    for of_one in objects.values():
        search = _Search(of_one, specification, max_visited)
        is_explained = search.succeeds()
        visited += len(search.seen)
        if not is_explained:
            return Judgement(
                False, operations, len(objects), visited, search.longest, search.stuck_at
            )
    return Judgement(True, operations, len(objects), visited)


class _Search(Generic[S]):
    """One object's history: calls and returns in their order, as a list that can be thinned out.

    An entry below `count` is the call of that operation; that number + `count` is its return. The
    last number is the list's head and end.
    """

    def __init__(
        self, history: Sequence[Operation], specification: Specification[S], max_visited: int
    ) -> None:
        self.history = history
        self.specification = specification
        self.max_visited = max_visited
        self.count = len(history)
        self.head = 2 * self.count
        self.following = [self.head] * (self.head + 1)
        self.preceding = [self.head] * (self.head + 1)
        self.unexplained = sum(each.completed != inf for each in history)
        self.seen: set[tuple[int, S]] = set()
        self.longest: tuple[Operation, ...] = ()
        self.stuck_at: Operation | None = None
        self._link()

    def _link(self) -> None:
        # At the same instant calls come first: such operations count as concurrent.
        events = [(each.invoked, False, number) for number, each in enumerate(self.history)]
        events += [
            (each.completed, True, number + self.count)
            for number, each in enumerate(self.history)
            if each.completed != inf
        ]
        last = self.head
        for _, _, entry in sorted(events):
            self.following[last], self.preceding[entry] = entry, last
            last = entry
        self.following[last], self.preceding[self.head] = self.head, last

    def succeeds(self) -> bool:
        """Return whether there is an order that explains every result."""
        state, done = self.specification.initial(), 0
        # Operations in the order that is being tried, each with the state and the set before it.
        tried: list[tuple[int, S, int]] = []
        entry = self.following[self.head]
        while self.unexplained:
            if entry < self.count:
                after = self._after(entry, state)
                is_new = after is not None and self._is_new(done | 1 << entry, after[0])
                if after is not None and is_new:
                    tried.append((entry, state, done))
                    state, done = after[0], done | 1 << entry
                    self._take_out(entry)
                    entry = self.following[self.head]
                else:
                    entry = self.following[entry]
                continue
            # A return whose call is not in the order yet (or the end, with some still unexplained):
            # nothing that may come next explains it.
            self._note(entry, [number for number, _, _ in tried])
            if not tried:
                return False
            number, state, done = tried.pop()
            self._put_back(number)
            entry = self.following[number]
        return True

    def _after(self, number: int, state: S) -> tuple[S] | None:
        """Return the state after an operation, None if it can't give this result here."""
        operation = self.history[number]
        result, after = self.specification.apply(state, operation.name, operation.arguments)
        return (after,) if operation.completed == inf or result == operation.result else None

    def _is_new(self, done: int, state: S) -> bool:
        if (done, state) in self.seen:
            return False
        self.seen.add((done, state))
        if len(self.seen) > self.max_visited:
            raise UndecidedError(f"{self.count} operations, {self.max_visited} sets tried")
        return True

    def _note(self, entry: int, order: list[int]) -> None:
        """Keep the order that got furthest."""
        if self.stuck_at is None or len(order) > len(self.longest):
            self.longest = tuple(self.history[number] for number in order)
            self.stuck_at = self.history[entry - self.count]

    def _take_out(self, number: int) -> None:
        self._unlink(number)
        if self.history[number].completed != inf:
            self._unlink(number + self.count)
            self.unexplained -= 1

    def _put_back(self, number: int) -> None:
        # In the opposite order: a call and its return may be neighbours.
        if self.history[number].completed != inf:
            self._relink(number + self.count)
            self.unexplained += 1
        self._relink(number)

    def _unlink(self, entry: int) -> None:
        before, after = self.preceding[entry], self.following[entry]
        self.following[before], self.preceding[after] = after, before

    def _relink(self, entry: int) -> None:
        before, after = self.preceding[entry], self.following[entry]
        self.following[before] = self.preceding[after] = entry
