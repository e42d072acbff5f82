"""Calls of few keys that conflict while their broker has faults, and the judge of what came of it.

The app is `tests/integration/apps/conflicting.py`.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.support.eventually import eventually
from tests.support.faults.proxy import Proxy
from tests.support.processes.brokers import Broker, RedisBroker
from tests.support.processes.crowd import crowd
from tests.support.processes.inside import Note
from tests.support.processes.project import Project
from tests.support.processes.workers import Worker

from .runs import Run, disorders, runs_in

if TYPE_CHECKING:
    from typing_extensions import Self

PROCESSES = 2
_IN_FLIGHT_S = 0.3
"""Longer than a reply of a server takes that is given no more to do."""
_QUIET_S = 2.0
_LOOK_S = 0.05


# ---- the judge


@dataclass(frozen=True, slots=True)
class Account:
    """What became of a storm's calls, by what publishers and tasks noted.

    Attributes:
        published: Calls that the broker confirmed.
        ran: Calls whose body came to its end.
        skipped: Calls that ended without running, as their policy says.
        lost: Late-acked calls that neither ran nor were skipped.
        vanished: The same of calls that were acked early: a kill may explain it.
        twice: Late-acked calls that ran to the end more often than a kill explains.
        again: Others that ran more than once: acked early, as what is redelivered does; or a copy
            of one that had run, for whom others were turned away that relied on one more run.
        unended: Runs that neither ended nor were killed.
        disordered: Pairs of one key's runs that overlap, or whose tokens do not grow.
        strangers: Calls that ran and that nobody made.
        conflicts: How many conflicts became what.
    """

    published: set[str]
    ran: set[str]
    skipped: set[str]
    lost: list[str]
    vanished: list[str]
    twice: list[str]
    again: list[str]
    unended: list[Run]
    disordered: list[tuple[Run, Run]]
    strangers: set[str]
    conflicts: Mapping[str, int]


def account_of(notes: Iterable[Note], deaths: Mapping[int, float]) -> Account:
    """Return what became of all calls; `deaths` says when which process was killed."""
    notes = list(notes)
    made, published, skipped, dropped = {}, set(), set(), set()
    in_line: set[str] = set()
    conflicts: Counter[str] = Counter()
    for note in notes:
        match note.event:
            case "call":
                made[note.more["call"]] = note.more["task"]
            case "published":
                published.add(note.more["call"])
            case "dropped":
                dropped.add(note.more["call"])
            case "conflict":
                conflicts[note.more["becomes"]] += 1
                if note.more["becomes"] == "skip":
                    skipped.add(note.more["call"])
                elif note.more["becomes"] == "coalesce":
                    in_line.add(note.more["call"])
    runs = runs_in(notes, deaths)
    ran = {str(run.task_id) for run in runs if run.is_whole}
    missing = sorted(published - ran - skipped - dropped)
    more = _run_more_than_once(notes, deaths)
    return Account(
        published=published,
        ran=ran,
        skipped=skipped - ran,
        lost=[call for call in missing if _is_late(made[call])],
        vanished=[call for call in missing if not _is_late(made[call])],
        twice=[call for call in more if _is_late(made.get(call, "")) and call not in in_line],
        again=[call for call in more if not _is_late(made.get(call, "")) or call in in_line],
        unended=[run for run in runs if run.ended == math.inf],
        disordered=disorders(runs),
        strangers={str(run.task_id) for run in runs} - made.keys(),
        conflicts=conflicts,
    )


def _is_late(task: str) -> bool:
    return task.endswith("-late")


def _run_more_than_once(notes: list[Note], deaths: Mapping[int, float]) -> list[str]:
    """Return the calls with more than one end, without those after which their process died.

    It died before it could say so to anybody if it did nothing more: then it is run again.
    """
    last = {note.pid: note for note in notes if note.event in ("begin", "end")}
    ends: Counter[str] = Counter()
    for note in notes:
        died_with_it = note.pid in deaths and last.get(note.pid) is note
        if note.event == "end" and not died_with_it:
            ends[str(note.task_id)] += 1
    return sorted(call for call, count in ends.items() if count > 1)


# ---- faults


class Supervisor(threading.Thread):
    """Keeps as many workers running as there are, as a service manager does; stopped by `with`.

    Args:
        project: Its workers run.
        options: Of the workers that it starts.

    Attributes:
        deaths: When which process of the workers died: it was seen last, or has been killed.
        ended: How many workers have ended, be it that they were killed or by themselves.
        crashes: How many of them by themselves.
    """

    def __init__(self, project: Project, **options: Any) -> None:
        super().__init__(name="supervisor", daemon=True)
        self.deaths: dict[int, float] = {}
        self.ended = self.crashes = 0
        self._project, self._options = project, options
        self._running = [worker for worker in project.workers if worker.is_running]
        self._killed: set[Worker] = set()
        self._seen: dict[int, float] = {}
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join()

    def kill_one(self) -> None:
        """Kill one worker with its pool, as a machine that is lost."""
        victim = next(worker for worker in self._running if worker.is_running)
        self._killed.add(victim)
        pids = [victim.pid, *victim.children()]
        victim.kill_all()
        self.deaths |= dict.fromkeys(pids, time.monotonic())

    def run(self) -> None:
        """Look after them."""
        while not self._is_over.wait(_LOOK_S):
            for worker in [worker for worker in self._running if not worker.is_running]:
                self._running.remove(worker)
                self.ended += 1
                self.crashes += worker not in self._killed
                worker.kill_all()  # what it may have left
                self._running.append(self._project.new_worker(**self._options))
                self._running[-1].start()
            self._look()

    def _look(self) -> None:
        now = time.monotonic()
        alive = {pid for worker in self._running for pid in [worker.pid, *worker.children()]}
        for pid in self._seen.keys() - alive - self.deaths.keys():
            self.deaths[pid] = self._seen[pid]
        self._seen |= dict.fromkeys(alive, now)


class Faults(threading.Thread):
    """What is done to a broker or a worker, every so often, while it is entered.

    Args:
        strike: One fault.
        every: Seconds between one and the next.

    Attributes:
        struck: How often.
        error: What ended it before its time.
    """

    def __init__(self, strike: Callable[[], None], every: float) -> None:
        super().__init__(name="faults", daemon=True)
        self.struck = 0
        self.error: Exception | None = None
        self._strike, self._every = strike, every
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join()

    def run(self) -> None:
        """Strike."""
        while not self._is_over.wait(self._every):
            try:
                self._strike()
            except Exception as error:  # noqa: BLE001 - told to whoever waits
                self.error = error
                return
            self.struck += 1


def cut(broker: Broker, proxy: Proxy) -> None:
    """Break every connection to the broker."""
    _let_replies_arrive(broker, proxy)
    proxy.reset()
    proxy.requests.holds = False


def restart(broker: Broker, proxy: Proxy) -> None:
    """Restart the broker."""
    _let_replies_arrive(broker, proxy)
    broker.restart()
    proxy.reset()
    proxy.requests.holds = False


def _let_replies_arrive(broker: Broker, proxy: Proxy) -> None:
    # What a Redis server has given away and nobody got is lost, with or without a lock.
    if isinstance(broker, RedisBroker):
        proxy.requests.holds = True
        time.sleep(_IN_FLIGHT_S)


# ---- the storm


def conflict_storm(
    project: Project,
    broker: Broker,
    supervisor: Supervisor,
    strike: Callable[[], None],
    *,
    every: float,
    seconds: float,
    within: float,
) -> str:
    """Publish calls while `strike` happens, let all come to an end, and check what came of them.

    Args:
        project: Its workers run.
        broker: Its own.
        supervisor: It is entered.
        strike: One fault.
        every: Seconds between one and the next.
        seconds: For how long calls are published.
        within: How long what is left may take, seconds.

    Returns:
        What there was of what, for people.
    """
    storm, known = uuid.uuid4().hex, len(project.notes())
    faults, ended, crashes = Faults(strike, every), supervisor.ended, supervisor.crashes
    died = len(supervisor.deaths)
    with faults:
        crowd(project, "publish", storm, seconds, 0.1, processes=PROCESSES, within=seconds + within)
    assert faults.error is None, faults.error
    assert faults.struck, "nothing was struck"
    is_settled = _settles(project, broker, within)

    account = account_of(project.notes()[known:], supervisor.deaths)
    ended, crashes = supervisor.ended - ended, supervisor.crashes - crashes
    died = len(supervisor.deaths) - died
    said = (
        f"{len(account.published)} calls, {faults.struck} faults, {crashes} crashes, "
        f"{len(account.ran)} ran, {len(account.skipped)} skipped, {len(account.lost)} lost, "
        f"{len(account.vanished)} vanished, {len(account.again)} ran again, "
        f"{dict(account.conflicts)}"
    )
    assert not account.strangers, account.strangers
    assert not account.disordered, f"overlap, or tokens do not grow: {account.disordered[:3]}"
    assert not account.unended, f"neither ended nor killed: {account.unended}"
    # What a Redis server had just given away is lost with the worker that did not note it yet.
    may_be_lost = ended if isinstance(broker, RedisBroker) else 0
    assert len(account.lost) <= may_be_lost, f"{account.lost}; {said}"
    # What each process was about to run was acknowledged before.
    assert len(account.vanished) <= died + may_be_lost, f"{account.vanished}; {said}"
    assert not account.twice, f"{account.twice}; {said}"
    assert is_settled, (
        f"{broker.left([project.queue])} messages are left, {project.holds()}; {said}"
    )
    assert len(account.conflicts) > 1, f"hardly anybody met: {said}"
    return said


def _settles(project: Project, broker: Broker, within: float) -> bool:
    """Tell whether all comes to an end: no message is left, nothing is noted, nothing is locked."""
    notes, quiet_since = -1, time.monotonic()

    def is_settled() -> bool:
        nonlocal notes, quiet_since
        before, notes = notes, len(project.notes())
        if notes != before:
            quiet_since = time.monotonic()
        if time.monotonic() - quiet_since < _QUIET_S:
            return False
        if isinstance(broker, RedisBroker):
            project.redeliver_what_is_late()
        if project.holds() or broker.left([project.queue]):
            return False
        # To ask RabbitMQ takes seconds: what began meanwhile is no message any more.
        return len(project.notes()) == notes

    with suppress(AssertionError):  # the account tells more
        eventually(is_settled, within=within)
        return True
    return False
