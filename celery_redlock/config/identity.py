"""Identity of an app among the apps that share its lock nodes or its host."""

from __future__ import annotations

import hashlib
from typing import Any
from urllib.parse import quote, urlsplit

from celery import Celery

_PREFIXES = ("global_keyprefix", "queue_name_prefix")
"""Kombu's options for a prefix of all keys (Redis) or queues (SQS, Azure, Google Pub/Sub)."""


def identity_of(app: Celery) -> str:
    """Return ``<name>@<12 hexadecimal digits>``, the same wherever the app publishes from.

    The digits are a digest of the broker's address and of the prefix of its queues, without user
    and password: a digest of those would let a reader try passwords until one fits.
    """
    brokers = "\n".join([*sorted(map(_place_of, _urls_of(app))), *_prefixes_of(app)])
    digits = hashlib.sha256(brokers.encode(errors="surrogatepass")).hexdigest()[:12]
    return f"{quote(app.main or '', safe='')}@{digits}"


def _urls_of(app: Celery) -> list[str]:
    conf: Any = app.conf
    given = conf.broker_write_url
    alternatives = given if isinstance(given, (list, tuple)) else str(given).split(";")
    return [str(url).strip() for url in alternatives]


def _prefixes_of(app: Celery) -> list[str]:
    """Return the transport options that part apps on one broker, those that are set."""
    options: Any = app.conf.broker_transport_options or {}
    return [f"{name}={options[name]}" for name in _PREFIXES if options.get(name)]


def _place_of(url: str) -> str:
    """Return scheme, host and path of a URL, without user, password and options."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    # The part of a password behind a / looks like a path.
    host, path = (part.rpartition("@")[2] for part in (parts.netloc, parts.path))
    return f"{parts.scheme}://{host.lower()}{path}"
