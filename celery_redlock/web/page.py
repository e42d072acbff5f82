"""The page: its routes and what they show."""

from __future__ import annotations

import re
import secrets
import shlex
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from flask import Flask, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from markupsafe import Markup, escape
from werkzeug.exceptions import HTTPException

from celery_redlock import units
from celery_redlock.operate.incidents import Incidents
from celery_redlock.operate.lock_view import look_closely
from celery_redlock.operate.snapshots import SHOWN, Snapshots
from celery_redlock.operate.target import Target
from celery_redlock.operate.timeline import timeline_of
from celery_redlock.redlock.errors import RedlockError

from .actions import add_end, add_release
from .guard import Access, Sessions, csrf, guard

_MOST_LOCKS = 200
_MOST_ENTRIES = 30
_MOST_INCIDENTS = 20
_MOST_MISSED = 10
_MOST_BYTES = 64 * 1024
_LONGEST_WORD = 24
_SEPARATORS = re.compile(r"(?<=[.:/_@,=?&|+-])(?=[^\s.:/_@,=?&|+-])")


def new_page(
    target: Target,
    access: Access,
    incidents: Incidents | None,
    *,
    command: str,
    cookie: str = "redlock",
    now: Callable[[], float] = time.time,
) -> Flask:
    """Return the page as a WSGI application.

    Args:
        target: The nodes, and the app.
        access: Who may do what.
        incidents: Recent conflicts and lost leases; None: without an app nobody announces them.
        command: Start of the commands that the page names.
        cookie: Name of the session's cookie: browsers send it to each port of a host.
        now: Time, seconds since the epoch.
    """
    page = Flask(__name__)
    page.config.update(
        # Who has logged in is forgotten when the process ends.
        SECRET_KEY=secrets.token_bytes(),
        SESSION_COOKIE_NAME=cookie,
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SAMESITE="Strict",
        MAX_CONTENT_LENGTH=_MOST_BYTES,
    )
    page.session_interface = Sessions()
    page.jinja_env.globals.update(
        units=units, csrf=csrf, access=access, command=command, quoted=shlex.quote,
        has_app=target.app is not None, shows_arguments=target.shows_arguments,
    )  # fmt: skip
    page.jinja_env.filters.update(breakable=breakable, iso=_iso)
    guard(page, access)
    _add_overview(page, target, incidents, now)
    _add_lock(page, target, now)
    add_release(page, target, now)
    add_end(page, target, now)
    _add_login(page, access)

    @page.errorhandler(HTTPException)
    def refused(error: HTTPException) -> ResponseReturnValue:
        return render_template("message.html", title=error.name, text=error.description), (
            error.code or 500
        )

    @page.errorhandler(RedlockError)
    def failed(error: RedlockError) -> ResponseReturnValue:
        return render_template("message.html", title="Not done", text=str(error)), 503

    return page


def breakable(text: str, most: int = 0) -> Markup:
    """Return a name as markup that breaks at its separators.

    Args:
        text: The name.
        most: Most characters. Above, the middle is left out, as in words that have no separator and
            are too long for a column. 0: all is there.
    """
    words = _SEPARATORS.split(units.middle(text, most) if most else text)
    if most:
        words = [units.middle(word, _LONGEST_WORD) for word in words]
    # Browsers break a line after an ellipsis, too.
    whole = Markup('<span class="whole">{}</span>')
    return Markup("<wbr>").join(
        whole.format(word) if "…" in word else escape(word) for word in words
    )


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="seconds")


def _add_overview(
    page: Flask, target: Target, incidents: Incidents | None, now: Callable[[], float]
) -> None:
    snapshots = Snapshots(target, _MOST_LOCKS, now)

    def shown() -> dict[str, Any]:
        text, kind = request.args.get("q", ""), request.args.get("kind", "")
        overview = snapshots.get(text, kind)
        return {
            "overview": overview,
            "now": overview.at,
            "timeline": timeline_of(overview.ticks, overview.at, _MOST_ENTRIES),
            "missed": overview.missed[:_MOST_MISSED],
            "incidents": incidents and incidents.latest[:_MOST_INCIDENTS],
            "problem": incidents and incidents.problem,
            "text": text,
            "kind": kind,
            "kinds": [one.value for one in SHOWN],
        }

    @page.get("/")
    def index() -> ResponseReturnValue:
        return render_template("index.html", **shown())

    @page.get("/live")
    def live() -> ResponseReturnValue:
        return render_template("live.html", **shown())


def _add_lock(page: Flask, target: Target, now: Callable[[], float]) -> None:
    @page.get("/lock")
    def lock() -> ResponseReturnValue:
        view, then = look_closely(target, request.args.get("key", ""))
        return render_template("lock.html", view=view, next_call=then, now=now())


def _add_login(page: Flask, access: Access) -> None:
    @page.get("/login")
    def login() -> ResponseReturnValue:
        return render_template("login.html", is_wrong=False)

    @page.post("/login")
    def log_in() -> ResponseReturnValue:
        role = access.role_of(request.form.get("token", ""))
        if role is None:
            return render_template("login.html", is_wrong=True), 403
        access.log_in(role)
        return redirect(url_for("index"))

    @page.post("/logout")
    def logout() -> ResponseReturnValue:
        access.log_out()
        return redirect(url_for("login"))
