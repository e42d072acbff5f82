"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig


class CeleryRedlockConfig(AppConfig):
    """Locks of the current Celery app."""

    name = "celery_redlock.contrib.django"
    label = "celery_redlock"
    verbose_name = "Celery Redlock"
