"""Strikes reach the code that a handler can interrupt, and no other."""

from __future__ import annotations

import gc
import random
import signal
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults.strikes import Struck, strikes
from tests.support.processes.interrupting import interrupt_by_signals

HERE = str(Path(__file__).parent)


class Closing:
    """Object with a finalizer that goes by another name, and calls a function."""

    def __init__(self) -> None:
        self.me = self

    def close(self) -> None:
        note()

    __del__ = close


def note() -> None:
    pass


def collect() -> None:
    gc.collect()


def close() -> None:
    note()


@pytest.mark.parametrize("opcodes", [False, True])
def test_a_finalizer_is_not_struck_by_whatever_name(opcodes: bool) -> None:
    def call(at: int) -> None:
        Closing()
        collect()

    count = 0
    for _, raised, where in strikes(call, opcodes=opcodes, folder=HERE):
        assert type(raised) is Struck, where
        assert " in close" not in where
        assert " in note" not in where
        count += 1
    assert count > 4


class Held:
    """Object that a call has, and that handles an error."""

    def handle(self) -> None:
        try:
            int("x")
        except ValueError as error:  # noqa: F841 - a variable of the frame that it refers to
            try:
                self.handle_another()
            finally:
                note()

    def handle_another(self) -> None:
        try:
            int("y")
        except ValueError as error:  # noqa: F841
            note()


def test_what_a_struck_call_had_is_freed_with_it() -> None:
    """A connection is then closed by its own finalizer, not by those of what it consists of."""
    left: list[weakref.ref[Held]] = []

    def call(at: int) -> None:
        held = Held()
        left.append(weakref.ref(held))
        held.handle()

    gc.disable()
    try:
        for _, raised, where in strikes(call, folder=HERE):
            assert isinstance(raised, Struck), where
            assert not any(one() for one in left), where
    finally:
        gc.enable()
    assert len(left) > 4


def test_a_function_that_a_caller_calls_is_struck() -> None:
    struck = [where for _, _, where in strikes(lambda at: close(), folder=HERE)]
    assert any(" in close" in where for where in struck)
    assert any(" in note" in where for where in struck)


@pytest.fixture
def _alarms_are_held_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(random, "uniform", lambda *_: 3600.0)
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("_alarms_are_held_up")
def test_a_signal_that_comes_late_strikes_nothing() -> None:
    def hold() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        # To this thread: another one of the process would take it at once.
        signal.pthread_kill(threading.get_ident(), signal.SIGALRM)

    assert not interrupt_by_signals(hold)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
