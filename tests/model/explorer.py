"""A small explicit-state model checker: breadth first, so the counter-example is a shortest one."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)

Step = tuple[str, int, int]
"""What happened: a verb and up to two actors (an attempt, a node; -1 for none)."""


class Model(Protocol[S]):
    """What the explorer needs to know of a system."""

    def initial(self) -> S:
        """Return the state that everything starts from."""

    def successors(self, state: S) -> Iterable[tuple[Step, S]]:
        """Yield every step possible in this state, and where it leads."""

    def canonical(self, state: S) -> S:
        """Return the one state that stands for all its mirror images."""

    def broken_promise(self, state: S) -> str | None:
        """Return the name of a safety property that this state violates, or None."""

    def landmark(self, state: S) -> Hashable:
        """Return what to count states by, so that a test can tell a search from a vacuous one."""

    def describe(self, step: Step, after: S) -> str:
        """Return one line about a step for people."""


@dataclass(frozen=True, slots=True)
class Exploration:
    """What a search found.

    Attributes:
        states: Distinct canonical states seen.
        exhaustive: True if no reachable state was left out, by a limit or because a promise broke.
        violation: The promise that broke first (there is none with fewer steps), or None.
        trace: The steps that lead to the violation, one line each.
        fired: How often each verb was a possible step.
        landmarks: How many states each landmark has.
    """

    states: int
    exhaustive: bool
    violation: str | None = None
    trace: tuple[str, ...] = ()
    fired: Counter[str] = field(default_factory=Counter)
    landmarks: Counter[Hashable] = field(default_factory=Counter)

    @property
    def holds(self) -> bool:
        """Return whether every reachable state was seen and none breaks a promise."""
        return self.exhaustive and self.violation is None

    def __str__(self) -> str:
        """Return the verdict and, if there is one, the counter-example."""
        extent = "all" if self.exhaustive else "not all"
        if self.violation is None:
            return f"no violation in {self.states} states ({extent} there are)"
        steps = "\n".join(f"{number:3}. {line}" for number, line in enumerate(self.trace, 1))
        return (
            f"{self.violation}, after {len(self.trace)} steps ({self.states} states seen):\n{steps}"
        )


class _Search(Generic[S]):
    """One breadth-first search: the states seen, each with the state it was first reached from."""

    def __init__(self, model: Model[S]) -> None:
        self.model = model
        self.start = model.canonical(model.initial())
        self.parents: dict[S, S | None] = {self.start: None}
        self.fired: Counter[str] = Counter()
        self.landmarks: Counter[Hashable] = Counter([model.landmark(self.start)])

    def next_layer(self, layer: list[S]) -> Iterator[S]:
        """Yield the states one step further than a layer, each once and never one seen before."""
        model, parents, fired, landmarks = self.model, self.parents, self.fired, self.landmarks
        for state in layer:
            for step, raw in model.successors(state):
                fired[step[0]] += 1
                after = model.canonical(raw)
                if after not in parents:
                    parents[after] = state
                    landmarks[model.landmark(after)] += 1
                    yield after

    def path_to(self, state: S) -> tuple[str, ...]:
        """Return the steps from the start, replayed so that every actor keeps its name."""
        path: list[S] = []
        cursor: S | None = state
        while cursor is not None:
            path.append(cursor)
            cursor = self.parents[cursor]
        lines, raw = [], self.model.initial()
        for wanted in reversed(path[:-1]):
            step, raw = next(
                (step, after)
                for step, after in self.model.successors(raw)
                if self.model.canonical(after) == wanted
            )
            lines.append(self.model.describe(step, raw))
        return tuple(lines)

    def result(
        self, *, exhaustive: bool, violation: str | None = None, at: S | None = None
    ) -> Exploration:
        """Return what is known so far."""
        trace = () if at is None else self.path_to(at)
        return Exploration(
            len(self.parents), exhaustive, violation, trace, self.fired, self.landmarks
        )


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Stop the cyclic collector: it would walk millions of tuples, over and over, for nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def explore(model: Model[S], max_states: int = 10_000_000) -> Exploration:
    """Visit every reachable state, or stop at the first one that breaks a promise.

    Args:
        model: The system.
        max_states: Give up (not exhaustive) beyond this many states.

    Returns:
        What was found; no counter-example is shorter than the one reported.
    """
    search = _Search(model)
    violation = model.broken_promise(search.start)
    if violation is not None:
        return search.result(exhaustive=False, violation=violation, at=search.start)
    layer = [search.start]
    with _no_garbage_collection():
        while layer:
            reached = []
            for state in search.next_layer(layer):
                violation = model.broken_promise(state)
                if violation is not None:
                    return search.result(exhaustive=False, violation=violation, at=state)
                if len(search.parents) > max_states:
                    return search.result(exhaustive=False)
                reached.append(state)
            layer = reached
    return search.result(exhaustive=True)
