"""Django's settings for beat with django-celery-beat: a database in the folder of the test."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.processes.inside import FOLDER_VARIABLE

SECRET_KEY = "of no use"  # noqa: S105
USE_TZ = True
TIME_ZONE = "UTC"
INSTALLED_APPS = ["django_celery_beat"]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(Path(os.environ[FOLDER_VARIABLE]) / "schedule.sqlite3"),
        # Several replicas write to it, and who writes must not wait until nobody reads.
        "OPTIONS": {
            "timeout": 30,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL",
        },
    }
}
