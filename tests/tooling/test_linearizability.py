"""The judge of histories, on histories whose verdict is known, and against trying every order."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import permutations
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.judges.fenced_register import ACCEPTED, REFUSED, FencedRegister
from tests.support.judges.linearizability import (
    Operation,
    Specification,
    UndecidedError,
    judge,
)


class PlainRegister:
    """Its last value."""

    def initial(self) -> Hashable:
        return 0

    def apply(
        self, state: Hashable, name: str, arguments: tuple[Hashable, ...]
    ) -> tuple[Hashable, Hashable]:
        return ("ok", arguments[0]) if name == "write" else (state, state)


class Queue:
    """First in, first out."""

    def initial(self) -> tuple[Hashable, ...]:
        return ()

    def apply(
        self, state: tuple[Hashable, ...], name: str, arguments: tuple[Hashable, ...]
    ) -> tuple[Hashable, tuple[Hashable, ...]]:
        if name == "put":
            return "ok", (*state, *arguments)
        return (state[0], state[1:]) if state else (None, state)


def made(*calls: tuple[str, tuple[Hashable, ...], Hashable, float, float]) -> list[Operation]:
    """Return a history, each call by a process of its own."""
    return [Operation(number, "x", *call) for number, call in enumerate(calls)]


GOOD = [
    # Herlihy and Wing, 1990, figure 1: queues; (a) and (d) are linearizable.
    (Queue(), made(
        ("put", ("x",), "ok", 0, 3), ("put", ("y",), "ok", 1, 2), ("get", (), "x", 4, 7),
        ("get", (), "y", 5, 6), ("put", ("z",), "ok", 8, 9),
    )),
    (Queue(), made(
        ("put", ("x",), "ok", 0, 3), ("put", ("y",), "ok", 1, 2), ("get", (), "y", 4, 5),
        ("get", (), "x", 6, 7),
    )),
    # A read beside a write may return either value.
    (PlainRegister(), made(("write", (1,), "ok", 0, 9), ("read", (), 0, 1, 2))),
    (PlainRegister(), made(("write", (1,), "ok", 0, 9), ("read", (), 1, 1, 2))),
    # A write that never returned: it took place, or did not, or does so late.
    (PlainRegister(), made(("write", (1,), None, 0, inf), ("read", (), 1, 1, 2))),
    (PlainRegister(), made(("write", (1,), None, 0, inf), ("read", (), 0, 1, 2))),
    (PlainRegister(), made(
        ("write", (1,), None, 0, inf), ("read", (), 0, 1, 2), ("read", (), 1, 3, 4),
    )),
    # Two that only touch are concurrent.
    (PlainRegister(), made(("write", (1,), "ok", 0, 1), ("read", (), 0, 1, 2))),
    # Two fenced writes at once: whichever came first.
    (FencedRegister(), made(
        ("write", (2, "b"), ACCEPTED, 0, 5), ("write", (1, "a"), REFUSED, 1, 6),
        ("read", (), "b", 7, 8),
    )),
    (FencedRegister(), made(
        ("write", (2, "b"), ACCEPTED, 0, 5), ("write", (1, "a"), ACCEPTED, 1, 6),
        ("read", (), "b", 7, 8),
    )),
    # A holder may write twice with one token.
    (FencedRegister(), made(
        ("claim", (1,), ACCEPTED, 0, 1), ("write", (1, "a"), ACCEPTED, 2, 3),
        ("write", (1, "b"), ACCEPTED, 4, 5), ("read", (), "b", 6, 7),
    )),
    # Refused by a write whose reply was lost.
    (FencedRegister(), made(
        ("write", (2, "b"), None, 0, inf), ("write", (1, "a"), REFUSED, 1, 2),
    )),
]  # fmt: skip

BAD = [
    # The same figure, (b): x was in the queue before y.
    (Queue(), made(
        ("put", ("x",), "ok", 0, 1), ("put", ("y",), "ok", 2, 3), ("get", (), "y", 4, 5),
    )),
    # (c): the same element twice.
    (Queue(), made(
        ("put", ("x",), "ok", 0, 3), ("put", ("y",), "ok", 1, 2), ("get", (), "y", 4, 7),
        ("get", (), "y", 5, 6),
    )),
    # An old value after a new one: of two reads, and after the write.
    (PlainRegister(), made(
        ("write", (1,), "ok", 0, 9), ("read", (), 1, 1, 2), ("read", (), 0, 3, 4),
    )),
    (PlainRegister(), made(("write", (1,), "ok", 0, 1), ("read", (), 0, 2, 3))),
    # Also of a write that never returned: once seen, it stays.
    (PlainRegister(), made(
        ("write", (1,), None, 0, inf), ("read", (), 1, 1, 2), ("read", (), 0, 3, 4),
    )),
    (PlainRegister(), made(("read", (), 1, 0, 1), ("write", (1,), None, 2, inf))),
    # A late write that was let in, one that was lost though accepted, a refusal without a reason.
    (FencedRegister(), made(
        ("write", (2, "b"), ACCEPTED, 0, 1), ("write", (1, "a"), ACCEPTED, 2, 3),
    )),
    (FencedRegister(), made(
        ("claim", (2,), ACCEPTED, 0, 1), ("write", (1, "a"), ACCEPTED, 2, 3),
    )),
    (FencedRegister(), made(
        ("write", (2, "b"), ACCEPTED, 0, 1), ("read", (), None, 2, 3),
    )),
    (FencedRegister(), made(
        ("write", (1, "a"), REFUSED, 0, 1), ("write", (2, "b"), ACCEPTED, 2, 3),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("specification", "history"), GOOD)
def test_histories_with_an_explanation_are_accepted(
    specification: Specification[Hashable], history: list[Operation]
) -> None:
    assert (judgement := judge(history, specification)).is_linearizable, str(judgement)


@pytest.mark.parametrize(("specification", "history"), BAD)
def test_histories_without_an_explanation_are_refused(
    specification: Specification[Hashable], history: list[Operation]
) -> None:
    assert not judge(history, specification).is_linearizable


def test_each_key_is_an_object_of_its_own() -> None:
    [write, read] = made(("write", (1,), "ok", 0, 1), ("read", (), 0, 2, 3))
    assert not judge([write, read], PlainRegister()).is_linearizable
    assert judge([write, replace(read, key="y")], PlainRegister()).is_linearizable


def test_a_refusal_names_the_operation_and_what_came_before() -> None:
    history = made(("write", (1,), "ok", 0, 1), ("read", (), 1, 2, 3), ("read", (), 7, 4, 5))
    judgement = judge(history, PlainRegister())
    assert judgement.stuck_at == history[2]
    assert judgement.explained == tuple(history[:2])
    assert "no order explains\n  4.000000 [2] read() -> 7" in str(judgement)


def test_a_search_that_is_too_long_is_not_a_verdict() -> None:
    writes = [("write", (number,), "ok", 0.0, 9.0) for number in range(12)]
    history = made(*writes, ("read", (), "never written", 10.0, 11.0))
    with pytest.raises(UndecidedError):
        judge(history, PlainRegister(), max_visited=1000)


def test_orders_that_lead_to_one_state_are_tried_once() -> None:
    """Sixteen reads at a time have 2 * 10^13 orders."""
    reads = [("read", (), 0, 0.0, 9.0) for _ in range(16)]
    history = made(*reads, ("read", (), 1, 10.0, 11.0))
    judgement = judge(history, PlainRegister())
    assert not judgement.is_linearizable
    assert judgement.visited < 2**17


# ---- against trying every order

_TOKENS = st.integers(1, 3)
_VALUES = st.sampled_from("ab")
_CALLS = st.one_of(
    st.tuples(st.just("write"), st.tuples(_TOKENS, _VALUES)),
    st.tuples(st.just("claim"), st.tuples(_TOKENS)),
    st.tuples(st.just("read"), st.just(())),
)


@st.composite
def widened(draw: st.DrawFn, max_size: int) -> list[Operation]:
    """Return a sequential history whose operations were made to begin earlier and end later."""
    specification, history = FencedRegister(), []
    state = specification.initial()
    for at, (name, arguments) in enumerate(draw(st.lists(_CALLS, min_size=1, max_size=max_size))):
        result, state = specification.apply(state, name, arguments)
        invoked, completed = at - draw(st.floats(0, 3)), at + draw(st.floats(0, 3))
        if draw(st.integers(0, 9)) == 0:
            result, completed = None, inf
        history.append(Operation(at, "x", name, arguments, result, invoked, completed))
    return history


@st.composite
def changed(draw: st.DrawFn) -> list[Operation]:
    """Return such a history, with some results replaced."""
    history = draw(widened(5))
    for index, operation in enumerate(history):
        if operation.completed != inf and draw(st.booleans()):
            results = ["a", "b", None] if operation.name == "read" else [ACCEPTED, REFUSED]
            history[index] = replace(operation, result=draw(st.sampled_from(results)))
    return history


def is_explained_by_some_order(history: Sequence[Operation]) -> bool:
    """Try all orders of all operations, with and without each of those that never returned."""
    pending = [each for each in history if each.completed == inf]
    for chosen in range(2 ** len(pending)):
        left_out = [each for bit, each in enumerate(pending) if chosen >> bit & 1]
        present = [each for each in history if each not in left_out]
        if any(map(is_explained_by, permutations(present))):
            return True
    return False


def is_explained_by(order: Sequence[Operation]) -> bool:
    specification = FencedRegister()
    state = specification.initial()
    for index, operation in enumerate(order):
        if any(later.completed < operation.invoked for later in order[index + 1 :]):
            return False
        result, state = specification.apply(state, operation.name, operation.arguments)
        if operation.completed != inf and result != operation.result:
            return False
    return True


@given(widened(40))
def test_a_sequential_history_stays_accepted_when_it_is_widened(history: list[Operation]) -> None:
    assert (judgement := judge(history, FencedRegister())).is_linearizable, str(judgement)


@given(changed())
def test_the_verdict_is_that_of_trying_every_order(history: list[Operation]) -> None:
    assert judge(history, FencedRegister()).is_linearizable == is_explained_by_some_order(history)


def test_histories_that_were_changed_are_of_both_kinds() -> None:
    """Else the comparison above would show little."""
    verdicts: set[bool] = set()

    @given(changed())
    def collect(history: list[Operation]) -> None:
        verdicts.add(judge(history, FencedRegister()).is_linearizable)

    collect()
    assert verdicts == {True, False}
