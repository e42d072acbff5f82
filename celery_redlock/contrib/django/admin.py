"""Nodes and locks in the admin, with a release and an end of runs that ask first."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.apps import apps
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.views.decorators.http import require_safe

from celery_redlock.operate.ending import CONSEQUENCE, SIGNALS, Order, end_held_by, run_under
from celery_redlock.operate.lock_view import look_closely
from celery_redlock.operate.node_set import NodeSet
from celery_redlock.operate.overview import Level
from celery_redlock.operate.removal import operator, removal_of, remove_held_by
from celery_redlock.operate.snapshots import SHOWN, Snapshots
from celery_redlock.operate.target import Target, target_of_app
from celery_redlock.redlock.errors import RedlockError, shown
from celery_redlock.units import middle, seconds

from .models import Lock

logger = logging.getLogger(__name__)
_MOST_LOCKS = 200
_MOST_MISSED = 10
_FOLDER = "admin/celery_redlock"
_CLASSES = {Level.GOOD: "success", Level.NARROW: "warning", Level.BAD: "error"}
_RELEASE, _END = "celery_redlock.release_lock", "celery_redlock.end_run"


@admin.register(Lock)
class LockAdmin(admin.ModelAdmin):
    """Pages of the locks: a list, one lock, and the confirmations of a release and of an end."""

    _snapshots: Snapshots | None = None

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002  # Django's
        """Nobody adds a lock."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        """Nobody changes a lock."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        """Nobody deletes a lock: to release it is a permission of its own."""
        return False

    def get_urls(self) -> list[Any]:
        """Return the URLs of these pages; the rest of a model's has no table to show."""
        view = self._admin_view
        name = "celery_redlock_lock"
        return [
            path("", view(require_safe(self.list_view)), name=f"{name}_changelist"),
            path("lock/", view(require_safe(self.lock_view)), name=name),
            path("release/", view(self.release_view), name=f"{name}_release"),
            path("end/", view(self.end_view), name=f"{name}_end"),
        ]

    def list_view(self, request: HttpRequest) -> HttpResponse:
        """Show nodes and locks."""
        text, kind = request.GET.get("q", ""), request.GET.get("kind", "")
        self._check(request)
        target = _target()
        if self._snapshots is None:
            self._snapshots = Snapshots(target, _MOST_LOCKS)
        overview = self._snapshots.get(text, kind)
        return self._shown(
            request, "locks", "Locks",
            overview=overview, message_class=_CLASSES[overview.verdict.level],
            shows_arguments=target.shows_arguments,
            locks=[lock.row(overview.at) for lock in overview.oldest],
            missed=[
                (tick.entry, tick.slot, tick.why, seconds(overview.at - tick.at))
                for tick in overview.missed[:_MOST_MISSED]
            ],
            actions=[
                (one, seconds(overview.at - one.at), middle(one.result, 160))
                for one in overview.actions
            ],
            app_name=_name_of(target.app),
            is_cut=len(overview.oldest) < overview.found,
            searched=overview.searched if text or kind else None,
            text=text, kind=kind, kinds=[one.value for one in SHOWN],
        )  # fmt: skip

    def lock_view(self, request: HttpRequest) -> HttpResponse:
        """Show what each node stores under a key."""
        self._check(request)
        key, now = request.GET.get("key", ""), time.time()
        target = _target()
        view, then = look_closely(target, key)
        held = view.lock
        here = [one for one in (held, view.pending, *view.marks) if one]
        may_end = held and held.is_run and request.user.has_perm(_END)
        return self._shown(
            request, "lock", key, view=view, next_call=then,
            here=[(lock, lock.row(now)) for lock in here], shows_arguments=target.shows_arguments,
            may_release=request.user.has_perm(_RELEASE),
            run=held if may_end else None,
        )  # fmt: skip

    def release_view(self, request: HttpRequest) -> HttpResponse:
        """Ask whether to release a lock; release it on POST."""
        self._check(request, _RELEASE)
        given = request.POST if request.method == "POST" else request.GET
        key, label = given.get("key", ""), given.get("done") or None
        target = _target()
        try:
            with target.nodes() as nodes:
                if request.method == "POST":
                    is_released = remove_held_by(
                        target, nodes, key, label, given.get("expect"), _author(request),
                        given.get("reason", ""),
                    )  # fmt: skip
                elif removal := removal_of(target, nodes, key, label):
                    lock, meaning = removal
                    return self._shown(
                        request, "release", f"Release {key}?", label=label, meaning=meaning,
                        lock=lock, row=lock.row(time.time()),
                    )  # fmt: skip
                else:
                    is_released = False
        except RedlockError as error:
            messages.error(request, str(error))
        else:
            if is_released:
                logger.warning(
                    "lock released in the admin key=%s id=%s user=%s",
                    shown(key), given["expect"], request.user.pk,
                )  # fmt: skip
                messages.success(request, f"{key!r} is released.")
            else:
                messages.error(request, f"{key!r} is not released: it has another holder, or none.")
        return HttpResponseRedirect(reverse("admin:celery_redlock_lock_changelist"))

    def end_view(self, request: HttpRequest) -> HttpResponse:
        """Ask whether to end the run that holds a lock; end it on POST."""
        self._check(request, _END)
        given = request.POST if request.method == "POST" else request.GET
        key, target = given.get("key", ""), _target()
        with target.nodes() as nodes:
            if request.method == "POST":
                self._end(request, target, nodes, key)
            elif isinstance(run := run_under(target, nodes, key), str):
                messages.error(request, f"No run to end under {key!r}: {run}.")
            else:
                return self._shown(
                    request, "end", f"End the run that holds {key}?", meaning=CONSEQUENCE,
                    signals=SIGNALS, lock=run, row=run.row(time.time()),
                )  # fmt: skip
        return HttpResponseRedirect(reverse("admin:celery_redlock_lock_changelist"))

    def _end(self, request: HttpRequest, target: Target, nodes: NodeSet, key: str) -> None:
        form = request.POST
        expected, signal = form.get("expect", ""), form.get("signal", SIGNALS[0])
        order = Order(_author(request), form.get("reason", ""), signal)
        try:
            became = end_held_by(target, nodes, key, expected, order, time.sleep)
        except RedlockError as error:
            messages.error(request, str(error))
            return
        logger.warning(
            "run ordered to end in the admin key=%s id=%s user=%s outcome=%s",
            shown(key), shown(expected), request.user.pk, shown(became.outcome),
        )  # fmt: skip
        tell = messages.success if became.is_ended else messages.error
        tell(request, f"{key!r}: {became.outcome}.")

    def _admin_view(self, view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        """Return a view for the staff that shows an unusable setting, for instance, as text."""

        @wraps(view)
        def shown(request: HttpRequest) -> HttpResponse:
            try:
                return view(request)
            except RedlockError as error:
                return self._shown(request, "locks", "Locks", problem=error)

        guarded: Callable[..., HttpResponse] = self.admin_site.admin_view(shown)
        return guarded

    def _check(self, request: HttpRequest, *more: str) -> None:
        """Refuse a user who may not look, or who lacks one of the other permissions."""
        if not (self.has_view_permission(request) and request.user.has_perms(more)):
            raise PermissionDenied

    def _shown(
        self, request: HttpRequest, name: str, title: str, **context: Any
    ) -> TemplateResponse:
        about = self.admin_site.each_context(request) | {"title": title}
        return TemplateResponse(request, f"{_FOLDER}/{name}.html", about | context)


def _target() -> Target:
    return target_of_app(apps.get_app_config("celery_redlock").celery_app)


def _author(request: HttpRequest) -> str:
    return f"{request.user.get_username()} in the admin of {operator()}"


def _name_of(app: Any) -> str:
    """Return what a command's ``-A`` takes for the app, as far as a module by that name has it."""
    package = os.environ.get("DJANGO_SETTINGS_MODULE", "").partition(".")[0]
    for name in (package, app.main):
        if any(one is app for one in vars(sys.modules.get(name, sys)).values()):
            return str(name)
    return "proj"
