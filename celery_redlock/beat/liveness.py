"""The liveness file: written by each tick; its age tells whether beat is alive."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import stat
import tempfile
from pathlib import Path

from celery import Celery

from celery_redlock.config.identity import identity_of
from celery_redlock.redlock.clock import SystemClock

logger = logging.getLogger(__name__)
_now = SystemClock().now
_EVERY_S = 1.0


def path_of(app: Celery) -> Path:
    """Return the path of the liveness file of the app's beat, on this host and for this user.

    Apps of one name with different brokers have different files.

    Raises:
        FileNotFoundError: This host has no folder for temporary files that can be written.
    """
    user = getattr(os, "getuid", int)()  # 0 on Windows
    folder = Path(tempfile.gettempdir()) / f"celery-redlock-{user}"
    return folder / f"beat-{identity_of(app)}"


class LivenessFile:
    """The liveness file, as beat writes it.

    Args:
        app: The app whose beat it is.
    """

    _is_told = False
    """Whether it is logged that the file can't be written."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._written_at = -math.inf

    def touch(self) -> None:
        """Record a tick now, unless one was recorded within the last second."""
        now = _now()
        if now - self._written_at < _EVERY_S:
            return
        self._written_at = now
        try:
            path = path_of(self._app)
            _make_private(path.parent)
            # Replaced as a whole: a reader never sees half of it.
            fresh = path.with_name(f"{path.name}.{os.getpid()}")
            fresh.write_bytes(f"{now:.3f}\n".encode())
            fresh.replace(path)
        except OSError as error:
            if not self._is_told:
                self._is_told = True
                logger.warning("liveness file not written, beat-alive will fail error=%s", error)


def age(app: Celery) -> float | None:
    """Return the seconds since beat's last tick here, or None without one since the boot."""
    try:
        path = path_of(app)
        if not _is_private(path.parent):
            return None
        ago = _now() - float(path.read_bytes())
    except (OSError, ValueError):
        return None
    return ago if ago >= 0 else None


def _make_private(folder: Path) -> None:
    """Create the folder, for this user only.

    Raises:
        OSError: The folder can't be created, or exists and other users may enter it.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if not _is_private(folder):
        raise PermissionError(f"{folder} is not private to this user")


def _is_private(folder: Path) -> bool:
    found = folder.lstat()
    if not hasattr(os, "getuid"):
        # Windows' folders for temporary files belong to one user each.
        return stat.S_ISDIR(found.st_mode)
    # To a link, all users have access.
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
