"""A running body is interrupted from outside, and nothing else is.

Each script has a process of its own: some would never end, or change how it handles signals.
"""

from __future__ import annotations

import copy
import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from celery_redlock.pools import interrupt
from celery_redlock.pools.interrupt import _InGreenlet, _InThread, _reporting
from celery_redlock.redlock.errors import LeaseLost
from celery_redlock.redlock.threads import native

# Bodies are functions: in Python 3.13.0 the last bytecode of a loop is outside the `try` around it.
IN_THREAD = """
import sys, threading
from celery_redlock.pools import interrupt
from celery_redlock.redlock.errors import LeaseLost

ways = []

def body():
    while "triggered" in sys.argv:
        pass

def task():
    ways.append(interrupt.new_interrupt())
    try:
        body()
    except LeaseLost:
        print("interrupted")
    ways[0].disarm()
    sys.settrace(lambda *_: None)
    (lambda: None)()
    sys.settrace(None)
    print("ended")

thread = threading.Thread(target=task)
thread.start()
while not ways:
    pass
if "triggered" in sys.argv:
    ways[0].trigger()
thread.join()
"""
ASTRAY = """
import ctypes, sys, threading
from celery_redlock.pools import interrupt
from celery_redlock.redlock.errors import LeaseLost

sys.unraisablehook = lambda _: None
api, ways, calls = ctypes.pythonapi, [], []

class Api:
    # Up to Python 3.11 a thread that has not run yet has the number of the one that starts it.
    def PyThreadState_SetAsyncExc(self, ident, exception):
        calls.append(exception)
        if "raised" in sys.argv and len(calls) == 1:
            ident = ctypes.c_ulong(bystander.ident)
        elif "pending" in sys.argv and len(calls) < 4:
            return
        api.PyThreadState_SetAsyncExc(ident, exception)

def bystand():
    try:
        while True:
            pass
    except LeaseLost:
        sys.stdout.write("bystander struck\\n")

def body():
    while "raised" in sys.argv or not calls:
        pass

def task():
    ways.append(interrupt.new_interrupt())
    try:
        body()
    except LeaseLost:
        sys.stdout.write("interrupted\\n")
    ways[0].disarm()
    sys.stdout.write("ended\\n")

ctypes.pythonapi = Api()
bystander = threading.Thread(target=bystand, daemon=True)
bystander.start()
thread = threading.Thread(target=task)
thread.start()
while not ways:
    pass
ways[0].trigger()
thread.join()
if "raised" in sys.argv:
    bystander.join()
"""
IN_MAIN_THREAD = """
import billiard.common, signal, sys, threading, time
from celery_redlock.pools import interrupt
from celery_redlock.redlock.errors import LeaseLost

assert interrupt.new_interrupt() is None

def on_signal():
    if "ours" in sys.argv:
        raise LeaseLost("k")
    return False

signal.signal(interrupt.SIGNAL, lambda *_: print("passed on"))
interrupt.install_signal_handler(on_signal)
# As a pool process does after `worker_process_init`, with brokers that have no event loop.
billiard.common.reset_signals(full=True)
way = interrupt.new_interrupt()
try:
    thread = threading.Thread(target=way.trigger)
    thread.start()
    thread.join()
    if "ours" in sys.argv:
        time.sleep(60)
except LeaseLost:
    print("interrupted")
"""
BEFORE_ANY_HANDLER = """
import os
from celery_redlock.pools import interrupt

os.kill(os.getpid(), interrupt.SIGNAL)
print("alive")
"""
IN_GEVENT = """
from gevent import monkey
monkey.patch_all()
import gevent, sys
from celery_redlock.pools import interrupt
from celery_redlock.redlock.errors import LeaseLost
"""
IN_EVENTLET = """
import warnings
warnings.simplefilter("ignore")
import eventlet
eventlet.monkey_patch()
import sys
from celery_redlock.pools import interrupt
from celery_redlock.redlock.errors import LeaseLost
"""
GREEN_TASK = """
import threading, time
ways = []

def task():
    ways.append(interrupt.new_interrupt())
    try:
        if "disarmed" in sys.argv:
            ways[0].disarm()
        else:
            time.sleep(60)
        time.sleep(0.01)
        print("not interrupted")
    except LeaseLost:
        print("interrupted")

thread = threading.Thread(target=task)
thread.start()
while not ways:
    time.sleep(0)
ways[0].trigger()
ways[0].trigger()
thread.join()
"""


def run(script: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True
    ).stdout.splitlines()


def test_a_disarmed_thread_can_be_traced() -> None:
    assert run(IN_THREAD) == ["ended"]


def test_a_thread_that_was_interrupted_can_be_traced() -> None:
    assert run(IN_THREAD, "triggered") == ["interrupted", "ended"]


def test_an_interrupt_raised_in_another_thread_is_repeated() -> None:
    # The two threads print in any order.
    assert sorted(run(ASTRAY, "raised")) == ["bystander struck", "ended", "interrupted"]


def test_a_body_ends_though_its_interrupt_went_astray() -> None:
    assert run(ASTRAY, "pending") == ["ended"]


def test_the_exception_of_an_interrupt_is_stored_as_lease_lost() -> None:
    raised = _reporting(lambda: None, LeaseLost())("k", "why")
    stored = copy.copy(raised)  # as pickle does
    assert (type(stored), stored.args) == (LeaseLost, ("k", "why"))
    assert (
        f"{type(raised).__module__}.{type(raised).__qualname__}"
        == f"{LeaseLost.__module__}.LeaseLost"
    )


def test_an_interrupt_with_an_error_of_its_own_raises_that() -> None:
    raised = _reporting(lambda: None, LeaseLost("k", "why"))()
    assert raised.args == ("k", "why")
    stored = copy.copy(raised)
    assert (type(stored), stored.args) == (LeaseLost, ("k", "why"))


def test_a_main_thread_is_interrupted_by_the_signal() -> None:
    assert run(IN_MAIN_THREAD, "ours") == ["interrupted"]


def test_a_signal_before_there_is_a_handler_is_ignored() -> None:
    assert run(BEFORE_ANY_HANDLER) == ["alive"]


def test_a_signal_that_is_not_ours_is_passed_on() -> None:
    assert run(IN_MAIN_THREAD) == ["passed on"]


@pytest.mark.parametrize("hub", [IN_GEVENT, IN_EVENTLET])
def test_a_body_in_a_greenlet_is_interrupted_once(hub: str) -> None:
    assert run(hub + GREEN_TASK) == ["interrupted"]


@pytest.mark.parametrize("hub", [IN_GEVENT, IN_EVENTLET])
def test_a_disarmed_greenlet_goes_on(hub: str) -> None:
    assert run(hub + GREEN_TASK, "disarmed") == ["not interrupted"]


def test_a_greenlet_disarmed_before_its_hub_ran_goes_on() -> None:
    thrown: list[BaseException] = []
    calls: list[Callable[[], None]] = []

    class Greenlet:
        def throw(self, error: BaseException) -> None:
            thrown.append(error)

    first, second, third = (_InGreenlet(Greenlet(), calls.append) for _ in range(3))
    first.trigger()
    first.disarm()
    second.trigger()
    for _ in range(2):
        third.trigger(LeaseLost("k", "why"))
    for call in calls:
        call()
    assert [(type(error), error.args) for error in thrown] == [
        (LeaseLost, LeaseLost().args), (LeaseLost, ("k", "why"))
    ]  # fmt: skip


# ---- in this process


def in_a_thread(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


class Raising:
    """Stands in for the interpreter's way to raise an exception in a thread: `raises_at` calls."""

    def __init__(self, raises_at: int = 0) -> None:
        self.kinds: list[Any] = []
        self._raises_at = raises_at

    def PyThreadState_SetAsyncExc(self, ident: Any, exception: Any) -> None:  # noqa: N802
        assert ident.value == threading.get_ident()
        self.kinds.append(exception.value)
        if len(self.kinds) == self._raises_at:
            raise exception.value


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> Raising:
    monkeypatch.setattr(ctypes, "pythonapi", raising := Raising())
    return raising


@pytest.mark.parametrize("error", [None, LeaseLost("k", "why")])
def test_an_interrupt_is_repeated_until_it_is_raised(
    raising: Raising, error: LeaseLost | None
) -> None:
    way = _InThread()
    for _ in range(2):
        way.trigger(error)
    assert raising.kinds == raising.kinds[:1] * 2
    kind = raising.kinds[0]
    assert kind().args == (error or LeaseLost()).args
    way.trigger(error)
    way.disarm()
    assert len(raising.kinds) == 2


def test_an_interrupt_that_struck_another_thread_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[Any] = []
    api = SimpleNamespace(PyThreadState_SetAsyncExc=lambda *call: calls.append(call))
    monkeypatch.setattr(ctypes, "pythonapi", api)
    way = _InThread()
    way.trigger()
    kind = calls[0][1].value
    in_a_thread(kind)
    assert [(ident.value, exception.value) for ident, exception in calls] == [
        (threading.get_ident(), kind)
    ] * 2


def test_a_body_that_was_never_interrupted_ends_without_one(raising: Raising) -> None:
    way = _InThread()
    way.disarm()
    way.trigger()
    assert raising.kinds == []


def test_a_pending_interrupt_is_raised_before_the_body_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ctypes, "pythonapi", raising := Raising(raises_at=4))
    way = _InThread()
    way.trigger()
    way.disarm()
    assert len(raising.kinds) == 4


@pytest.fixture
def handled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Numbers of the signals that reach the handler which was installed before."""
    numbers: list[int] = []
    monkeypatch.setattr(interrupt, "_is_installed", False)
    before = signal.signal(
        interrupt.SIGNAL, lambda number, frame: numbers.append(number if frame else 0)
    )
    yield numbers
    signal.signal(interrupt.SIGNAL, before)


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_body_in_the_main_thread_is_interrupted_by_a_signal(
    handled: list[int], *, is_ours: bool
) -> None:
    heard: list[str] = []
    interrupt.signal_main_thread()
    assert interrupt.new_interrupt() is None
    assert handled == [], "there is no handler yet"

    def on_signal() -> bool:
        heard.append("on_signal")
        return is_ours

    interrupt.install_signal_handler(on_signal)
    way = interrupt.new_interrupt()
    assert way
    in_a_thread(way.trigger)
    way.disarm()
    assert heard == ["on_signal"]
    assert handled == ([] if is_ours else [interrupt.SIGNAL])


def test_a_signal_that_nobody_handled_before_is_ignored(handled: list[int]) -> None:
    signal.signal(interrupt.SIGNAL, signal.SIG_DFL)
    interrupt.install_signal_handler(lambda: False)
    os.kill(os.getpid(), interrupt.SIGNAL)


def test_no_handler_is_installed_outside_of_the_main_thread(
    handled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_a_thread(lambda: interrupt.install_signal_handler(lambda: True))
    with monkeypatch.context() as patched:
        patched.setattr(interrupt, "SIGNAL", None)  # as on Windows
        interrupt.install_signal_handler(lambda: True)
        interrupt.signal_main_thread()
    assert interrupt.new_interrupt() is None
    assert signal.getsignal(interrupt.SIGNAL) not in (None, signal.SIG_DFL)


def test_a_body_in_another_thread_is_interrupted_there() -> None:
    ways: list[Any] = []
    in_a_thread(lambda: ways.append(interrupt.new_interrupt()))
    assert isinstance(ways[0], _InThread)


@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_a_body_in_a_greenlet_is_interrupted_by_its_hub(
    monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    thrown: list[BaseException] = []
    greenlet = SimpleNamespace(throw=thrown.append)
    hub = SimpleNamespace(
        loop=SimpleNamespace(run_callback=lambda function: function()),
        schedule_call_global=lambda seconds, function: function() if seconds == 0 else None,
    )
    hubs = SimpleNamespace(get_hub=lambda: hub)
    current = SimpleNamespace(getcurrent=lambda: greenlet)
    of_library: dict[str, Any] = {
        "gevent": SimpleNamespace(get_hub=hubs.get_hub, getcurrent=current.getcurrent),
        "gevent.monkey": None,
    }
    if library == "eventlet":
        of_library = {
            "eventlet": SimpleNamespace(hubs=hubs),
            "eventlet.hubs": hubs,
            "eventlet.greenthread": current,
        }
    for name in [name for name in sys.modules if name.partition(".")[0] == "gevent"]:
        monkeypatch.delitem(sys.modules, name)
    for name, module in of_library.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(native, "is_green", lambda: True)
    way = interrupt.new_interrupt()
    assert way
    way.trigger(LeaseLost("k", "why"))
    assert [error.args for error in thrown] == [("k", "why")]


def test_the_exceptions_that_end_greenlets_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    kill = type("GreenletExit", (BaseException,), {})
    timeout = type("Timeout", (BaseException,), {})
    monkeypatch.setitem(sys.modules, "greenlet", SimpleNamespace(GreenletExit=kill))
    monkeypatch.setitem(sys.modules, "gevent", SimpleNamespace(Timeout=timeout))
    found = [
        (interrupt.is_greenlet_exit(error), interrupt.is_greenlet_timeout(error))
        for error in (kill(), timeout(), ValueError())
    ]
    assert found == [(True, False), (False, True), (False, False)]
    monkeypatch.delitem(sys.modules, "greenlet")
    monkeypatch.delitem(sys.modules, "gevent")
    assert not interrupt.is_greenlet_exit(kill())
    assert not interrupt.is_greenlet_timeout(timeout())
