"""Tasks of an installation whose processes may have other settings than the project."""

from __future__ import annotations

import json
import os

from celery_redlock import singleton_task
from tests.support.processes.inside import Inside

CONF_VARIABLE = "REDLOCK_TEST_CONF"
"""Names settings of one process, as JSON."""

inside = Inside(__name__)
app = inside.app
app.conf.update(json.loads(os.environ.get(CONF_VARIABLE, "{}")))


@singleton_task(app=app)
def running(number: int) -> int:
    return number


@singleton_task(app=app, lock_lifetime="until_executed")
def reserved(number: int) -> int:
    return number


@app.task
def plain(number: int) -> int:
    return number
