"""A model without a table: Django's permissions and its admin need one."""

from __future__ import annotations

from django.db import models


class Lock(models.Model):
    """A lock on the nodes."""

    key = models.CharField(primary_key=True, max_length=1000)

    class Meta:
        """Without a table; its permissions are `view_lock`, `release_lock` and `end_run`."""

        app_label = "celery_redlock"
        managed = False
        default_permissions = ("view",)
        permissions = (
            ("release_lock", "Can release lock"),
            ("end_run", "Can end the run that holds a lock"),
        )

    def __str__(self) -> str:
        return str(self.key)
