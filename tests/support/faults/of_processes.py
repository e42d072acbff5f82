"""Faults of processes: stopped for longer than a lease lasts, and killed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress

from tests.support.eventually import eventually
from tests.support.processes.workers import Worker

from .nemesis import Heal, Nemesis
from .proxy import Proxy

_ASKED_S = 3.0
Pids = Callable[[], Sequence[int]]


def process_nemeses(
    what: str, pids: Pids, deaths: MutableMapping[int, float], *, stopped_s: float
) -> list[Nemesis]:
    """Return what happens to one of these processes: stopped, killed, killed while stopped.

    Args:
        what: What the processes are.
        pids: Those that live now.
        deaths: Takes down when which process was killed, monotonic seconds.
        stopped_s: For how long one stands still at least: longer than a lease lasts.
    """

    def stop(chance: random.Random) -> Heal:
        if not (living := pids()):
            return lambda: None
        victim = chance.choice(living)
        _send(victim, signal.SIGSTOP)
        return lambda: _send(victim, signal.SIGCONT)

    def kill(chance: random.Random) -> Heal:
        if living := pids():
            _kill(chance.choice(living), deaths)
        return lambda: None

    def kill_stopped(chance: random.Random) -> Heal:
        if not (living := pids()):
            return lambda: None
        victim = chance.choice(living)
        _send(victim, signal.SIGSTOP)
        return lambda: _kill(victim, deaths)

    return [
        Nemesis(f"{what}-stopped", stop, seconds=stopped_s),
        Nemesis(f"{what}-killed", kill),
        Nemesis(f"{what}-stopped-then-killed", kill_stopped),
    ]


def worker_nemeses(
    workers: Callable[[], Sequence[Worker]],
    deaths: MutableMapping[int, float],
    *,
    stopped_s: float,
) -> list[Nemesis]:
    """Return the faults of workers: pool processes, main processes, whole machines.

    Args:
        workers: Those that run now.
        deaths: Takes down when which process was killed, monotonic seconds.
        stopped_s: For how long one stands still at least: longer than a lease lasts.
    """

    def machine_stops(chance: random.Random) -> Heal:
        worker = chance.choice(workers())
        worker.pause()

        def resume() -> None:
            with suppress(ProcessLookupError):
                worker.resume()

        return resume

    def machine_dies(chance: random.Random) -> Heal:
        worker = chance.choice(workers())
        pids = [worker.pid, *worker.children()]
        died_at = time.monotonic()
        for pid in pids:
            deaths.setdefault(pid, died_at)
        worker.kill_all()
        return lambda: None

    def main_pids() -> list[int]:
        return [worker.pid for worker in workers()]

    def child_pids() -> list[int]:
        return [pid for worker in workers() for pid in worker.children()]

    return [
        *process_nemeses("child", child_pids, deaths, stopped_s=stopped_s),
        *process_nemeses("main", main_pids, deaths, stopped_s=stopped_s),
        Nemesis("worker-stopped", machine_stops, seconds=stopped_s),
        Nemesis("worker-killed", machine_dies),
    ]


def replica_nemeses(what: str, replicas: Sequence[Worker], *, stopped_s: float) -> list[Nemesis]:
    """Return what happens to one of several replicas: stopped, killed and started again.

    Args:
        what: What they are.
        replicas: They run.
        stopped_s: For how long one stands still at least.
    """

    def stop(chance: random.Random) -> Heal:
        replica = chance.choice(replicas)
        replica.pause()
        return replica.resume

    def kill(chance: random.Random) -> Heal:
        replica = chance.choice(replicas)
        replica.kill_all()
        return replica.start

    return [
        Nemesis(f"{what}-stopped", stop, seconds=stopped_s),
        Nemesis(f"{what}-killed", kill),
    ]


def killed_acquiring(
    view: Sequence[Proxy],
    workers: Callable[[], Sequence[Worker]],
    deaths: MutableMapping[int, float],
) -> Nemesis:
    """Return the death of pool processes just as nodes grant what was asked for, as out of memory.

    Args:
        view: The way to the nodes of workers with such processes, and of others.
        workers: Those that run now.
        deaths: Takes down when which process was killed, monotonic seconds.
    """

    def strike(_: random.Random) -> Heal:
        before = [proxy.requests.reads for proxy in view]
        for proxy in view:
            proxy.replies.holds = True

        def are_asked() -> bool:
            asked = [
                proxy.requests.reads > reads for proxy, reads in zip(view, before, strict=True)
            ]
            return 2 * sum(asked) > len(view)

        with suppress(AssertionError):  # nobody asks: the broker is away, too
            eventually(are_asked, within=_ASKED_S)
        for worker in workers():
            for pid in worker.children():
                _kill(pid, deaths)

        def heal() -> None:
            for proxy in view:
                proxy.replies.holds = False

        return heal

    return Nemesis("children-killed-acquiring", strike)


def _kill(pid: int, deaths: MutableMapping[int, float]) -> None:
    deaths.setdefault(pid, time.monotonic())
    _send(pid, signal.SIGKILL)


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it has ended by itself
        os.kill(pid, number)
