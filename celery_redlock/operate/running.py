"""Tasks that the workers run now, as they tell over Celery's remote control."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery_redlock.redlock.errors import shown
from celery_redlock.redlock.labels import label_of
from celery_redlock.redlock.lease import is_of_process

from .brokers import reason_in
from .locks import Execution
from .workers import remote_control

if TYPE_CHECKING:
    from .locks import Lock
    from .target import Target

ANSWER_WITHIN_S = 1.0
"""Longest wait for the next answer of a worker."""
_EVERY_S = 2.0
_LONGEST = 100
"""Characters of a call's arguments that are shown."""
_NO_REMOTE_CONTROL = "the broker has no remote control"
_NO_WORKER = f"no worker answered within {ANSWER_WITHIN_S:.0f} s"
_NOT_YET = "the workers have not answered yet"


@dataclass(frozen=True, slots=True)
class Running:
    """Tasks that the workers run.

    Attributes:
        executions: By the task's label, as in an owner.
        problem: Reason why no worker is heard; None: at least one is, or none was asked.
    """

    executions: Mapping[str | None, Execution] = field(default_factory=dict)
    problem: str | None = None

    @property
    def why_unknown(self) -> str:
        """Reason why an execution is not among them."""
        return self.problem or "no worker that answered runs it"

    def tell(self, locks: Iterable[Lock]) -> None:
        """Note at each lock under which a task runs which worker runs it."""
        for lock in locks:
            if lock.is_run:
                lock.execution = self.executions.get(lock.task_id)


def running_tasks(target: Target, locks: Iterable[Lock]) -> Running:
    """Return what the workers run, as soon as the holders of the locks are found among it.

    Else the workers have `ANSWER_WITHIN_S` to answer. Without an app, or a lock under which a task
    can run, nobody is asked.
    """
    wanted = _wanted(target, locks)
    if not wanted:
        return Running()
    return _ask(target.app, wanted, shows_arguments=target.shows_arguments)


class Watch:
    """The tasks that the workers run, asked in the background while somebody looks.

    Args:
        target: The app.
        now: Time, seconds.
    """

    def __init__(self, target: Target, now: Callable[[], float] = time.monotonic) -> None:
        self._target = target
        self._now = now
        self._one_at_a_time = threading.Lock()
        self._thread: threading.Thread | None = None
        self._asked_at = -math.inf
        self._latest = Running(problem=_NOT_YET)

    def tell(self, locks: Collection[Lock]) -> Running:
        """Note at each lock what the latest answers say; return these.

        The workers are asked again if that was two seconds ago. Only the first answers are waited
        for, as long as `running_tasks` does.
        """
        with self._one_at_a_time:
            is_first = self._thread is None
            thread = self._renewed(locks)
        if is_first and thread:
            thread.join(ANSWER_WITHIN_S)
        self._latest.tell(locks)
        return self._latest

    def _renewed(self, locks: Collection[Lock]) -> threading.Thread | None:
        is_busy = self._thread is not None and self._thread.is_alive()
        if is_busy or self._now() - self._asked_at < _EVERY_S:
            return self._thread
        if not _wanted(self._target, locks):
            self._latest = Running()
            return None
        self._asked_at = self._now()
        self._thread = threading.Thread(target=self._ask, args=(locks,), daemon=True)
        self._thread.start()
        return self._thread

    def _ask(self, locks: Collection[Lock]) -> None:
        self._latest = running_tasks(self._target, locks)


class _AllFound(Exception):  # it ends a wait, and is not an error
    """The executions of all locks are known."""


def _wanted(target: Target, locks: Iterable[Lock]) -> set[str]:
    """Return the labels of the holders that may be tasks of the app's workers."""
    if target.app is None:
        return set()
    labels = {lock.task_id for lock in locks if lock.is_run}
    return {one for one in labels if one and not is_of_process(one)}


def _ask(app: Any, wanted: Collection[str], *, shows_arguments: bool) -> Running:
    found: dict[str | None, tuple[float, Execution]] = {}

    def note(reply: Mapping[str, Any]) -> None:
        for worker, requests in reply.items():
            for request in requests if isinstance(requests, list) else ():
                began, label = _number(request.get("time_start")), label_of(request.get("id"))
                # A copy of the message, which is about to be parked, has the same id.
                if label not in found or began < found[label][0]:
                    found[label] = began, _execution(worker, request, shows_arguments)
        if found.keys() >= set(wanted):
            raise _AllFound

    problem = None
    try:
        with remote_control(app) as connection:
            if connection is None:
                return Running(problem=_NO_REMOTE_CONTROL)
            # `safe`: the arguments as the publisher lets them be shown, never as they are.
            inspect = app.control.inspect(
                connection=connection, timeout=ANSWER_WITHIN_S, callback=note
            )
            if not inspect.active(safe=True):
                problem = _NO_WORKER
    except _AllFound:
        pass
    except Exception as error:  # noqa: BLE001  # whatever fails at a broker
        problem = f"the broker can't be asked ({reason_in(error)})"
    return Running({label: one for label, (_, one) in found.items()}, problem)


def _execution(worker: str, request: Mapping[str, Any], shows_arguments: bool) -> Execution:  # noqa: FBT001
    pid = request.get("worker_pid")
    arguments = arguments_in(request) if shows_arguments else None
    return Execution(str(worker), pid if isinstance(pid, int) else None, arguments)


def arguments_in(request: Mapping[str, Any]) -> str:
    """Return the arguments in a worker's answer, shortened: both parts, or the one that is any."""
    parts = [str(request.get(name) or "") for name in ("args", "kwargs")]
    some = [part for part in parts if part not in ("", "()", "{}")]
    if not any(parts):
        return "not told by the publisher"
    return shown(" ".join(some) or parts[0], _LONGEST)


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else math.inf
