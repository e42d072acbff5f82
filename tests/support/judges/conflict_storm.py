"""Calls of few keys that conflict while their broker has faults, and the judge of what came of it.

The app is `tests/integration/apps/conflicting.py`.
"""

from __future__ import annotations

import math
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from tests.support.eventually import eventually
from tests.support.faults.nemesis import Nemesis, Strikes, alone
from tests.support.processes.brokers import FORWARD_AGAIN_MS, Broker, RedisBroker
from tests.support.processes.crowd import crowd
from tests.support.processes.inside import Note
from tests.support.processes.project import Project
from tests.support.processes.supervisor import Supervisor

from .runs import Run, disorders, runs_in

PROCESSES = 2
_FAULT_S = 0.3
_QUIET_S = 2.0
_MOST_WAITS = 10
_MOST_ROUNDS = 10


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
                conflicts[note.more["outcome"]] += 1
                if note.more["outcome"] == "skip":
                    skipped.add(note.more["call"])
                elif note.more["outcome"] == "coalesce":
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


# ---- the storm


def conflict_storm(
    project: Project,
    broker: Broker,
    supervisor: Supervisor,
    nemesis: Nemesis,
    *,
    every: float,
    seconds: float,
    within: float,
) -> str:
    """Publish calls while a fault strikes, let all come to an end, and check what came of them.

    Args:
        project: Its workers run.
        broker: Its own.
        supervisor: It is entered.
        nemesis: The fault.
        every: Seconds between one and the next.
        seconds: For how long calls are published; again if hardly any have met.
        within: How long what is left may take, seconds.

    Returns:
        What there was of what, for people.
    """
    storm, known = uuid.uuid4().hex, len(project.notes())
    met = len(project.notes("conflict"))
    ended, crashes, died = supervisor.ended, supervisor.crashes, len(supervisor.deaths)
    schedule = alone([nemesis] * int(seconds / every), seed=1, seconds=_FAULT_S, rest=every)
    with Strikes(schedule) as strikes:
        for _ in range(_MOST_ROUNDS):
            until = seconds + within
            crowd(project, "publish", storm, seconds, 0.1, processes=PROCESSES, within=until)
            # A busy machine publishes few calls in this time, and few of them meet.
            if len({note.more["outcome"] for note in project.notes("conflict")[met:]}) > 1:
                break
    assert not strikes.errors, strikes.errors
    assert strikes.faults, "nothing was struck"
    is_settled = settles(project, broker, within)

    account = account_of(project.notes()[known:], supervisor.deaths)
    ended, crashes = supervisor.ended - ended, supervisor.crashes - crashes
    died = len(supervisor.deaths) - died
    said = (
        f"{len(account.published)} calls, {len(strikes.faults)} faults, {crashes} crashes, "
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
    assert is_settled, f"messages left: {project.holds()}; {said}\n{broker.details()}"
    assert len(account.conflicts) > 1, f"hardly anybody met: {said}"
    return said


def settles(project: Project, broker: Broker, within: float) -> bool:
    """Tell whether all comes to an end: no message is left, nothing is noted, nothing is locked.

    Args:
        project: Its tasks note "end".
        broker: Its own.
        within: How long that may take after a body has ended, seconds.
    """
    notes, ended, quiet_since = -1, -1, time.monotonic()
    quiet_s = _QUIET_S
    if not isinstance(broker, RedisBroker):
        # It does not count a message that it will forward again, since a queue was not up yet.
        quiet_s += FORWARD_AGAIN_MS / 1000

    def is_settled() -> bool:
        nonlocal notes, quiet_since
        before, notes = notes, len(project.notes())
        if notes != before:
            quiet_since = time.monotonic()
        if time.monotonic() - quiet_since < quiet_s:
            return False
        if isinstance(broker, RedisBroker):
            project.redeliver_what_is_late()
        if project.holds() or broker.left([project.queue]):
            return False
        # To ask RabbitMQ takes seconds: what began meanwhile is no message any more.
        return len(project.notes()) == notes

    for _ in range(_MOST_WAITS):
        with suppress(AssertionError):  # the account tells more
            eventually(is_settled, within=within)
            return True
        before, ended = ended, len(project.notes("end"))
        if ended == before:
            break
    return False
