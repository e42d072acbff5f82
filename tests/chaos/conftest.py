"""Storms have real workers, too: the fixtures are those of tests/integration."""

from tests.integration.conftest import _lock_nodes, figures, key, new_nodes, new_project, rabbitmq

__all__ = ["_lock_nodes", "figures", "key", "new_nodes", "new_project", "rabbitmq"]
