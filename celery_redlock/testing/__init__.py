"""Lock nodes on demand, real servers and in-memory ones: for tests, yours and this project's."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .binaries import bundled_server as bundled_server
    from .binaries import find_server_binary as find_server_binary
    from .binaries import server_on_path as server_on_path
    from .launch import free_port as free_port
    from .locks import Locks as Locks
    from .memory_servers import MemoryServer as MemoryServer
    from .memory_servers import MemoryServers as MemoryServers
    from .memory_servers import start_memory_servers as start_memory_servers
    from .servers import Server as Server
    from .servers import Servers as Servers
    from .servers import start_servers as start_servers
    from .settings import locked_on as locked_on

_MODULES = {
    "Locks": "locks",
    "MemoryServer": "memory_servers",
    "MemoryServers": "memory_servers",
    "Server": "servers",
    "Servers": "servers",
    "bundled_server": "binaries",
    "find_server_binary": "binaries",
    "free_port": "launch",
    "locked_on": "settings",
    "server_on_path": "binaries",
    "start_memory_servers": "memory_servers",
    "start_servers": "servers",
}
__all__ = [*_MODULES]  # noqa: PLE0604  # still a list of strings


if not TYPE_CHECKING:  # a type checker that sees it takes every name for one that is there

    def __getattr__(name: str) -> object:
        # Resolved on first use: pytest loads the plugin in this package at each start.
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
