"""The Django app."""

from __future__ import annotations

from typing import Any

from celery.app import app_or_default
from django.apps import AppConfig


class CeleryRedlockConfig(AppConfig):
    """Locks of the current Celery app."""

    name = "celery_redlock.contrib.django"
    label = "celery_redlock"
    verbose_name = "Celery Redlock"
    celery_app: Any = None

    def ready(self) -> None:
        """Record the current app: Celery has one for each thread, and requests have others."""
        self.celery_app = app_or_default()
