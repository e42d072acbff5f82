"""Server of the page: the address that it listens at, and its threads."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection
from contextlib import closing
from typing import Any

from flask import Flask
from waitress.channel import HTTPChannel
from waitress.server import create_server

from celery_redlock.redlock.errors import ConfigurationError

_SHORTEST_TOKEN = 16
_THREADS = 8
_MOST_CONNECTIONS = 500
_PATIENCE_S = 10
_FROM_PROXY = {"x-forwarded-proto"}


def listen(host: str, port: int, tokens: Collection[str]) -> socket.socket:
    """Return a socket that listens at an address.

    Args:
        host: Name or address of an interface.
        port: Port; 0: any that is free.
        tokens: Tokens of the page, a different one for each role; empty: it has none.

    Raises:
        ConfigurationError: Others than this machine could reach a page without a token, a token
            can be guessed, two are equal, or the address can't be used.
    """
    for token in tokens:
        if len(token) < _SHORTEST_TOKEN:
            raise ConfigurationError(
                f"a token must be at least {_SHORTEST_TOKEN} characters long, got {len(token)}; "
                "make one: python -c 'import secrets; print(secrets.token_urlsafe())'"
            )
    if len({*tokens}) < len(tokens):
        raise ConfigurationError(
            "--token and --view-token must differ: with equal ones, who may only look could act"
        )
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port)[0]
        # Before it listens: the address itself decides, not its name.
        if not tokens and not ipaddress.ip_address(address[0]).is_loopback:
            raise ConfigurationError(
                f"{host} can be reached from other machines: give a token with --token, or listen "
                "at 127.0.0.1"
            )
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise ConfigurationError(f"can't listen at {host}:{port}: {error}") from error


def serve(page: Flask, listener: socket.socket, trusted_proxy: str | None = None) -> None:
    """Serve the page until Ctrl-C.

    Args:
        page: The page.
        listener: Socket that it is served at.
        trusted_proxy: Address of a proxy whose X-Forwarded-Proto says whether a browser uses TLS;
            None: nobody is believed.
    """
    with closing(listener), closing(new_server(page, listener, trusted_proxy)) as server:
        server.run()


def new_server(page: Flask, listener: socket.socket, trusted_proxy: str | None = None) -> Any:
    """Return the server of the page, which does not run yet; the arguments are those of `serve`."""
    server: Any = create_server(
        page, sockets=[listener], threads=_THREADS, ident=None, trusted_proxy=trusted_proxy,
        trusted_proxy_headers=_FROM_PROXY if trusted_proxy else set(),
        clear_untrusted_proxy_headers=True, connection_limit=_MOST_CONNECTIONS,
        asyncore_use_poll=True, channel_timeout=_PATIENCE_S, cleanup_interval=1,
    )  # fmt: skip
    server.channel_class = _Channel
    return server


class _Channel(HTTPChannel):
    """Connection whose whole request must come in time: with a byte now and then, it is idle."""

    _began = 0.0

    def received(self, data: bytes) -> bool:
        if self.request is None:
            self._began = self.last_activity
        else:
            self.last_activity = self._began
        return bool(super().received(data))


def url_of(listener: socket.socket) -> str:
    """Return the URL of the page."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
