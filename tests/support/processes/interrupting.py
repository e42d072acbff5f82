"""A process whose blocks are interrupted at random moments.

    python -m tests.support.processes.interrupting HOW COUNT URL...

HOW is signals, threads or greenlets. It says how many were struck and how many were not, and stays,
so that its keeper can do its work, until its standard input ends; then it says what is kept still.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

LONGEST_S = 0.004


class StruckError(Exception):
    """Raised from outside."""


def interrupt_by_signals(hold: Callable[[], None]) -> bool:
    def strike(*_: object) -> None:
        raise StruckError

    try:
        signal.signal(signal.SIGALRM, strike)
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, LONGEST_S))
        hold()
        signal.setitimer(signal.ITIMER_REAL, 0)
        # One that was sent before may be on its way yet, by a thread that waits for its turn.
        signal.signal(signal.SIGALRM, lambda *_: None)
    except StruckError:
        return True
    return False


def interrupt_in_a_thread(hold: Callable[[], None]) -> bool:
    struck: list[bool] = []
    is_over, may_end = threading.Event(), threading.Event()

    def run() -> None:
        try:
            try:
                hold()
            finally:
                is_over.set()
        except StruckError:
            struck.append(True)
        # Its number must not be another thread's yet.
        while not may_end.is_set():
            with contextlib.suppress(StruckError):
                may_end.wait()

    thread = threading.Thread(target=run)
    thread.start()
    is_over.wait(random.uniform(0, LONGEST_S))
    if not is_over.is_set():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident or 0), ctypes.py_object(StruckError)
        )
    may_end.set()
    thread.join()
    return bool(struck)


def interrupt_a_greenlet(hold: Callable[[], None]) -> bool:
    import gevent  # noqa: PLC0415

    greenlet = gevent.spawn(hold)
    gevent.sleep(random.uniform(0, LONGEST_S))
    greenlet.kill()
    return not greenlet.successful() or isinstance(greenlet.value, gevent.GreenletExit)


WAYS: dict[str, Callable[[Callable[[], None]], bool]] = {
    "signals": interrupt_by_signals,
    "threads": interrupt_in_a_thread,
    "greenlets": interrupt_a_greenlet,
}


def tell(*numbers: int) -> None:
    """Say it to the test."""
    sys.stdout.write(" ".join(map(str, numbers)) + "\n")
    sys.stdout.flush()


def main(how: str, count: int, urls: list[str]) -> None:
    """Interrupt blocks: `count`, or more until a tenth of that were struck."""
    from celery_redlock.redlock import QuorumUnavailable, Redlock  # noqa: PLC0415

    redlocks: list[Any] = []
    struck = 0
    for number in itertools.count():
        # On a slow machine many a block is over, or has yet to begin, when it is to be struck.
        if number >= count and struck > count / 10:
            break
        if number % 100 == 0:  # whose threads and connections are yet to be made
            redlocks.append(Redlock(urls, restart_guard=False, node_timeout=2.0))
        redlock = redlocks[-1]

        def hold(redlock: Any = redlock, number: int = number) -> None:
            # A machine that stands still must not be taken for nodes that do not answer.
            with contextlib.suppress(QuorumUnavailable), redlock.lock(f"k{number}", ttl=60):
                time.sleep(0)

        struck += WAYS[how](hold)
    tell(struck, number - struck)
    sys.stdin.read()
    tell(sum(len(redlock.keeper.kept()) for redlock in redlocks))


if __name__ == "__main__":
    if sys.argv[1] == "greenlets":
        from gevent import monkey

        monkey.patch_all()
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
