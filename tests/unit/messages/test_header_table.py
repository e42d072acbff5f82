"""Each header of ours in each form: the message runs once if its lock is free, and leaves it free.

Only what says that it was delivered too often is refused.

The way of a message is Celery's own: published in one of its protocols and serializers, changed
before it leaves, received and traced as by a worker.
"""

from __future__ import annotations

import datetime as dt
import logging
import math
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from itertools import product
from typing import Any, NamedTuple

import pytest
from celery import Celery, states
from celery.exceptions import Reject
from celery.local import maybe_evaluate
from celery.result import AsyncResult
from celery.signals import before_task_publish
from kombu.exceptions import EncodeError

from celery_redlock.config.options import Lifetime
from celery_redlock.execution import entry
from celery_redlock.execution.message import Message
from celery_redlock.messages import delivery, reservation
from celery_redlock.messages import headers as known
from celery_redlock.messages.headers import (
    COPY_HEADER,
    DELIVERIES_HEADER,
    ONCE_MORE_HEADER,
    PLACEMENT_HEADER,
    PUBLICATION_HEADER,
    REDELIVERED,
    SERIALIZER,
    TICK_HEADER,
)
from celery_redlock.messages.headers import RESERVATION_HEADER as HEADER
from celery_redlock.messages.origin import ORIGIN
from celery_redlock.redlock.errors import LockHeld, RedlockError
from tests.support.evidence import HostileInputs, hostile_inputs
from tests.support.fakes.forged import HOLDER, PERIOD, RESERVED_PERIOD, WAITING, NewTask
from tests.support.fakes.one_node import OneNode
from tests.support.fakes.one_worker import OneWorker

PERIOD_S = 30.0
NONCE = "0123456789abcdef"
TOO_OFTEN = 10**6
"""The largest count of deliveries that is taken for one."""
TIME = "2026-01-01T00:00:00+00:00"
FORGED: dict[str, list[Any]] = {
    HEADER: [
        *(["t", owner] for owner in (HOLDER, WAITING, PERIOD, RESERVED_PERIOD)),
        ["t%next", WAITING], ["t:other", WAITING], ["u", WAITING], ["", WAITING],
        ["t", WAITING, "x"], ["t", "~:"], [WAITING, "t"], ["t", WAITING + "\ud800"],
        {"t": WAITING}, "t", ["t" + "%next" * 2, WAITING],
    ],
    PUBLICATION_HEADER: [NONCE, NONCE.upper(), f"{NONCE}0", f"{NONCE}\n", "\ud800" * 16],
    ONCE_MORE_HEADER: [NONCE, f"{NONCE}0", "\ud800"],
    TICK_HEADER: [TIME, "some day", "\ud800"],
    PLACEMENT_HEADER: ["1767225600 x", "1767225600 \ud800", "9" * 12 + " x", "-1 x", "² x"],
    COPY_HEADER: [REDELIVERED, True, "\ud800"],
    DELIVERIES_HEADER: [1, 19, TOO_OFTEN, TOO_OFTEN + 1, "1", True],
    SERIALIZER: ["json", "pickle", "yaml", "none"],
    ORIGIN: [["celery", ""], ["celery", "other@host"], ["", "other@host"], ["\ud800", ""]],
}  # fmt: skip
"""Each header, and what others can write there; the first value is a good one."""
HUGE: list[Any] = [
    "x" * 20_000, b"x" * 20_000, ["x"] * 300, {f"{n}": n for n in range(300)},
    10**5000, -(10**5000), 1e308, ["t" * 20_000, WAITING], ["t", WAITING + "x" * 20_000],
]  # fmt: skip
TYPED: list[Any] = [
    None, False, True, 0, -1, 1.5, float("nan"), float("inf"), "", "x", b"", b"x", [], [None], {},
    {"x": 1}, ("t", WAITING), dt.datetime.now(dt.timezone.utc), uuid.uuid4(),
]  # fmt: skip
SERIALIZERS = ["json", "pickle", *(one for one in ("yaml", "msgpack") if find_spec(one))]
WAYS = list(product(SERIALIZERS, (1, 2)))
"""Serializer and protocol."""


class Sent(NamedTuple):
    """Message that is about to leave.

    Attributes:
        headers: Its headers.
        body: What Celery makes attributes of the request, of protocol 2; or the whole of its body.
        others: Headers of another task's message.
    """

    headers: dict[str, Any]
    body: dict[str, Any]
    others: dict[str, Any]


Change = Callable[[Sent, str, Any], object]


def _remove(sent: Sent, header: str, _: object) -> None:
    sent.headers.pop(header, None)


def _nest(sent: Sent, header: str, value: object) -> None:
    sent.headers["headers"] = {header: sent.headers.pop(header, value)}


def _nest_another(sent: Sent, header: str, value: object) -> None:
    sent.headers["headers"] = {header: value}


def _move(sent: Sent, header: str, value: object) -> None:
    sent.headers[header] = sent.others.get(header, value)


def _write(sent: Sent, header: str, value: object) -> None:
    sent.headers[header] = value


def _write_in_body(sent: Sent, header: str, value: object) -> None:
    sent.body[header] = value


def _changed_by(change: Change, header: str, value: object, sent: Sent) -> None:
    change(sent, header, value)


def rows(header: str) -> Iterator[tuple[str, Change, Any]]:
    """Return name, change and value of each form of a header; each form in every one of `WAYS`."""
    forged = FORGED[header]
    forms: list[tuple[str, list[Change], list[Any]]] = [
        ("absent", [_remove], [None]),
        ("nested", [_nest], forged[:1]),
        ("nested beside it", [_nest_another], forged[:1]),
        ("moved", [_move], forged[:1]),
        ("forged", [_write], forged),
        ("forged in the body", [_write_in_body], forged),
        ("huge", [_write, _write_in_body], HUGE),
        ("of any type", [_write, _write_in_body], TYPED),
    ]
    for form, how, values in forms:
        for n in range(max(len(values), len(WAYS))):
            yield form, how[n // 2 % len(how)], values[n % len(values)]


@dataclass
class Bench:
    """Task `t`, and the task `u` whose headers can be moved, with a worker for both.

    Attributes:
        change: What is done to a message of `t` as it leaves.
        others: Headers of the last message of `u`.
    """

    app: Celery
    node: OneNode
    worker: OneWorker
    task: Any
    other: Any
    change: Callable[[Sent], object] = lambda sent: None
    others: dict[str, Any] = field(default_factory=dict)

    def on_leaving(self, sender: str, headers: dict[str, Any], body: Any, **_: Any) -> None:
        if sender == self.other.name:
            self.others = dict(headers)
        else:
            self.change(Sent(headers, body if isinstance(body, dict) else body[2], self.others))


@pytest.fixture
def bench(app: Celery, node: OneNode, new_task: NewTask, lifetime: Lifetime) -> Iterator[Bench]:
    task, other = (
        maybe_evaluate(
            new_task(name=name, lock_lifetime=lifetime, lock_ttl=PERIOD_S, acks_late=True)
        )
        for name in ("t", "u")
    )
    app.conf.accept_content = SERIALIZERS
    bench = Bench(app, node, OneWorker(app), task, other)
    before_task_publish.connect(bench.on_leaving)
    logging.disable()  # thousands of refusals, each with its traceback
    yield bench
    logging.disable(logging.NOTSET)
    before_task_publish.disconnect(bench.on_leaving)


def fault_of(
    bench: Bench, serializer: str, protocol: int, *, is_held: bool, is_refused: bool, others: int
) -> str | None:
    """Return what is wrong with the end of the next message of `t`, or None.

    Args:
        bench: With the change to make.
        serializer: Of the message.
        protocol: Of the message.
        is_held: Whether another execution has got the lock when the message arrives.
        is_refused: Whether the message has to be refused, also if the lock is free.
        others: Number of messages of `u` that are sent before it and arrive after it.
    """
    app, node, worker, task = bench.app, bench.node, bench.worker, bench.task
    app.conf.task_protocol = protocol
    vars(app.amqp).pop("create_task_message", None)
    node.held, node.done = {"t:other": (WAITING, math.inf)}, set()
    task.runs.clear()
    bench.other.runs.clear()
    for _ in range(others):
        bench.other.apply_async(queue="others")
    try:
        result = task.apply_async(serializer=serializer)
    except EncodeError:
        result = None  # refused before it left
    is_held = is_held and result is not None
    if is_held:
        node.held["t"] = HOLDER, math.inf
    try:
        worker.work()
        outcome = None if result is None else _outcome(worker, result)
        worker.work("others")
    except RuntimeError as error:
        return str(error)
    if is_held and node.held.pop("t", None) != (HOLDER, math.inf):
        return "it has touched the lock of another execution"
    if is_held and task.runs and task.lock_lifetime is not Lifetime.UNTIL_EXECUTING:
        return "it has run beside another execution"
    least, most = int(not (is_held or is_refused)), int(not is_refused)
    if not least <= len(task.runs) <= most or len(bench.other.runs) != others:
        return f"it has run {len(task.runs)} times, the other {len(bench.other.runs)} times"
    if task.lock_lifetime.is_throttle:
        node.clock.move(PERIOD_S)
    left = [key for key in node.held if node.owner_of(key) and key != "t:other"]
    return f"it has left {left} locked" if left else outcome


def _outcome(worker: OneWorker, result: AsyncResult[Any]) -> str | None:
    """Return what is wrong with the outcome that a caller sees, or None."""
    # From Celery 5.7 on, a message that is rejected for good has failed by that.
    known = (RedlockError, Reject)
    if result.state == states.FAILURE and not isinstance(result.result, known):
        return f"it has failed by {result.result!r}"
    return None if "REJECTED" in worker.ends or result.ready() else "it has vanished"


@pytest.fixture(scope="module")
def tried(request: pytest.FixtureRequest) -> Iterator[HostileInputs]:
    """Count what was tried."""
    with hostile_inputs("forms of headers", request.session) as counts:
        yield counts


def _shown(value: object) -> str:
    is_short = not isinstance(value, int) or abs(value) < 10**9
    return f"{type(value).__name__} {ascii(value)[:60] if is_short else ''}"


def faults(bench: Bench, header: str, tried: HostileInputs | None = None) -> Iterator[str]:
    """Yield the faults of all forms of a header, each with its form, and how it was sent."""
    for n, (form, change, value) in enumerate(rows(header)):
        serializer, protocol = WAYS[n % len(WAYS)]
        is_held = n % 5 == 2
        bench.change = partial(_changed_by, change, header, value)
        is_refused = (header, form, value) == (DELIVERIES_HEADER, "forged", TOO_OFTEN)
        fault = fault_of(
            bench, serializer, protocol,
            is_held=is_held, is_refused=is_refused, others=form == "moved",
        )  # fmt: skip
        if fault:
            yield (
                f"{header} {form}: {_shown(value)}, {protocol=} "
                f"{serializer=} {bench.task.lock_lifetime} {is_held=}: {fault}"
            )
        if tried:
            tried.tried += 1


def _pair(header: str, lifetime: Lifetime) -> Any:
    """Return a header and a lifetime; lifetimes differ in what they make of a reservation."""
    is_fast = header == HEADER or lifetime is Lifetime.WHILE_EXECUTING
    return pytest.param(header, lifetime, marks=[] if is_fast else [pytest.mark.long])


@pytest.mark.filterwarnings("ignore:Exception raised outside body")  # by Celery
@pytest.mark.parametrize(
    ("header", "lifetime"), [_pair(*pair) for pair in product(FORGED, Lifetime)]
)
def test_a_header_in_any_form_blocks_no_key(
    bench: Bench, tried: HostileInputs, header: str
) -> None:
    assert list(faults(bench, header, tried)) == []


# --- the control: a check that is broken is found -------------------------------------------------


def _raw_count(headers: Any, name: str) -> Any:
    return headers.get(name, 0)


def _any_count(headers: Any, name: str) -> Any:
    return TOO_OFTEN * (name in headers)


def _no_take_over(_attempt: object, held: LockHeld) -> None:
    raise held


def _raw_nonce(headers: Any, header: str = PUBLICATION_HEADER) -> Any:
    return (headers or {}).get(header)


@pytest.mark.parametrize(
    ("header", "lifetime", "room", "check", "broken"),
    [
        (HEADER, Lifetime.WHILE_EXECUTING, reservation, "is_reservation", lambda owner: True),
        (HEADER, Lifetime.UNTIL_EXECUTED, reservation, "_is_valid", lambda *_: True),
        (HEADER, Lifetime.UNTIL_EXECUTING, entry, "_is_held_for", lambda *_: False),
        (
            HEADER,
            Lifetime.UNTIL_AND_WHILE_EXECUTING,
            Message,
            "release_left_slot",
            lambda message: None,
        ),
        (PUBLICATION_HEADER, Lifetime.WHILE_EXECUTING, known, "nonce_in", _raw_nonce),
        (DELIVERIES_HEADER, Lifetime.WHILE_EXECUTING, delivery, "_count_in", _raw_count),
        (DELIVERIES_HEADER, Lifetime.WHILE_EXECUTING, delivery, "_count_in", _any_count),
        (HEADER, Lifetime.UNTIL_EXPIRED, entry, "_take_over_period", _no_take_over),
    ],
)
@pytest.mark.filterwarnings("ignore:Exception raised outside body")  # by Celery
def test_a_broken_check_is_found(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, header: str, room: Any, check: str, broken: Any
) -> None:
    monkeypatch.setattr(room, check, broken)
    assert next(faults(bench, header), None)


def test_no_header_is_forgotten() -> None:
    ours = {value for name, value in vars(known).items() if name.endswith("_HEADER")}
    assert {name for name in ours if name.startswith("redlock_")} | {SERIALIZER, ORIGIN} == {
        *FORGED
    }
