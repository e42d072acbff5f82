"""A real Flower, which watches the workers of a project.

with started_flower(project) as port:
    ...
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import redis

from celery_redlock.testing import free_port
from tests.support.eventually import eventually
from tests.support.root import ROOT

from .inside import FOLDER_VARIABLE
from .project import Project

NOTHING: Mapping[str, str] = MappingProxyType({})


@contextmanager
def started_flower(project: Project, env: Mapping[str, str] = NOTHING) -> Iterator[int]:
    """Start Flower, yield its port once it receives events, and end it."""
    port, log = free_port(), project.folder / "flower.log"
    environment = {
        FOLDER_VARIABLE: str(project.folder),
        "FLOWER_UNAUTHENTICATED_API": "true",
        "FLOWER_ADDRESS": "127.0.0.1",
        "FLOWER_PORT": str(port),
        **env,
    }
    command = [sys.executable, "-m", "celery", "-A", project.module, "flower"]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | environment, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def is_subscribed() -> bool:
        assert process.poll() is None, log.read_text()
        with redis.Redis.from_url(project.app.conf.broker_url) as broker:
            return bool(broker.pubsub_numpat())  # that of events is a pattern

    try:
        eventually(is_subscribed, "Flower receives no events")
        yield port
    finally:
        process.kill()
        process.wait()
