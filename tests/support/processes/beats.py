"""A real `celery beat`: started, watched, frozen, killed, on a wall clock of its own.

    [beat] = start_beats(project, 1, env=clock.env, test_entries={"entry": {"every": 1}})
    beat.wait_for_line("tick published")

What it publishes is executed by the project's workers.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import re
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .project import Project
from .workers import Worker, started_by

_LOOKS = 5
_IDLE_WITHIN_S = 10.0


class Beat(Worker):
    """One beat process; see `Worker`.

    Args:
        module: The app's module, as for ``celery -A``.
        folder: What it shares with the test; its log and its schedule go there, too.
        name: Unique in the folder.
        args: More arguments of ``celery beat``.
        env: More environment variables.
        prefix: As `Worker`'s.
        conf: More of the app's configuration, for this process.
    """

    def __init__(
        self,
        module: str,
        folder: Path,
        *,
        name: str = "beat",
        args: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
        prefix: tuple[str, ...] = (),
        **conf: Any,
    ) -> None:
        super().__init__(module, folder, name=name, env=env_of(folder, conf) | dict(env or {}))
        self._command = [*started_by(prefix), "-m", self.celery, "-A", module, "beat"]
        self._command += ["--scheduler", "redlock", "--schedule", str(folder / f"{name}.schedule")]
        self._command += ["--loglevel", "INFO", *args]

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.is_running else "not running"
        return f"<Beat {self.name} ({state})>"

    def wait_until_ready(self) -> None:
        """Return when it ticks."""
        self.wait_for_line(r"beat: Starting\.\.\.")

    def ask_to_end(self, number: int = signal.SIGTERM) -> None:
        """Send it a signal while it sleeps; don't wait for its end.

        Celery's handler saves the schedule. In the middle of a query of django-celery-beat it
        closes the connection of that query, which then fails: the exit code is 1. A beat without a
        quorum never sleeps for long.
        """
        self.wait_until_idle(_LOOKS, within=_IDLE_WITHIN_S)
        super().ask_to_end(number)


def env_of(folder: Path, conf: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment of a process that ticks, with more configuration of the app's."""
    # The file that proves that it ticks is this test's own.
    return {"TMPDIR": str(folder), "REDLOCK_TEST_CONF": json.dumps(conf)}


def start_beats(project: Project, count: int, **options: Any) -> list[Beat]:
    """Start replicas, all at once, and return when they tick; `options` are `Beat`'s.

    They are ended with the project.
    """
    beats = []
    for _ in range(count):
        name = f"beat-{len(project.workers) + 1}"
        beats.append(Beat(project.module, project.folder, **{"name": name} | options))
        project.workers.append(beats[-1])
        beats[-1].start()
    for beat in beats:
        beat.wait_until_ready()
    return beats


def published(entry: str, *beats: Worker) -> list[float]:
    """Return the slots of an entry's ticks that these replicas say they published, in order, s."""
    lines = [line for beat in beats for line in beat.lines(rf"tick published entry={entry} ")]
    return [moment(re.findall(r" slot=(\S+)", line)[0]) for line in lines]


def moment(slot: str) -> float:
    """Return the seconds since the epoch of what a tick calls its slot."""
    return dt.datetime.fromisoformat(slot.replace("Z", "+00:00")).timestamp()


def executed(project: Project, entry: str) -> list[float]:
    """Return the slots of an entry's ticks that were executed, in the order of execution, s."""
    return [moment(note.more["slot"]) for note in project.notes("run", entry=entry)]


def gaps(slots: Iterable[float]) -> list[float]:
    """Return how far each slot is from the one before it, in the order of time."""
    return [later - earlier for earlier, later in itertools.pairwise(sorted(slots))]
