"""Real Redis servers on demand: for tests, demonstrations, and your own project's test suite."""

from .binaries import bundled_server, find_server_binary, server_on_path
from .servers import Server, Servers, free_port, start_servers

__all__ = [
    "Server",
    "Servers",
    "bundled_server",
    "find_server_binary",
    "free_port",
    "server_on_path",
    "start_servers",
]
