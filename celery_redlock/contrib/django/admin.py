"""Nodes and locks in the admin, with a release that asks first."""

from __future__ import annotations

import logging
import time
from typing import Any

from django.apps import apps
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.views.decorators.http import require_safe

from celery_redlock.operate.lock_view import next_call, view_of
from celery_redlock.operate.locks import Lock as LockOnNodes
from celery_redlock.operate.locks import task_in
from celery_redlock.operate.node_set import NodeSet
from celery_redlock.operate.node_status import NodeStatus
from celery_redlock.operate.removal import removal_of
from celery_redlock.operate.snapshots import SHOWN, Snapshots
from celery_redlock.operate.target import Target, target_of_app
from celery_redlock.operate.tasks import options_of
from celery_redlock.redlock.errors import RedlockError
from celery_redlock.redlock.lease import holder_of
from celery_redlock.redlock.protocol.replies import Failed
from celery_redlock.units import milliseconds, seconds

from .models import Lock

logger = logging.getLogger(__name__)
_MOST_LOCKS = 200
_FOLDER = "admin/celery_redlock"
_RELEASE = "celery_redlock.release_lock"


@admin.register(Lock)
class LockAdmin(admin.ModelAdmin):
    """Pages of the locks: a list, one lock, and the confirmation of its release."""

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
        view = self.admin_site.admin_view
        name = "celery_redlock_lock"
        return [
            path("", view(require_safe(self.list_view)), name=f"{name}_changelist"),
            path("lock/", view(require_safe(self.lock_view)), name=name),
            path("release/", view(self.release_view), name=f"{name}_release"),
        ]

    def list_view(self, request: HttpRequest) -> HttpResponse:
        """Show nodes and locks."""
        text, kind = request.GET.get("q", ""), request.GET.get("kind", "")
        self._check(request)
        try:
            if self._snapshots is None:
                self._snapshots = Snapshots(_target(), _MOST_LOCKS)
            snapshot = self._snapshots.get(text, kind)
        except RedlockError as error:
            return self._shown(request, "locks", "Locks", problem=error)
        overview = snapshot.overview
        return self._shown(
            request, "locks", "Locks",
            overview=overview, is_enough=overview.votes >= overview.needed,
            nodes=list(map(_node_row, overview.statuses)),
            locks=[_lock_row(lock, snapshot.at) for lock in overview.oldest],
            is_cut=len(overview.oldest) < overview.found,
            text=text, kind=kind, kinds=[one.value for one in SHOWN],
        )  # fmt: skip

    def lock_view(self, request: HttpRequest) -> HttpResponse:
        """Show what each node stores under a key."""
        self._check(request)
        key, now, target = request.GET.get("key", ""), time.time(), _target()
        with NodeSet(target.urls, target.patience) as nodes:
            view = view_of(nodes, target.key_prefix, key)
        here = [one for one in (view.lock, view.pending, *view.marks) if one]
        rows = [
            (name, each.error, "-", "-")
            if isinstance(each, Failed)
            else (
                name, holder_of(each.owner) or "-",
                seconds(each.remaining) if each.owner else "-", each.floor or "-",
            )
            for name, each in zip(view.names, view.views, strict=True)
        ]  # fmt: skip
        return self._shown(
            request, "lock", key, rows=rows, here=[_lock_row(lock, now) for lock in here],
            next_call=next_call(view, options_of(target.app, task_in(key))),
            may_release=request.user.has_perm(_RELEASE),
        )  # fmt: skip

    def release_view(self, request: HttpRequest) -> HttpResponse:
        """Ask whether to release a lock; release it on POST."""
        self._check(request)
        if not request.user.has_perm(_RELEASE):
            raise PermissionDenied
        given = request.POST if request.method == "POST" else request.GET
        key, label = given.get("key", ""), given.get("done") or None
        target = _target()
        try:
            with NodeSet(target.urls, target.patience) as nodes:
                removal = removal_of(target, nodes, key, label)
                if removal and request.method != "POST":
                    return self._shown(
                        request, "release", f"Release {key}?", label=label,
                        meaning=removal.meaning, lock=_lock_row(removal.lock, time.time()),
                    )  # fmt: skip
                is_as_shown = removal and removal.lock.id == given.get("expect")
                is_released = bool(removal and is_as_shown and removal.make())
        except RedlockError as error:
            messages.error(request, str(error))
        else:
            if is_released:
                logger.warning(
                    "lock released in the admin key=%s id=%s user=%s",
                    key, given["expect"], request.user.pk,
                )  # fmt: skip
                messages.success(request, f"{key} is released.")
            else:
                messages.error(request, f"{key} is not released: it has another holder, or none.")
        return HttpResponseRedirect(reverse("admin:celery_redlock_lock_changelist"))

    def _check(self, request: HttpRequest) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied

    def _shown(
        self, request: HttpRequest, name: str, title: str, **context: Any
    ) -> TemplateResponse:
        about = self.admin_site.each_context(request) | {"title": title, "opts": self.model._meta}  # noqa: SLF001
        return TemplateResponse(request, f"{_FOLDER}/{name}.html", about | context)


def _target() -> Target:
    return target_of_app(apps.get_app_config("celery_redlock").celery_app)


def _node_row(status: NodeStatus) -> dict[str, Any]:
    return {
        "node": status.node,
        "state": status.state,
        "why": status.why or "",
        "version": status.version or "-",
        "uptime": seconds(status.number("uptime_in_seconds")),
        "latency": milliseconds(status.latency),
        "clock": milliseconds(status.clock_offset, sign="+"),
    }


def _lock_row(lock: LockOnNodes, now: float) -> dict[str, Any]:
    is_mark = lock.kind.value == "done"
    return {
        "key": lock.key,
        "kind": lock.kind.value,
        "held": seconds(lock.age(now)),
        "remaining": seconds(lock.remaining),
        "votes": f"{lock.votes}/{lock.nodes}",
        "holder": f"{lock.task_id or '-'}@{lock.host}" if lock.host else lock.task_id or "-",
        "id": lock.id,
        "mark": lock.owner if is_mark else "",
    }
