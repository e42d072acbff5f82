"""What an app module of the tests stands on, in the worker and in the test's own process.

Its tasks write down what they do (`note`) and wait at gates that the test opens (`wait_at`): so a
test knows what happened, and decides when it goes on, without a glance at the clock.
"""

from __future__ import annotations

import _thread
import json
import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from celery import Celery, current_task
from celery.signals import task_retry

from celery_redlock import current_lease
from celery_redlock.redlock.threads.native import is_green, original
from tests.support.eventually import PATIENCE, eventually
from tests.support.whole_lines import Journal, lines_after

FOLDER_VARIABLE = "REDLOCK_TEST_FOLDER"
"""Names the folder that a test and its workers share."""

GATE_PATIENCE = 3 * PATIENCE
"""Seconds after which a task gives up at a gate: the test has failed by then."""

_LONGEST_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class Note:
    """What one task wrote down at one moment.

    Attributes:
        event: What happened.
        task_id: In which task; None outside of one.
        token: The fencing token; None without a lease.
        pid: In which process.
        thread: In which thread.
        at: When, in seconds of a clock that all processes of this machine share.
        more: Whatever else the task said.
    """

    event: str
    task_id: str | None
    token: int | None
    pid: int
    thread: int
    at: float
    more: dict[str, Any] = field(default_factory=dict)


class Inside:
    """One app module's access to the test that uses it: its app, its notes, its gates.

    Args:
        name: The module's `__name__`.
        app_class: Class of the app.
        options: More arguments of `Celery`.
    """

    def __init__(self, name: str, app_class: type[Any] = Celery, **options: Any) -> None:
        self.folder = Path(os.environ[FOLDER_VARIABLE])
        self.app: Celery[Any] = app_class(name, **options)
        self.app.conf.update(json.loads((self.folder / "conf.json").read_text()))
        task_retry.connect(lambda **_: self.note("retried"), weak=False)

    def note(self, event: str, **more: Any) -> None:
        """Write down that `event` happened, in the task that calls this."""
        write_note(self.folder, self._note_of(event, more))

    def _note_of(self, event: str, more: dict[str, Any]) -> Note:
        lease = current_lease()
        request = current_task.request if current_task else None  # type: ignore[truthy-bool]
        task_id = str(request.id) if request and request.id else None
        token = lease.token if lease else None
        return Note(
            event, task_id, token, os.getpid(), threading.get_ident(), time.monotonic(), more
        )

    def wait_at(self, gate: str | None) -> None:
        """Wait until the test opens `gate`; None is always open."""
        if gate is None:
            return
        path = gate_path(self.folder, gate)
        (_wait_idly if is_green() else _wait)(path)
        if not path.exists():
            raise TimeoutError(f"nobody opened the gate {gate}")

    def wait_for_earlier_tries(self) -> None:
        """Wait until each try before this one of the task that calls this is over.

        Celery stores RETRY after it has sent the retry, be it over the retry's own end.
        """
        request = current_task.request
        if request.is_eager:
            return  # they wait for this one
        eventually(
            lambda: len(self._notes("retried", str(request.id))) >= request.retries,
            f"{request.retries} tries before are over",
            GATE_PATIENCE,
        )

    def _notes(self, event: str, task_id: str) -> list[Note]:
        notes = Notes(self.folder)
        return [note for note in notes if (note.event, note.task_id) == (event, task_id)]

    def run(self, gate: str | None = None, **more: Any) -> int | None:
        """Be the body of a task: note "begin", wait at `gate`, note "end", return the token.

        A greenlet's "begin" is written once it waits, by another greenlet. Celery's handler of a
        signal that finds the task's own cancels itself with it, and the worker does not end.
        """
        unwritten = [self._note_of("begin", more)]

        def write() -> None:
            if unwritten:
                write_note(self.folder, unwritten.pop())

        if gate is not None and is_green():
            _thread.start_new_thread(write, ())
        else:
            write()
        try:
            self.wait_at(gate)
        finally:
            write()
        self.note("end", **more)
        lease = current_lease()
        return lease.token if lease else None


def set_up(folder: Path, conf: Mapping[str, Any]) -> None:
    """Make `folder` one that `Inside` can work in; `conf` is the app's configuration."""
    (folder / "gates").mkdir()
    (folder / "conf.json").write_text(json.dumps(conf))


def write_note(folder: Path, note: Note) -> None:
    """Add `note` to the others, whichever process they come from."""
    journal = Journal(folder / "notes")
    try:
        journal.say(**asdict(note))
    finally:
        journal.close()


class Notes:
    """What was noted so far, in order; each note is read once.

    Args:
        folder: Folder of the project.
    """

    def __init__(self, folder: Path) -> None:
        self._journal = folder / "notes"
        self._read: list[Note] = []
        self._end = 0

    def __iter__(self) -> Iterator[Note]:
        if self._journal.exists():
            lines, self._end = lines_after(self._journal, self._end)
            self._read += [Note(**json.loads(line)) for line in lines]
        return iter(self._read)


def gate_path(folder: Path, gate: str) -> Path:
    """Return the file that exists once `gate` is open."""
    return folder / "gates" / gate


def _wait(path: Path, is_abandoned: Callable[[], object] = lambda: False) -> None:
    """Return once `path` exists, or nobody waits for it any more."""
    sleep = original("time", "sleep") if is_green() else time.sleep
    began, waited = time.monotonic(), 0.0
    while not (path.exists() or is_abandoned() or waited > GATE_PATIENCE):
        # As in `eventually`: dozens of tasks may wait in one process.
        sleep(min(0.005 + waited / 50, _LONGEST_PAUSE_S))
        waited = time.monotonic() - began


def _wait_idly(path: Path) -> None:
    """Wait as a greenlet that does not run meanwhile.

    A signal's handler runs in whichever greenlet does. Celery's must not find the task's.
    """
    reader, writer = os.pipe()
    abandoned: list[bool] = []

    def watch() -> None:
        try:
            _wait(path, lambda: abandoned)
        finally:
            os.close(writer)  # makes the other end readable

    try:
        original("_thread", "start_new_thread")(watch, ())
        select.select([reader], [], [])
    finally:
        abandoned.append(True)
        os.close(reader)
