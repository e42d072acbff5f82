"""Ways round the fence of a row in the Django ORM, on SQLite: `django_rows.py FOLDER CASE`."""

from __future__ import annotations

import sys
from typing import Any

import django
from django.conf import settings

OLD, NEW = 2**50, 2**50 + 1
FOLDER, CASE = sys.argv[1:]


class Router:
    """Reads are sent to a replica."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "replica"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"


settings.configure(
    DATABASES={
        name: {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{FOLDER}/{name}.db"}
        for name in ("default", "replica")
    },
    DATABASE_ROUTERS=[Router()] if CASE == "replica" else [],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
)
django.setup()

from django.db import connections, models  # noqa: E402

from celery_redlock.contrib.guards import StaleToken  # noqa: E402
from celery_redlock.contrib.guards.django import Fenced  # noqa: E402


class Account(Fenced):
    """An account."""

    balance = models.IntegerField(default=0)

    class Meta:
        """It belongs to no installed app."""

        app_label = "bank"


class Savings(Account):
    """An account with a table of its own for the rate; the fence is in the table of accounts."""

    rate = models.IntegerField(default=0)

    class Meta:
        """It belongs to no installed app."""

        app_label = "bank"


class Closed(Account):
    """An account in the same table."""

    class Meta:
        """It belongs to no installed app."""

        app_label = "bank"
        proxy = True


def refused(call: Any, error: type[Exception]) -> None:
    """Make a call that must fail."""
    try:
        call()
    except error:
        return
    raise AssertionError(f"no {error.__name__}")


def replica() -> None:
    Account.objects.using("replica").create(pk=1, balance=0)
    assert Account.claim(1, NEW).balance == 1000


def save() -> None:
    seen_before = Account.objects.get(pk=1)
    old = Account.claim(1, OLD)
    new = Account.claim(1, NEW)
    seen_before.save()
    old.save()
    refused(lambda: old.write(balance=1001), StaleToken)
    refused(lambda: Account.claim(1, OLD), StaleToken)
    refused(new.write, TypeError)
    new.write(balance=1010)
    Account.objects.create(pk=2, fence=NEW)
    refused(lambda: Account.claim(2, OLD), StaleToken)


def parent() -> None:
    Savings.objects.create(pk=2)
    refused(lambda: Savings.claim(2, NEW), TypeError)
    assert Account.objects.get(pk=2).fence == 0
    assert Closed.claim(1, NEW).balance == 1000


for alias in connections:
    with connections[alias].schema_editor() as editor:
        for model in (Account, Savings):
            editor.create_model(model)
Account.objects.using("default").create(pk=1, balance=1000)
{"replica": replica, "save": save, "parent": parent}[CASE]()
