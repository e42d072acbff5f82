"""The ways in which a task's execution ends: what a table's row promises of one, and a look at it.

    row = Row("success", POOLS, let_it_end, Free.BEFORE_RESULT, (End("SUCCESS", "returns 'done'"),))
    assert Scene(project, worker, row, figures).play() in row.ends

The app is `tests/integration/apps/endings.py`.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from celery.exceptions import TimeoutError as NoResult

from tests.support.eventually import PATIENCE, eventually
from tests.support.processes.inside import Note
from tests.support.processes.project import Project
from tests.support.processes.workers import Worker

from .deaths import DeathWatch
from .figures import Figures
from .wiretap import Wiretap

LIMIT_S = 30.0
"""How long after a death the lock may stand. Of a ttl of 60 s, 40 s are left then at least."""
_HANGS_S = 0.3


class Free(Enum):
    """When the lock is free, on all nodes."""

    BEFORE_RESULT = "before the result is stored"
    AS_IT_ENDS = "as the body ends"
    AT_DEATH = "when its process is dead, and not before"
    WITHIN_TTL = "within its ttl: there is nobody to release it"


@dataclass(frozen=True, slots=True)
class End:
    """What is seen from outside of an execution that has ended.

    Attributes:
        state: The task's state.
        get: What `get()` does: "returns …", "raises …" or "hangs".
        message: "acknowledged", "in the queue" again, or "unacknowledged" for good.
        runs: How many times the body has begun.
        worker: "goes on" or "ends".
    """

    state: str
    get: str
    message: str = "acknowledged"
    runs: int = 1
    worker: str = "goes on"


@dataclass(frozen=True, slots=True)
class Row:
    """One ending.

    Attributes:
        ending: Its name.
        pools: Those that know it.
        act: What is done while the body waits at the gate.
        free: When the lock is free.
        ends: How it ends: whoever comes first may decide between several.
        task: "late" (acks_late, reject_on_worker_lost) or "early".
        how: How the body ends once the gate is open.
        options: More options of `apply_async`.
    """

    ending: str
    pools: tuple[str, ...]
    act: Callable[[Scene], None]
    free: Free
    ends: tuple[End, ...]
    task: str = "late"
    how: str = "return"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Scene:
    """One execution, watched from its start to its end.

    Attributes:
        project: Its project.
        worker: The worker that runs it.
        row: What is to be seen.
        figures: Where durations are taken down.
        key: What its lock and its gate are called.
        result: Its result.
        run: Where its first run is.
    """

    project: Project
    worker: Worker
    row: Row
    figures: Figures
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    result: Any = None
    run: Note = field(init=False)

    def play(self) -> End:
        """Return what is seen; fail if the lock was not free when the row says so."""
        project, row, expected = self.project, self.row, self.row.ends[0]
        task = getattr(project.tasks, row.task)
        with Wiretap([*project.nodes.urls, str(project.conf["result_backend"])]) as tap:
            self.result = task.apply_async((self.key, self.key, row.how), **row.options)
            self.run = project.run_of(self.result.id)
            watch = DeathWatch(self.run.pid)
            eventually(lambda: project.votes(self.result.id) == len(project.nodes))
            acted_at = time.time()
            row.act(self)
            eventually(lambda: not project.holds(self.key), f"{self.key} is free")
            freed_at = time.time()
            if expected.worker == "ends":
                self.worker.wait_until_ended()
            with suppress(AssertionError):  # the caller compares, and that tells more
                eventually(lambda: self.result.state in {end.state for end in row.ends})
                eventually(lambda: self._message() == expected.message)
            if row.free is Free.AT_DEATH:
                watch.wait()
            watch.stop()
            self._check_when_free(tap, watch, acted_at, freed_at)
        tokens = [note.token or 0 for note in project.notes("begin", key=self.key)]
        assert tokens == sorted(set(tokens)), "each run has a higher token than the one before"
        return End(
            state=self.result.state,
            get=self._get(),
            message=self._message(),
            runs=len(tokens),
            worker="goes on" if self.worker.is_running else "ends",
        )

    def _check_when_free(
        self, tap: Wiretap, watch: DeathWatch, acted_at: float, freed_at: float
    ) -> None:
        row = self.row
        is_expected = row.free is not Free.WITHIN_TTL
        if is_expected:
            # They may be on their way from the monitor still.
            with suppress(AssertionError):
                eventually(lambda: len(self._releases(tap)) == len(self.project.nodes))
        releases = self._releases(tap)
        stores = tap.commands('"SET', f"celery-task-meta-{self.result.id}")
        if not is_expected:
            assert releases == []
            self._take_down("the kill to free", freed_at - acted_at)
            return
        assert len(releases) == len(self.project.nodes), f"it expired: {releases}"
        if row.free is Free.BEFORE_RESULT:
            quorum = releases[len(releases) // 2]
            # What was stored may be on its way from the monitor still.
            stored = f"celery-task-meta-{self.result.id}"
            eventually(lambda: tap.commands('"SET', stored), "the result is stored")
            stores = tap.commands('"SET', stored)
            assert quorum < stores[0].at, f"released {quorum - stores[0].at:.3f} s after the result"
        if row.free is Free.AT_DEATH:
            assert watch.alive_at <= releases[0], (
                f"released {watch.alive_at - releases[0]:.3f} s before its process was dead"
            )
            assert releases[-1] - watch.alive_at < LIMIT_S
            self._take_down("death to free on all nodes", releases[-1] - watch.alive_at)

    def _releases(self, tap: Wiretap) -> list[float]:
        """Return when each node was asked for the release first, by the monitors so far."""
        ports: dict[int, float] = {}
        for command in tap.commands('"DEL"', f":{self.key}}}"):
            ports.setdefault(command.port, command.at)
        return sorted(ports.values())

    def _take_down(self, what: str, seconds: float) -> None:
        self.figures.add(f"{what}: {self.row.ending}, {self.worker.pool}", seconds)

    def _get(self) -> str:
        timeout = _HANGS_S if self.row.ends[0].get == "hangs" else PATIENCE
        try:
            return f"returns {self.result.get(timeout=timeout)!r}"
        except NoResult:
            return "hangs"
        except Exception as error:  # noqa: BLE001 - it is what was asked for
            return f"raises {type(error).__name__}"

    def _message(self) -> str:
        if self.project.unacked():
            return "unacknowledged"
        return "in the queue" if self.project.queue_length() else "acknowledged"


# ---- what is done while the body waits


def wait(scene: Scene) -> None:
    """Do nothing: a time limit will come."""


def let_it_end(scene: Scene) -> None:
    """Let the body go on; it ends as it was told."""
    scene.project.open(scene.key)


def kill(scene: Scene) -> None:
    """Kill the process that runs the body, and let the next run end."""
    os.kill(scene.run.pid, signal.SIGKILL)
    scene.project.open(scene.key)


def revoke(signal_name: str = "TERM") -> Callable[[Scene], None]:
    """Have the pool end the body by a signal."""
    return lambda scene: scene.result.revoke(terminate=True, signal=signal_name)


def revoke_in_c(scene: Scene) -> None:
    """Have the pool end it while it is in C code: the signal's handler has to wait."""
    scene.project.open(scene.key)
    scene.project.wait_for_note("in C", key=scene.key)
    scene.result.revoke(terminate=True)
    # On a busy machine it takes minutes.
    eventually(lambda: scene.project.notes("out of C", key=scene.key), "out of C", within=900.0)
