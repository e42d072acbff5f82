"""A Django project with the locks in its admin; run alone, each of its rules is checked."""

from __future__ import annotations

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from types import ModuleType
from typing import Any

import django
from celery import Celery
from django.conf import settings
from redis import Redis

from celery_redlock.config.app_lock import redlock_of
from celery_redlock.operate.operator_log import read_log
from celery_redlock.operate.target import target_of_app

KEY = "bank.sync:<b>42</b>"
ADMIN = "/admin/celery_redlock/lock/"

app = Celery("bank", broker="memory://")
app.conf.update(
    redlock_nodes=os.environ["REDLOCK_NODES"].split(),
    redlock_restart_guard=False,
    redlock_node_timeout=5.0,
)
settings.configure(
    SECRET_KEY="of no use",  # noqa: S106
    DEBUG=False,
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    USE_TZ=True,
    STATIC_URL="/static/",
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[1]}},
    DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    INSTALLED_APPS=[
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.messages",
        "django.contrib.sessions",
        "django.contrib.staticfiles",
        "celery_redlock.contrib.django",
    ],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
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
)
django.setup()

from django.contrib import admin  # noqa: E402
from django.contrib.auth.models import Permission, User  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.test import Client  # noqa: E402
from django.urls import path  # noqa: E402

from celery_redlock.contrib.django.models import Lock  # noqa: E402

urlpatterns = [path("admin/", admin.site.urls)]


def client_of(*permissions: str) -> Any:
    """Return requests of somebody of the staff who has these permissions."""
    user = User.objects.create_user(f"user-{User.objects.count()}", is_staff=True)
    user.user_permissions.set(
        Permission.objects.filter(
            content_type__app_label="celery_redlock", codename__in=permissions
        )
    )
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    return client


def form_in(response: Any) -> dict[str, str]:
    """Return the hidden fields of the confirmation."""
    html = response.content.decode().split('method="post"')[-1]
    return {
        name: unescape(value) for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', html)
    }


def check() -> None:  # noqa: PLR0915  # one story
    """Check the pages, the permissions and the release."""
    redlock = redlock_of(app)
    lease = redlock.acquire(KEY, 60, label="task-1", renew=True)

    nobody, viewer = client_of(), client_of("view_lock")
    operator = client_of("view_lock", "release_lock")
    one = {"key": KEY}

    assert Client().get(ADMIN).status_code == 302
    assert ADMIN not in nobody.get("/admin/").content.decode()
    for page in ("", "lock/", "release/"):
        assert nobody.get(ADMIN + page, one).status_code == 403, page
    assert ADMIN in viewer.get("/admin/").content.decode()

    for client, page in ((viewer, ""), (viewer, "lock/"), (operator, "release/")):
        html = client.get(ADMIN + page, one).content.decode()
        assert KEY not in html, page
        assert KEY in unescape(html), page
    shown = viewer.get(ADMIN, {"q": "other"}).content.decode()
    assert "3 of 3 nodes vote" in shown
    assert "No lock matches the filter." in shown

    assert "celery -A proj redlock web" in shown, "no module has the app"
    sys.modules["bank"] = ModuleType("bank")
    assert "celery -A proj redlock web" in viewer.get(ADMIN).content.decode()
    sys.modules["bank"].__dict__["celery_app"] = app
    assert "celery -A bank redlock web" in viewer.get(ADMIN).content.decode()
    os.environ["DJANGO_SETTINGS_MODULE"] = "bank.settings"
    app.main = "other"
    assert "celery -A bank redlock web" in viewer.get(ADMIN).content.decode()

    assert "Beat missed" not in shown
    redlock.reserve("%beat:bank@0:by%20night:2026-01-01T03:00:00Z:missed", 86_400, label="no beat")
    admin.site.get_model_admin(Lock)._snapshots = None
    shown = viewer.get(ADMIN).content.decode()
    assert re.search(r"Beat missed by night \d+ d ago: 2026-01-01T03:00:00Z, no beat", shown)

    assert "Release …" not in viewer.get(ADMIN + "lock/", one).content.decode()
    assert "Release …" in operator.get(ADMIN + "lock/", one).content.decode()
    assert viewer.get(ADMIN + "release/", one).status_code == 403
    confirmation = operator.get(ADMIN + "release/", one)
    assert "its task may be running" in confirmation.content.decode()
    form = form_in(confirmation)
    assert viewer.post(ADMIN + "release/", form).status_code == 403
    forged = {name: form[name] for name in ("key", "expect")}
    assert operator.post(ADMIN + "release/", forged).status_code == 403
    assert redlock.read_holder(KEY)

    redlock.release(lease)
    redlock.acquire(KEY, 60, label="task-2")
    told = operator.post(ADMIN + "release/", form, follow=True).content.decode()
    assert "is not released: it has another holder" in told
    assert redlock.read_holder(KEY)

    form = form_in(operator.get(ADMIN + "release/", one)) | {"reason": "it hangs"}
    told = operator.post(ADMIN + "release/", form, follow=True).content.decode()
    assert "is released." in told
    target = target_of_app(app)
    with target.nodes() as nodes:
        [action], _ = read_log(target, nodes)
    assert (action.result, action.reason) == ("released", "it hangs")
    assert " in the admin of " in action.author
    assert redlock.read_holder(KEY) is None
    assert viewer.post(ADMIN).status_code in (403, 405)

    check_the_end_of_a_run(client_of("view_lock", "end_run"), operator, one)
    check_without_a_quorum(viewer, one)

    admin.site.get_model_admin(Lock)._snapshots = None
    app.conf.redlock_node_timeout = "soon"
    for page in ("", "lock/", "release/"):
        shown = operator.get(ADMIN + page, one)
        assert shown.status_code == 200, page
        assert "not a number" in shown.content.decode(), page
    assert "not a number" in operator.post(ADMIN + "release/", form, follow=True).content.decode()


def check_the_end_of_a_run(ender: Any, operator: Any, one: dict[str, str]) -> None:
    """Check who may end a run, and what is said of it; no worker is there to end it."""
    redlock, page = redlock_of(app), ADMIN + "end/"
    told = ender.get(page, one, follow=True).content.decode()
    assert "nobody holds it" in told
    lease = redlock.acquire(KEY, 60, label="task-3")
    assert "End the run" not in operator.get(ADMIN + "lock/", one).content.decode()
    assert "Release …" not in ender.get(ADMIN + "lock/", one).content.decode()
    assert "End the run …" in ender.get(ADMIN + "lock/", one).content.decode()
    for response in (operator.get(page, one), operator.post(page, one)):
        assert response.status_code == 403
    confirmation = ender.get(page, one)
    assert "its run is ended where it runs" in confirmation.content.decode()
    form = form_in(confirmation) | {"reason": "it hangs", "signal": "KILL"}
    assert ender.post(page, {name: form[name] for name in ("key", "expect")}).status_code == 403

    asked: list[dict[str, str]] = []

    def end(command: str, arguments: dict[str, str], **_: object) -> list[Any]:
        if command != "redlock_end":  # who holds what
            return []
        asked.append(arguments)
        redlock.release(lease)
        return [{"celery@vm": {"ok": "SIGKILL is sent to its process 7", "runs_here": True}}]

    app.control.broadcast = end  # type: ignore[assignment, method-assign]
    told = ender.post(page, form | {"signal": "HUP"}, follow=True).content.decode()
    assert "the signal must be one of TERM, KILL" in told
    told = ender.post(page, form, follow=True).content.decode()
    # As it is: Django makes the first letter of a message a capital.
    assert f"{KEY!r}: Ended: nobody has the lock now." in unescape(told)
    assert [(one["signal"], one["reason"]) for one in asked] == [("KILL", "it hangs")]
    told = ender.post(page, form, follow=True).content.decode()
    assert "Not ended: nobody holds it." in told
    redlock.release(redlock.acquire(KEY, 60, label="task-4"))
    admin.site.get_model_admin(Lock)._snapshots = None
    shown = ender.get(ADMIN).content.decode()
    for text in ("Operators' actions", "Ended: nobody has the lock now", "it hangs", "released"):
        assert text in unescape(shown), text


def check_without_a_quorum(viewer: Any, one: dict[str, str]) -> None:
    """Check what is said of a free lock, before and after two of three nodes are stopped."""
    assert ">free<" in viewer.get(ADMIN + "lock/", one).content.decode()
    for url in app.conf.redlock_nodes[:2]:
        with Redis.from_url(url) as node:
            node.shutdown(nosave=True)
    shown = viewer.get(ADMIN + "lock/", one).content.decode()
    assert "unknown (1 of 3 answered)" in shown
    assert ">free<" not in shown


if __name__ == "__main__":
    call_command("migrate", verbosity=0)
    # As a server does: Celery's current app is that of a thread.
    with ThreadPoolExecutor(1) as threads:
        threads.submit(check).result()
