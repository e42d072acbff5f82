"""URLs of the nodes: those that `redlock_nodes` names, or else the result backend's or broker's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from celery_redlock.redlock.errors import ConfigurationError

_BETWEEN_URLS = re.compile(r"[,\s]+(?=[A-Za-z][A-Za-z0-9+.-]*://)")
"""Separator of URLs. A scheme must follow, since a password may hold a comma."""

_SCHEMES = frozenset({"redis", "rediss", "valkey", "valkeys", "unix"})


def urls_in(text: str) -> list[str]:
    """Return the URLs in a text, with commas or white space between them."""
    return _BETWEEN_URLS.split(text.strip(" \t\r\n,"))


def nodes_given(value: object) -> tuple[str, ...]:
    """Return the URLs in a value of `redlock_nodes`.

    Raises:
        ConfigurationError: Not URLs, or none; without the value, which may hold a password.
    """
    if isinstance(value, str):
        value = urls_in(value)
    if not isinstance(value, (list, tuple)):
        kind = type(value).__name__
        raise ConfigurationError(f"redlock_nodes is of type {kind}; give a list of URLs")
    for index, url in enumerate(value):
        # The value may hold a password, so it is not shown.
        if not isinstance(url, str):
            kind = type(url).__name__
            raise ConfigurationError(f"redlock_nodes[{index}] is of type {kind}; give a URL")
    nodes = tuple(url.strip() for url in value)
    if not all(nodes) or not nodes:
        raise ConfigurationError(
            "redlock_nodes is empty, or one of its URLs is; give URLs, or remove the setting to "
            "lock on the result backend or the broker"
        )
    for index, url in enumerate(nodes):
        _refuse_list_in(url, f"redlock_nodes[{index}]")
    return nodes


def _refuse_list_in(url: str, name: str) -> None:
    """Raise an error if a node's URL has commas where those between URLs would be.

    Raises:
        ConfigurationError: It has; without the URL, which may hold a password.
    """
    if _BETWEEN_URLS.search(url):
        raise ConfigurationError(
            f"{name} holds several URLs; give a list with one each, or one string with commas"
        )
    with suppress(ValueError):  # is refused where it is read
        parts = urlsplit(url)
        # An @ behind the host comes from a password with a / ? or # in it.
        is_cut = "@" in parts.path + parts.query + parts.fragment
        if "," in parts.netloc.rpartition("@")[2] and not is_cut:
            raise ConfigurationError(
                f"{name} has a comma in its host; begin each node with its scheme: "
                "redis://a,redis://b,redis://c"
            )


def fallback_node(conf: Mapping[str, Any]) -> tuple[str, str]:
    """Return the node of an app that names none: result backend or broker, and its URL.

    Raises:
        ConfigurationError: Neither is a Redis server.
    """
    for source in ("result_backend", "broker_url"):
        # The setting is read as an attribute, so that Celery heeds its environment variables, too.
        url = _as_node(getattr(conf, source, None) or conf.get(source))
        if url is not None:
            return source, url
    raise ConfigurationError(
        "redlock_nodes is not set, and neither the result backend nor the broker is a Redis server "
        "to fall back on; set it to the URLs of 1, 3 or 5 "
        'independent servers, e.g. ["redis://a", "redis://b", "redis://c"]'
    )


def _as_node(url: object) -> str | None:
    """Return the first server of a broker or backend URL as a node's URL; None if not Redis.

    Kombu's transport options are dropped; those of TLS stay.
    """
    first = url[0] if isinstance(url, (list, tuple)) and url else url
    if not isinstance(first, str):
        return None
    try:
        parts = urlsplit(first.split(";")[0].strip())
    except ValueError:
        return None
    scheme = {"redis+socket": "unix"}.get(parts.scheme, parts.scheme)
    if scheme not in _SCHEMES:
        return None
    query = dict(parse_qsl(parts.query))
    kept = {name: value for name, value in query.items() if name.startswith("ssl_")}
    if "ssl_cert_reqs" in kept:
        # Celery accepts the constant's name, redis-py only the word.
        kept["ssl_cert_reqs"] = kept["ssl_cert_reqs"].removeprefix("CERT_").lower()
    database = query.get("db") or query.get("virtual_host", "").removeprefix("/")
    if database:
        kept["db"] = database
    # urlunsplit would drop the slashes of unix:///path.
    options = f"?{urlencode(kept)}" if kept else ""
    return f"{scheme}://{parts.netloc}{parts.path}{options}"
