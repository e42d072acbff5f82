"""Django's settings for the libraries that are Django apps: see `tests.integration.compat`.

With django-tenants, a PostgreSQL server whose port the environment names; else a file in the folder
of the test.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.processes.inside import FOLDER_VARIABLE

PORT = os.environ.get("REDLOCK_TEST_POSTGRES_PORT")
"""Of the PostgreSQL server; None: there are no tenants."""

SECRET_KEY = "of no use"  # noqa: S105
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
_LIBRARY = os.environ["REDLOCK_TEST_LIBRARY"]
if PORT:
    SHARED_APPS = ["django_tenants", "tests.integration.apps.beside_tenants"]
    TENANT_APPS = ["django.contrib.contenttypes"]
    INSTALLED_APPS = [*SHARED_APPS, *TENANT_APPS]
    TENANT_MODEL = "beside_tenants.Client"
    TENANT_DOMAIN_MODEL = "beside_tenants.Domain"
    DATABASE_ROUTERS = ["django_tenants.routers.TenantSyncRouter"]
    DATABASES: dict[str, dict[str, object]] = {
        "default": {
            "ENGINE": "django_tenants.postgresql_backend",
            "NAME": "postgres",
            "USER": "redlock",
            "HOST": "127.0.0.1",
            "PORT": PORT,
        }
    }
else:
    INSTALLED_APPS = [
        "django_celery_results" if _LIBRARY == "Results" else "django_celery_beat",
    ]
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": str(Path(os.environ[FOLDER_VARIABLE]) / "database.sqlite3"),
            # Several processes write to it, and who writes must not wait until nobody reads.
            "OPTIONS": {
                "timeout": 30,
                "transaction_mode": "IMMEDIATE",
                "init_command": "PRAGMA journal_mode=WAL",
            },
        }
    }
