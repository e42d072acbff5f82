"""Storms have real workers, too: the fixtures are those of tests/integration."""

import os

from tests.integration.conftest import _lock_nodes, figures, key, new_nodes, new_project, rabbitmq

SECONDS = float(os.environ.get("REDLOCK_CHAOS_SECONDS", "600"))
PATIENCE_S = 600.0

__all__ = [
    "PATIENCE_S",
    "SECONDS",
    "_lock_nodes",
    "figures",
    "key",
    "new_nodes",
    "new_project",
    "rabbitmq",
]
