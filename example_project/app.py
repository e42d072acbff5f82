"""The Celery app of the billing service: `celery -A example_project.app worker -c 2`."""

from __future__ import annotations

from celery import Celery

app = Celery("billing", include=["example_project.tasks"])
app.config_from_object("example_project.settings")
