"""Recent conflicts and lost leases, as workers announce them in Celery's events, alike in one."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .brokers import reason_in

if TYPE_CHECKING:
    from typing_extensions import Self

_NOT_CONNECTED_YET = "not connected to the broker yet"
_WITHOUT_APP = "unknown without an app, at whose broker workers announce them"
_NOT_YET = "not measured yet"
_MOST = 200
_AGAIN_S = 5.0
_STOPS_WITHIN_S = 2.0
_LONGEST = 1000
_END_OF_TIME = 1e11
_FIELDS = ("name", "uuid", "key", "holder", "outcome", "hostname")
_KINDS = {
    "task-deduplicated": "conflict",
    "task-lock-lost": "lost",
    "task-lock-unavailable": "no quorum",
}


@dataclass(frozen=True, slots=True)
class Incident:
    """A conflict, a lost lease, or an execution without a quorum: the last of those that are alike.

    Attributes:
        kind: Which of them: "conflict", "lost" or "no quorum".
        at: Time by the worker's clock, seconds since the epoch.
        task: Name of the task.
        task_id: Id of the task.
        key: Key of the lock.
        holder: Id of the task that held the lock; '': unknown, or no conflict.
        outcome: What became of the execution; '' for a lost lease.
        worker: Name of the worker.
        count: How many of the same kind, task, key and outcome there were.
        since: Time of the first of these, as `at`; None: there is one.
    """

    kind: str
    at: float
    task: str
    task_id: str
    key: str
    holder: str
    outcome: str
    worker: str
    count: int = 1
    since: float | None = None

    @property
    def alike(self) -> tuple[str, str, str, str]:
        """What incidents have in common that are shown as one."""
        return self.kind, self.task, self.key, self.outcome


class Incidents:
    """The latest incidents, received in a thread: from `start` on, or inside of a ``with`` block.

    Args:
        app: The app whose events to receive; None: there are none.

    Attributes:
        problem: Reason why no events are received; None: they are.
        conflicts: Number of conflicts so far.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._latest: dict[tuple[str, str, str, str], Incident] = {}
        self._stopped = threading.Event()
        self._receiver: Any = None
        self._thread = threading.Thread(target=self._listen, name="incidents", daemon=True)
        self._last: tuple[float, int] | None = None
        self.problem: str | None = _NOT_CONNECTED_YET
        self.conflicts = 0

    def __enter__(self) -> Self:
        if self._app is not None:
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop to receive events: within about a second, or when a broker that hangs answers."""
        self._stopped.set()
        if self._receiver is not None:
            self._receiver.should_stop = True
        if self._thread.ident is not None:
            self._thread.join(_STOPS_WITHIN_S)

    @property
    def latest(self) -> list[Incident]:
        """The incidents, the latest first; those that are alike are one."""
        return list(self._latest.values())[::-1]

    def start(self) -> None:
        """Start to receive events."""
        self._thread.start()

    def conflict_rate(self, now: float) -> float | str:
        """Return the conflicts per second since the last call, or the reason why it is unknown.

        Args:
            now: Time, seconds.
        """
        if self._app is None:
            return _WITHOUT_APP
        if (problem := self.problem) is not None:
            self._last = None
            return _NOT_YET if problem == _NOT_CONNECTED_YET else f"unknown: {problem}"
        before, self._last = self._last, (now, self.conflicts)
        if before is None or now <= before[0]:
            return _NOT_YET
        return (self._last[1] - before[1]) / (now - before[0])

    def note(self, event: Mapping[str, Any]) -> None:
        """Note an event, which anybody at the broker may have sent."""
        kind = _KINDS.get(str(event.get("type")))
        at = event.get("timestamp")
        if kind and isinstance(at, (int, float)) and 0 <= at < _END_OF_TIME:
            task, *more = (str(event.get(name) or "")[:_LONGEST] for name in _FIELDS)
            task_id, key, holder, outcome, worker = more
            self._add(Incident(kind, float(at), task, task_id, key, holder, outcome, worker))
            self.conflicts += kind == "conflict"

    def _add(self, incident: Incident) -> None:
        before = self._latest.pop(incident.alike, None)
        if before:
            since = before.at if before.since is None else before.since
            incident = replace(incident, count=before.count + 1, since=since)
        elif len(self._latest) == _MOST:
            del self._latest[next(iter(self._latest))]
        self._latest[incident.alike] = incident

    def _listen(self) -> None:
        while not self._stopped.is_set():
            try:
                self._receive()
            except Exception as error:  # noqa: BLE001  # whatever fails at a broker: try again
                self.problem = reason_in(error)
            self._stopped.wait(_AGAIN_S)

    def _receive(self) -> None:
        with self._app.connection_for_read() as connection:
            connection.ensure_connection(max_retries=1, interval_start=0)
            handlers = dict.fromkeys(_KINDS, self.note)
            self._receiver = self._app.events.Receiver(connection, handlers=handlers)
            self._receiver.should_stop = self._stopped.is_set()
            self._receiver.on_consume_ready = self._connected
            self._receiver.connect_max_retries = 1
            self._receiver.capture()

    def _connected(self, *_: object, **__: object) -> None:
        self.problem = None
