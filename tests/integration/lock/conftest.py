"""Two clients of the same five nodes."""

from __future__ import annotations

import pytest

from celery_redlock.redlock import Redlock
from celery_redlock.testing import Servers
from tests.conftest import NewRedlock


@pytest.fixture
def redlock(five: Servers, new_redlock: NewRedlock) -> Redlock:
    return new_redlock(five.urls)


@pytest.fixture
def rival(five: Servers, new_redlock: NewRedlock) -> Redlock:
    """A client that competes with `redlock`."""
    return new_redlock(five.urls)
