"""Guard of the page: which requests are refused before a view sees them."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Collection
from urllib.parse import urlsplit

from flask import Flask, Response, abort, redirect, request, session, url_for
from flask.sessions import SecureCookieSessionInterface
from flask.typing import ResponseReturnValue

_READING = ("GET", "HEAD")
_MOST_LOGINS = 1000
_OPEN = ("login", "log_in", "static")
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


class Access:
    """Access to the page, and the logins of this process.

    A cookie is one of them until somebody logs out with it.

    Args:
        token: Token to log in with; None: everybody may read, and nobody may change anything.
        hosts: Names under which the page is reached, besides localhost and IP addresses.
    """

    def __init__(self, token: str | None = None, hosts: Collection[str] = ()) -> None:
        self.token = token
        self._hosts = hosts
        self._logins: dict[str, None] = {}

    def is_host(self, given: str) -> bool:
        """Return whether a Host header is one of this page's.

        A foreign page whose name suddenly leads here (DNS rebinding) has a name of its own.
        """
        try:
            name = urlsplit(f"//{given}").hostname or ""
        except ValueError:
            return False
        return name == "localhost" or name in map(str.lower, self._hosts) or _is_address(name)

    def is_token(self, given: str) -> bool:
        """Return whether a text is the token."""
        return self.token is not None and hmac.compare_digest(
            given.encode("utf-8", "replace"), self.token.encode()
        )

    def log_in(self) -> None:
        """Log this session in; of many logins the oldest ends."""
        session.clear()
        session["login"] = secrets.token_urlsafe(32)
        self._logins[session["login"]] = None
        for old in list(self._logins)[:-_MOST_LOGINS]:
            self._logins.pop(old, None)

    def log_out(self) -> None:
        """Log this session out, and whoever has a copy of its cookie."""
        self._logins.pop(session.get("login", ""), None)
        session.clear()

    def is_logged_in(self) -> bool:
        """Return whether this session is logged in."""
        return session.get("login") in self._logins


def guard(app: Flask, access: Access) -> None:
    """Refuse the requests that are not allowed, and set the headers of every response."""

    @app.before_request
    def _check() -> ResponseReturnValue | None:
        if not access.is_host(request.host):
            abort(400, f"{request.host!r} is not a name of this page; allow it with --allow-host.")
        if request.method not in _READING:
            _check_change(access)
        if access.token is None or request.endpoint in _OPEN or access.is_logged_in():
            return None
        if request.endpoint == "live":
            abort(401, "Log in again.")
        return redirect(url_for("login"))

    @app.after_request
    def _harden(response: Response) -> Response:
        response.headers.update(_HEADERS)
        if request.endpoint != "static":
            response.headers["Cache-Control"] = "no-store"
        return response


class Sessions(SecureCookieSessionInterface):
    """Sessions in a cookie, which a browser that uses TLS never sends without it."""

    def get_cookie_secure(self, app: Flask) -> bool:
        """Return whether this request came over TLS; only a trusted proxy can say so."""
        return super().get_cookie_secure(app) or request.is_secure


def csrf() -> str:
    """Return the secret that each form of this session carries."""
    if "csrf" not in session:
        session["csrf"] = secrets.token_urlsafe(32)
    return str(session["csrf"])


def _check_change(access: Access) -> None:
    if access.token is None:
        abort(405, "This page only shows; to release locks, start it with --token.")
    if urlsplit(request.headers.get("Origin", "")).netloc != request.host:
        abort(403, "The request comes from another site, or does not say from which.")
    if not hmac.compare_digest(csrf().encode(), request.form.get("csrf", "").encode()):
        abort(403, "The form is not one of this session; load the page again.")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
