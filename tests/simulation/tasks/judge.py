"""The judge of executions: what became of each message, and whether that was right."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery import states
from celery.app.task import Context
from celery.exceptions import SoftTimeLimitExceeded, TaskRevokedError
from kombu.exceptions import OperationalError

from celery_redlock.messages.headers import COPY_HEADER
from celery_redlock.redlock.errors import (
    ConfigurationError,
    LeaseLost,
    LockHeld,
    QuorumUnavailable,
)
from celery_redlock.redlock.lease import Lease, task_of
from celery_redlock.redlock.protocol.quorum import DRIFT_FACTOR
from tests.simulation.judge import Violation
from tests.simulation.process import Process
from tests.simulation.servers import REPLACED, REPLICA, short
from tests.simulation.world import World
from tests.support.fakes.forged import delivery_of

from .broker import Broker, Copy
from .holders import Holders
from .schedule import FORGETTING, KILL, ON_BROKER, RESERVING, RESERVING_SLOT, Call, Traffic

if TYPE_CHECKING:
    from .worker import Caller, Worker

_TOLD_WITHIN_S = 0.1
"""In this time a body whose lease has ended is interrupted."""
_RELEASED_WITHIN_S = 0.3
"""In this time the keeper of a pool has released what a dead child has left."""
_ARRIVED_WITHIN_S = 0.1
"""In this time a release arrives that a majority has confirmed, on the other nodes as well."""
_COVERING = ("coalesce", "reschedule")
_FINAL = (states.SUCCESS, states.FAILURE, states.REVOKED)


@dataclass(slots=True, eq=False)
class Execution:
    """One execution of a message.

    Attributes:
        worker: Who executes it.
        task_id: Its task.
        began: When, seconds.
        conflict: The conflict that it was told of last, and what that was to become.
        has_run: Whether the body has come to its end.
        label: Label of the message's done mark.
        lease: Lease of the body, if it has begun.
    """

    worker: Worker
    task_id: str
    began: float
    label: str
    conflict: tuple[LockHeld, str] | None = None
    has_run: bool = False
    lease: Any = None


@dataclass(slots=True, eq=False)
class _Story:
    """What happened to one call.

    Attributes:
        called_at: When, seconds.
        is_duplicate: Whether it was not published, because another one had its lock.
        state: Result that is stored; "": none yet.
        began: When its bodies began.
        ended: When its bodies ended.
        dropped_for: Ids of the tasks for which it, or a copy of it, was not run.
        is_excused: Whether it was lost as Celery loses messages that are acknowledged early.
        latest: Execution that began last.
        ended_at: When its end was stored last, seconds.
        discarded_at: When a worker has discarded a message, revoked or expired, seconds.
        expires_at: When its message expires, seconds.
    """

    call: Call
    called_at: float
    is_duplicate: bool = False
    state: str = ""
    began: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    dropped_for: list[str] = field(default_factory=list)
    is_excused: bool = False
    latest: Execution | None = None
    discarded_at: float = math.inf
    ended_at: float = math.inf
    expires_at: float = math.inf


class TaskJudge:
    """The judge of executions, besides the one of leases.

    Args:
        world: Time.
        traffic: The schedule.
        broker: The broker.
        locks: Who has held which lock.
        calms_at: When nothing strikes any more, seconds.
        processes: All processes.

    Attributes:
        workers: All workers.
        callers: All clients that call.
        endings: How messages have ended, counted.
    """

    def __init__(
        self, world: World, traffic: Traffic, broker: Broker, locks: Holders, calms_at: float,
        processes: Sequence[Process],
    ) -> None:  # fmt: skip
        self.workers: list[Worker] = []
        self.callers: list[Caller] = []
        self.endings: Counter[str] = Counter()
        self._world = world
        self._traffic = traffic
        self._broker = broker
        self._locks = locks
        self._calms_at = calms_at
        self._processes = processes
        self._stories: dict[str, _Story] = {}
        self._revoked: dict[str, float] = {}
        broker.on_gone = self._note_gone
        broker.on_arrived = self._wake_workers

    @property
    def has_faults(self) -> bool:
        """Whether nodes, or the ways to them, are struck."""
        return any(fault.kind not in (*ON_BROKER, KILL) for fault in self._traffic.faults)

    def is_over(self) -> bool:
        """Return whether workers may stop: nothing is left to be done."""
        is_all_called = all(one.is_done or one.process.is_dead for one in self.callers)
        is_calm = self._world.time >= self._calms_at and is_all_called
        is_over = is_calm and self._broker.is_empty() and not self._in_hand()
        if is_over:
            self._wake_workers()
        return is_over

    def have_ended(self) -> bool:
        """Return whether no worker works any more; one may execute a copy of which nobody knows."""
        mains = [one.process.main for one in self.workers if not one.process.is_dead]
        return all(main is not None and main.is_over for main in mains)

    def _wake_workers(self) -> None:
        for worker in self.workers:
            if worker.is_idle and worker.process.main:
                self._world.wake(worker.process.main)

    def _in_hand(self) -> list[str]:
        """Return the ids of tasks whose messages are acknowledged, and being executed."""
        alive = [worker for worker in self.workers if not worker.process.is_dead]
        return [worker.in_hand for worker in alive if worker.in_hand]

    # ---- what happens

    def note_called(self, task_id: str, call: Call) -> None:
        """Note that the client is about to publish a call."""
        self._stories[task_id] = _Story(call, called_at=self._world.time)

    def note_duplicate(self, task_id: str, error: LockHeld) -> None:
        """Judge a call that is not published, because another message or run has its lock."""
        holder, story = str(task_of(error.owner)), self._stories[task_id]
        self._world.note(f"{task_id} is a duplicate of {holder} {short(str(error.owner))}")
        if holder == task_id:
            self._fail("holder", f"{task_id} is a duplicate of itself")
        elif not self._locks.held_since(story.called_at, str(error.owner)):
            self._fail("holder", f"{task_id} is a duplicate of {holder}, which holds nothing")
        story.dropped_for.append(holder)
        story.is_duplicate = True
        self.endings["duplicate"] += 1

    def note_unpublished(self, task_id: str) -> None:
        """Judge whether a publication that failed has left its reservation."""
        is_sure = not (self.has_faults or self._broker.has(task_id))
        if is_sure and self._locks.is_reserved(task_id):
            self._fail("reserved", f"{task_id} is not published, and still reserved")

    def note_revoked(self, task_id: str) -> None:
        """Note that a task is revoked: all workers have heard so."""
        self._world.note(f"{task_id} is revoked")
        self._revoked[task_id] = self._world.time

    def note_begun(self, worker: Worker, copy: Copy) -> Execution:
        """Note that a worker begins to execute a message."""
        self._world.note(f"{worker.process.name} executes {copy.task_id} #{copy.tag}")
        request: Any = Context(copy.headers, headers=copy.headers)
        label = delivery_of(request).done_label
        execution = Execution(worker, copy.task_id, self._world.time, label)
        story = self._stories[copy.task_id]
        if story.latest is None:
            story.expires_at = copy.expires_at
        # A parked copy does not expire: the first one was in time.
        elif copy.expires_at != story.expires_at and COPY_HEADER not in copy.headers:
            self._fail("expired", f"{copy.task_id} is published again with another expiry")
        story.latest = execution
        self._locks.forget_asked(worker.process)
        return execution

    def note_conflict(self, task_id: str, error: LockHeld, outcome: str) -> None:
        """Note what an execution tells of a conflict."""
        current = self._world.current
        for worker in self.workers:
            if current and worker.process is current.process and worker.execution:
                worker.execution.conflict = (error, outcome)
                self._world.note(
                    f"{worker.process.name} {outcome} {task_id} for {short(str(error.owner))}"
                    f"{' contended' if error.contended else ''}"
                )

    def note_body(self, execution: Execution, task: Any) -> None:
        """Judge a body that begins."""
        execution.lease = lease = task.lease
        name = execution.task_id
        self._world.note(f"{execution.worker.process.name} runs {name}")
        if lease is None or not self._locks.knows(lease.owner):
            self._fail("unlocked", f"{name} runs without a lease")
        if execution.began > self._revoked.get(name, math.inf):
            self._fail("revoked", f"{name} runs though it was revoked before")
        # A process that stood still begins with a lost lease, and is interrupted at once.
        is_lost = lease is not None and lease.lost
        # A copy that held the pending slot runs once more, for those that relied on it.
        is_relied_on = self._locks.has_left_slot(execution.worker.process, execution.began)
        # One that is left later, as by a run that has lost its lease, could not stop this body.
        is_done = self._locks.is_done_before(execution.label, lease.owner if lease else "")
        if is_done and self._remembers() and not (is_lost or is_relied_on):
            self._fail("twice", f"{name} runs again, though its done mark is set")
        self._stories[name].began.append(self._world.time)

    def note_stored(
        self, execution: Execution | None, task_id: str, state: str, result: Any
    ) -> None:
        """Judge a result that is stored."""
        story = self._stories[task_id]
        self._world.note(f"result of {task_id}: {state} {result!r:.60}")
        if isinstance(result, TaskRevokedError):
            # Celery's own doing, though a copy of the message may have run.
            story.discarded_at = story.ended_at = self._world.time
            story.state = story.state if story.ended else state
            self.endings["discarded"] += 1
            return
        if execution is None or execution.task_id != task_id:
            self._fail("result", f"{state} is stored for {task_id}, which is not executed here")
            return
        if story.state == states.SUCCESS and story.ended and state != states.SUCCESS:
            if self._is_overtaken(execution, story, state, result):
                return
            self._fail("result", f"{state} is stored over the result of {task_id}, which has run")
        if state == states.RETRY and execution.began < story.ended_at < math.inf:
            return  # what it published has ended by now, or a copy, while its process stood still
        story.state = state
        if state in _FINAL:
            story.ended_at = self._world.time
        if self._is_undisturbed(execution.worker) and (
            held := self._locks.held_by(execution.worker.process)
        ):
            self._fail("free", f"{held} is locked as {state} of {task_id} is stored")
        self._judge_result(execution, story, result)

    def _is_overtaken(self, execution: Execution, story: _Story, state: str, result: Any) -> bool:
        """Return whether a result may be stored though the message has run.

        Celery publishes a retry before it stores RETRY: the retry may have ended by then. So may a
        copy, while a process stands still that has seen a conflict, or that its lease is lost. And
        without a quorum nobody knows whether another copy has run.
        """
        if state == states.RETRY and isinstance(result, QuorumUnavailable):
            return True
        is_late = execution.began < max(story.ended)
        runs_again = self._locks.has_left_slot(execution.worker.process, execution.began)
        goes_back = self._traffic.policy == "coalesce" or runs_again
        if state == states.RETRY and goes_back and not is_late:
            # A copy that had the pending slot runs once more, for those that relied on it.
            story.state = state
            return True
        if runs_again and isinstance(result, LeaseLost | SoftTimeLimitExceeded):
            return True
        if execution.lease is None and isinstance(result, SoftTimeLimitExceeded):
            return True  # a copy that has not come to its done mark yet
        if execution.label not in self._locks.done:
            return True  # the one that ran has died before its done mark was there to stay
        is_of_before = isinstance(result, LeaseLost | LockHeld | SoftTimeLimitExceeded)
        return is_late and (state in (states.RETRY, states.REVOKED) or is_of_before)

    def _judge_result(self, execution: Execution, story: _Story, result: Any) -> None:
        outcome = execution.conflict[1] if execution.conflict else ""
        match story.state:
            case states.SUCCESS if execution.has_run:
                story.ended.append(self._world.time)
                self.endings["run"] += 1
            case states.SUCCESS | states.REVOKED if outcome in ("complete", "skip", "wait"):
                self.endings["dropped"] += 1
                story.dropped_for.append(self._judge_holder(execution))
            case states.FAILURE if isinstance(result, LockHeld) and outcome == "raise":
                self.endings["raised"] += 1
                if not result.contended:
                    self._judge_holder(execution)
            case states.FAILURE if isinstance(result, SoftTimeLimitExceeded):
                self.endings["timed out"] += 1
            case states.FAILURE if isinstance(result, LeaseLost):
                self.endings["aborted"] += 1
                self._judge_loss(execution)
            case states.FAILURE if cause := self._cause(result):
                self.endings[cause] += 1
            case states.RETRY if execution.has_run:
                self.endings["retried"] += 1
                self._judge_hand_over(execution, story)
            case states.RETRY:
                self.endings["handed on"] += 1
            case _:
                self._fail("result", f"{story.state} of {execution.task_id}: {result!r}")

    def note_executed(self, execution: Execution) -> None:
        """Judge what is left of a message after its execution."""
        self._note_gone(execution.task_id)
        name = execution.task_id
        is_last = not self._broker.has(name) and name not in self._in_hand()
        story = self._stories[name]
        is_discarded = (
            story.latest is execution and execution.began <= story.discarded_at < math.inf
        )
        is_sure = is_last and is_discarded and self._is_undisturbed(execution.worker)
        if self._traffic.policy == "coalesce" and any(one.process.is_dead for one in self.workers):
            return  # it may have made a reservation that no message carries
        if is_sure:
            self._world.at(self._world.time + _ARRIVED_WITHIN_S, self._judge_discarded, name)

    def _judge_discarded(self, name: str) -> None:
        if self._locks.is_reserved(name):
            self._fail("reserved", f"{name} is discarded, and still reserved")

    def note_run(self, execution: Execution) -> None:
        """Judge a body that has come to its end."""
        execution.has_run = True
        process, lease = execution.worker.process, execution.lease
        ended_at = process.true_time(lease.deadline)
        if lease.lost and not process.struck and self._world.time > ended_at + _TOLD_WITHIN_S:
            self._fail("outrun", f"{execution.task_id} runs on though it has lost its lease")

    def _judge_loss(self, execution: Execution) -> None:
        if not (self.has_faults or any(one.struck for one in self._processes)):
            self._fail("loss", f"{execution.task_id} loses its lease, and nothing strikes")

    def _judge_orphans(self, left: list[Lease]) -> None:
        for lease in left:
            is_sure = not (self.has_faults or self._processes[self._traffic.callers].struck)
            if is_sure and self._locks.is_held(lease):
                self._fail("orphan", f"{lease.key} is locked, and its process is dead")

    def note_dead(self, worker: Worker) -> None:
        """Excuse the message that a dead worker had acknowledged early."""
        if self._traffic.is_prefork:
            delay = self._traffic.lock_delay * (1 + DRIFT_FACTOR)
            at = self._world.time + _RELEASED_WITHIN_S + delay
            self._world.at(at, self._judge_orphans, self._locks.left_by(worker.process))
        if worker.in_hand:
            self._stories[worker.in_hand].is_excused = True
            self.endings["lost early"] += 1

    def _note_gone(self, task_id: str) -> None:
        """Judge a message that has left the broker."""
        if self._broker.has(task_id) or task_id in self._in_hand():
            return
        story = self._stories[task_id]
        if story.state not in _FINAL and not story.is_excused:
            self._fail("lost", f"no copy of {task_id} is left, and it has not ended: {story.state}")

    # ---- whether that was right

    def _is_undisturbed(self, worker: Worker) -> bool:
        """Return whether a worker's requests to the nodes have succeeded."""
        return not (self.has_faults or worker.process.struck)

    def _judge_hand_over(self, execution: Execution, story: _Story) -> None:
        """Judge whether a run that retries has handed its lock over, if the lifetime says so.

        Its retry may have been executed by now, or discarded: an expired one gets no lock. And a
        process that stood still may have lost it.
        """
        is_sure = self._is_undisturbed(execution.worker) and not execution.lease.lost
        is_sure = is_sure and self._world.time < story.expires_at
        if self._traffic.lifetime != RESERVING or story.latest is not execution or not is_sure:
            return
        if not self._locks.is_of(execution.lease.key, execution.task_id):
            self._fail("handed", f"{execution.task_id} retries, and does not hold its lock")

    def _judge_holder(self, execution: Execution) -> str:
        """Judge the holder that an execution has met, and return its task's id."""
        assert execution.conflict
        held, name = execution.conflict[0], execution.task_id
        holder = str(task_of(held.owner))
        if holder == name:
            self._fail("holder", f"{name} ends for itself")
        elif not self._locks.held_since(execution.began, str(held.owner)):
            self._fail("holder", f"{name} ends for {holder}, which holds nothing")
        return holder

    def judge_end(self) -> None:
        """Judge what became of all calls."""
        for name, story in self._stories.items():
            if story.is_duplicate:
                if name in self._broker.arrived:
                    self._fail("duplicate", f"{name} is published though it is a duplicate")
                self._judge_chain(name)
                if self._traffic.lifetime == RESERVING_SLOT:
                    self._judge_covered(name, story, story.called_at)
                continue
            if name not in self._broker.arrived or story.is_excused:
                continue
            if story.state not in _FINAL:
                self._fail("lost", f"{name} has not ended: {story.state or 'nothing is stored'}")
            elif story.dropped_for:
                self._judge_chain(name)
                self._judge_covered(name, story, self._broker.arrived[name])

    def _judge_chain(self, name: str) -> None:
        """Judge whether one for which a message was dropped has run, or was dropped itself.

        Each copy may have been dropped for another: any of these will do.
        """
        asked: list[str] = []
        to_ask = [name]
        while to_ask:
            holder = to_ask.pop(0)
            if holder in asked:
                continue
            asked.append(holder)
            story = self._stories[holder]
            is_excused = story.is_excused or story.discarded_at < math.inf
            if story.began or is_excused or story.state == states.FAILURE:
                return
            if holder not in self._broker.arrived and not story.is_duplicate:
                return  # its caller has failed, or died
            to_ask += story.dropped_for
        self._fail("dropped", f"{' for '.join(asked)}: and nobody has run")

    def _judge_covered(self, name: str, story: _Story, since: float) -> None:
        """Judge whether a run began after a call that was dropped because one is to come.

        By other policies, the one for which it was dropped may be dropped as well.
        """
        if self._traffic.policy not in _COVERING:
            return
        others = {one: it for one, it in self._stories.items() if it.call.key == story.call.key}
        if any(
            one.is_excused or one.discarded_at < math.inf or one.state == states.FAILURE
            for one in others.values()
        ):
            return
        if any(
            not one.is_duplicate and it not in self._broker.arrived for it, one in others.items()
        ):
            return  # its caller has failed, or died
        if not any(began >= since for one in others.values() for began in one.began):
            self._fail("event", f"no run began after {name} was called, which was dropped")

    def _remembers(self) -> bool:
        return all(fault.kind not in FORGETTING for fault in self._traffic.faults)

    def _cause(self, result: Any) -> str:
        """Return how a broker or a node that was struck has failed a task; "": they have not."""
        if isinstance(result, OperationalError) and self._was_struck():
            return "not published"
        # A process that has not met its nodes before takes replicas for misconfigured.
        has_replicas = any(one.kind in (REPLICA, REPLACED) for one in self._traffic.faults)
        return "misconfigured" if isinstance(result, ConfigurationError) and has_replicas else ""

    def _was_struck(self) -> bool:
        return any(fault.kind in ON_BROKER for fault in self._traffic.faults)

    def _fail(self, kind: str, text: str) -> None:
        self._world.error = self._world.error or Violation(kind, text)
