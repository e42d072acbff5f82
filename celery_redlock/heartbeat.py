"""Proof that beat ticks: a file that ticks write, and a look at how old that is."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from pathlib import Path

from celery import Celery

from .redlock.clock import SystemClock

_now = SystemClock().now
_EVERY_S = 1.0


def path_of(app: Celery) -> Path:
    """Return the file of this app's beat on this host, for this user.

    Apps of one name that have different brokers have different files.
    """
    name = app.main or "app"
    digest = hashlib.sha256(f"{name} {app.conf.broker_url}".encode()).hexdigest()[:8]
    name = re.sub(r"[^\w.-]", "_", name)
    return Path(tempfile.gettempdir()) / f"celery-redlock-beat-{_user()}-{name}-{digest}"


class Heartbeat:
    """Writes down that beat ticks.

    Args:
        app: Its app.
    """

    def __init__(self, app: Celery) -> None:
        self._path = path_of(app)
        self._written_at = float("-inf")

    def beat(self) -> None:
        """Write down that beat ticked just now, unless it did so a moment ago."""
        now = _now()
        if now - self._written_at < _EVERY_S:
            return
        self._written_at = now
        with contextlib.suppress(OSError):
            # A new file in its place: a reader never sees half of it, and no link is followed.
            file, fresh = tempfile.mkstemp(prefix=f"{self._path.name}.", dir=self._path.parent)
            try:
                os.write(file, f"{now:.3f}\n".encode())
                Path(fresh).replace(self._path)
            except OSError:
                Path(fresh).unlink()
                raise
            finally:
                os.close(file)


def age(app: Celery) -> float | None:
    """Return how many seconds ago beat ticked here, or None if it never did since the boot."""
    path = path_of(app)
    try:
        if path.stat().st_uid != _user():
            return None
        ago = _now() - float(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return ago if ago >= 0 else None


def _user() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0
