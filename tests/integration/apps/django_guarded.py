"""A frozen run and a newer one write a row through the Django ORM, on PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import django
from django.conf import settings

OLD, NEW = 2**50, 2**50 + 1

settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql", "HOST": "127.0.0.1", "NAME": "postgres",
            "PORT": os.environ["POSTGRES_PORT"], "USER": "redlock",
        }
    },
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
)  # fmt: skip
django.setup()

from django.db import connection, models, transaction  # noqa: E402

from celery_redlock.contrib.guards import StaleToken  # noqa: E402
from celery_redlock.contrib.guards.django import Fenced  # noqa: E402


class Account(Fenced):
    """An account."""

    balance = models.IntegerField(default=0)

    class Meta:
        """It belongs to no installed app."""

        app_label = "bank"


def refused(call: Callable[[], Any]) -> None:
    """Print the error of a call that must fail."""
    try:
        call()
    except StaleToken as error:
        print(type(error).__name__)  # noqa: T201


with connection.schema_editor() as editor:
    editor.create_model(Account)
try:
    Account.objects.create(pk=1, balance=1000)
    old = Account.claim(1, OLD)
    new = Account.claim(1, NEW)
    refused(lambda: old.write(balance=old.balance + 1))
    new.write(balance=models.F("balance") + 10)
    refused(lambda: Account.claim(1, OLD))
    refused(lambda: Account.claim(1, None))
    try:
        with transaction.atomic():
            Account.claim(1, NEW)
        raise AssertionError("claimed inside a transaction")
    except RuntimeError:
        print(Account.claim(1, NEW).balance)  # noqa: T201
finally:
    with connection.schema_editor() as editor:
        editor.delete_model(Account)
