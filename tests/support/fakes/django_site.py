"""Django in this process, with two databases in memory and an admin that has no users.

Django is configured once for each process: by the first import of this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import django
from django.conf import settings

from tests.support.processes.project import celery_to_itself


class Staff:
    """Somebody of the staff, who makes the requests of tests.

    Attributes:
        permissions: Permissions of the locks that they have; the tests choose them.
    """

    pk = 7
    is_active = is_staff = is_authenticated = True
    permissions: frozenset[str] = frozenset()

    def get_username(self) -> str:
        return "alice"

    def has_usable_password(self) -> bool:
        return False

    def has_perm(self, name: str, _of: object = None) -> bool:
        return name.removeprefix("celery_redlock.") in self.permissions

    def has_perms(self, names: list[str]) -> bool:
        return all(map(self.has_perm, names))

    def has_module_perms(self, _app: str) -> bool:
        return bool(self.permissions)


def as_staff(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Middleware: all requests are those of `Staff`."""

    def respond(request: Any) -> Any:
        request.user = Staff()
        return get_response(request)

    return respond


class Router:
    """Where the rows of models of the app `bank` are; the tests choose it."""

    reads_from = writes_to = "default"

    def db_for_read(self, model: Any, **_hints: Any) -> str:
        return self.reads_from if model._meta.app_label == "bank" else "default"

    def db_for_write(self, model: Any, **_hints: Any) -> str:
        return self.writes_to if model._meta.app_label == "bank" else "default"


settings.configure(
    ALLOWED_HOSTS=["testserver"],
    DATABASES={
        name: {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
        for name in ("default", "replica")
    },
    DATABASE_ROUTERS=["tests.support.fakes.django_site.Router"],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    INSTALLED_APPS=[
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.messages",
        "celery_redlock.contrib.django",
        "django_celery_beat",
    ],
    LOGGING_CONFIG=None,
    MESSAGE_STORAGE="django.contrib.messages.storage.cookie.CookieStorage",
    # Without migrations the tables are made as they are at last, at once.
    MIGRATION_MODULES={"django_celery_beat": None},
    MIDDLEWARE=[
        "tests.support.fakes.django_site.as_staff",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    ROOT_URLCONF="tests.support.fakes.django_site",
    SECRET_KEY="not used",  # noqa: S106
    STATIC_URL="/static/",
    TIME_ZONE="UTC",
    TEMPLATES=[
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ],
    USE_TZ=True,
)
with celery_to_itself():
    django.setup()

from django.contrib import admin  # noqa: E402
from django.urls import path  # noqa: E402


def __getattr__(name: str) -> Any:
    # As often as Django asks: its own answer is kept, and `clear_url_caches` forgets it.
    if name == "urlpatterns":
        return [path("admin/", admin.site.urls)]
    raise AttributeError(name)
