"""A running body is interrupted from outside, and nothing else is.

Each script has a process of its own: some would never end, or change how it handles signals.
"""

from __future__ import annotations

import copy
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest

from celery_redlock.pools.interrupt import _InGreenlet, _reporting
from celery_redlock.redlock.errors import LeaseLost

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
    third.trigger(LeaseLost("k", "why"))
    for call in calls:
        call()
    assert [(type(error), error.args) for error in thrown] == [
        (LeaseLost, LeaseLost().args), (LeaseLost, ("k", "why"))
    ]  # fmt: skip
