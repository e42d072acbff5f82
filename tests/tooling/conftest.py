"""Some tools have real workers, too: the fixtures are those of tests/integration."""

from tests.integration.conftest import (
    _lock_nodes,
    key,
    new_project,
    pytest_runtest_makereport,
    rabbitmq,
)

__all__ = ["_lock_nodes", "key", "new_project", "pytest_runtest_makereport", "rabbitmq"]
