"""Guard of the page: which requests are refused before a view sees them."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Collection
from enum import Enum
from urllib.parse import urlsplit

from flask import Flask, Response, abort, redirect, request, session, url_for
from flask.sessions import SecureCookieSessionInterface
from flask.typing import ResponseReturnValue

_READING = ("GET", "HEAD")
_MOST_LOGINS = 1000
_OPEN = ("login", "log_in", "logout", "static")
_ASKING = ("confirm", "confirm_end")
"""Endpoints that only read, and have the button of an action."""
_HEADERS = {
    # Nothing inline, nothing from elsewhere, and in nobody's frame.
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # With "no-referrer" a browser would send no Origin that could be compared.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Role(Enum):
    """What somebody who has logged in may do."""

    VIEW = "view"
    ACT = "act"


class Access:
    """Access to the page, and the logins of this process.

    A cookie is one of them until somebody logs out with it.

    Args:
        token: Token of those who may act; None: nobody may change anything.
        hosts: Names under which the page is reached, besides localhost and IP addresses.
        view_token: Token of those who may only look. Without both tokens everybody may.
    """

    def __init__(
        self, token: str | None = None, hosts: Collection[str] = (), view_token: str | None = None
    ) -> None:
        given = {Role.ACT: token, Role.VIEW: view_token}
        self._tokens = {role: one for role, one in given.items() if one is not None}
        self._hosts = hosts
        self._logins: dict[Role, dict[object, None]] = {role: {} for role in Role}

    def is_host(self, given: str) -> bool:
        """Return whether a Host header is one of this page's.

        A foreign page whose name suddenly leads here (DNS rebinding) has a name of its own.
        """
        try:
            name = urlsplit(f"//{given}").hostname or ""
        except ValueError:
            return False
        return name == "localhost" or name in map(str.lower, self._hosts) or _is_address(name)

    @property
    def has_tokens(self) -> bool:
        """Whether only those who log in see anything."""
        return bool(self._tokens)

    def role_of(self, given: str) -> Role | None:
        """Return the role of those who have this token; None: it is none of the page's."""
        known, text = self._tokens.items(), given.encode()
        return next((role for role, one in known if hmac.compare_digest(text, one.encode())), None)

    def log_in(self, role: Role) -> None:
        """Log this session in; of many logins of a role the oldest ends."""
        session.clear()
        session["login"] = secrets.token_urlsafe()
        logins = self._logins[role]
        logins[session["login"]] = None
        for old in list(logins)[:-_MOST_LOGINS]:
            logins.pop(old, None)

    def log_out(self) -> None:
        """Log this session out, and whoever has a copy of its cookie."""
        for logins in self._logins.values():
            logins.pop(session.get("login"), None)
        session.clear()

    def role(self) -> Role | None:
        """Return the role of this session; None: it is not logged in."""
        login = session.get("login")
        return next((role for role, logins in self._logins.items() if login in logins), None)

    def may_act(self) -> bool:
        """Return whether this session may release locks and end runs."""
        return self.role() is Role.ACT

    def to_act(self) -> str:
        """Return what this session has to do before it may act."""
        if Role.ACT not in self._tokens:
            return "start this page with --token"
        return "log in with the token of --token (REDLOCK_WEB_TOKEN)"


def guard(app: Flask, access: Access) -> None:
    """Refuse the requests that are not allowed, and set the headers of every response."""

    @app.before_request
    def _check() -> ResponseReturnValue | None:
        if not access.is_host(request.host):
            abort(400, f"{request.host!r} is not a name of this page; allow it with --allow-host.")
        if (to_login := _check_role(access)) is not None:
            return to_login
        if request.method not in _READING:
            _check_form()
        return None

    @app.after_request
    def _harden(response: Response) -> Response:
        response.headers.update(_HEADERS)
        if request.endpoint != "static":
            response.headers["Cache-Control"] = "no-store"
        return response


class Sessions(SecureCookieSessionInterface):
    """Sessions in a cookie, which a browser that uses TLS never sends without it."""

    def get_cookie_secure(self, app: Flask) -> bool:  # noqa: ARG002  # as Flask calls it
        """Return whether this request came over TLS; only a trusted proxy can say so."""
        return request.is_secure


def csrf() -> str:
    """Return the secret that each form of this session carries."""
    if "csrf" not in session:
        session["csrf"] = secrets.token_urlsafe()
    return str(session["csrf"])


def _check_role(access: Access) -> ResponseReturnValue | None:
    changes = request.method not in _READING
    only_look = f"You may only look; to release locks and end runs, {access.to_act()}."
    if changes and not access.has_tokens:
        abort(405, description=only_look)
    if request.endpoint in _OPEN:
        return None
    if access.has_tokens and access.role() is None:
        if request.endpoint == "live":
            abort(401, "Log in again.")
        return redirect(url_for("login"))
    if (changes or request.endpoint in _ASKING) and not access.may_act():
        abort(403, only_look)
    return None


def _check_form() -> None:
    if not _is_of_page(str(request.origin)):
        abort(403, "The request comes from another site, or does not say from which.")
    if not hmac.compare_digest(csrf().encode(), request.form.get("csrf", "").encode()):
        abort(403, "The form is not one of this session; load the page again.")


def _is_of_page(origin: str) -> bool:
    try:
        return urlsplit(origin).netloc == request.host
    except ValueError:
        return False


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
