"""The `redlock_*` settings of a Celery app, read when they are needed and checked.

Nothing is ever written to `app.conf`: `add_defaults` and `setdefault` would shadow what the user
sets later.
"""

from __future__ import annotations

import difflib
import functools
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

from kombu.utils.url import maybe_sanitize_url

from .redlock.checks import SHORTEST_TTL_S
from .redlock.errors import ConfigurationError

logger = logging.getLogger(__name__)

PREFIX = "redlock_"

OPTION_SETTINGS = frozenset(
    {
        "redlock_ttl",
        "redlock_key",
        "redlock_lifetime",
        "redlock_on_conflict",
        "redlock_on_unavailable",
        "redlock_on_lost",
        "redlock_min_hold",
        "redlock_max_hold",
        "redlock_wait",
        "redlock_queue_ttl",
        "redlock_conflict_result",
    }
)
"""Defaults of task options. Their values are checked with the tasks, not here."""

KNOWN_SETTINGS = OPTION_SETTINGS | {
    "redlock_nodes",
    "redlock_node_timeout",
    "redlock_max_ttl",
    "redlock_max_clock_skew",
    "redlock_restart_guard",
    "redlock_key_prefix",
    "redlock_enabled",
    # Read by the beat scheduler.
    "redlock_beat_scheduler",
    "redlock_beat_on_unavailable",
    "redlock_beat_misfire_grace_time",
}

_SHORTEST_S = 0.001
_LONGEST_S = 10 * 365 * 86_400.0
"""Ten years. More is a mistaken unit, and far more overflows what Redis can count."""

_BETWEEN_URLS = re.compile(r"[,\s]+(?=[A-Za-z][A-Za-z0-9+.-]*://)")
"""Looks for a scheme, since a password may hold a comma."""

_UNSAFE_PREFIX = re.compile(r"[{}\s\x00-\x1f\x7f]")
_Default = TypeVar("_Default", bool, None)

_NODE_SCHEMES = frozenset({"redis", "rediss", "valkey", "valkeys", "unix"})


@dataclass(frozen=True, slots=True)
class Settings:
    """What an app says about locking. Times are in seconds.

    Attributes:
        nodes: URLs of independent masters. Empty only if locking is switched off, or none are named
            and none are needed.
        node_timeout: How long one node may take in one round.
        max_ttl: Upper bound of any lease's ttl.
        max_clock_skew: By how much a node's wall clock may be stepped.
        restart_guard: Whether a restarted node sits out `max_ttl`. None: with 3 nodes and more.
        key_prefix: What every key starts with.
        enabled: Whether anything is locked at all.
        option_defaults: What the user set as defaults of task options, by the option's name.
    """

    nodes: tuple[str, ...]
    node_timeout: float
    max_ttl: float
    max_clock_skew: float
    restart_guard: bool | None
    key_prefix: str
    enabled: bool
    option_defaults: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class BeatSettings:
    """What an app says about beat.

    Attributes:
        scheduler: The scheduler to build on: a class or its path. None: Celery's own.
        misfire_grace_time: How late a tick may still be published, in seconds.
        publishes_without_quorum: Whether ticks are published unclaimed while there is no quorum.
    """

    scheduler: object
    misfire_grace_time: float
    publishes_without_quorum: bool


def beat_settings_from(conf: Mapping[str, Any]) -> BeatSettings:
    """Return the settings of an app's beat.

    Raises:
        ConfigurationError: An unknown setting, or a wrong type or range.
    """
    given = _given(conf)
    choice = given.get("redlock_beat_on_unavailable", "wait")
    if choice not in ("wait", "publish"):
        remedy = 'write "wait", or "publish" to publish ticks on every host meanwhile'
        _refuse("redlock_beat_on_unavailable", choice, "is neither", remedy)
    scheduler = given.get("redlock_beat_scheduler")
    if scheduler is not None and not isinstance(scheduler, (str, type)):
        _refuse("redlock_beat_scheduler", scheduler, "is no class", "give a class or its path")
    return BeatSettings(
        scheduler=scheduler,
        misfire_grace_time=_seconds(given, "redlock_beat_misfire_grace_time", 60.0, least=1.0),
        publishes_without_quorum=choice == "publish",
    )


def settings_from(conf: Mapping[str, Any], *, needs_nodes: bool = True) -> Settings:
    """Return the settings of an app.

    Args:
        conf: `app.conf`, in whichever way it was filled: by `update`, from an object, or with a
            namespace. Reading it makes Celery load a configuration that is still pending.
        needs_nodes: Whether to look for a server to fall back on when none is named. False: for
            what is asked of every app that knows of the task, also those that never lock.

    Raises:
        ConfigurationError: An unknown setting, a wrong type or range, or no node to lock on.
    """
    given = _given(conf)
    enabled = _flag(given, "redlock_enabled", default=True)
    return Settings(
        nodes=_nodes(given, conf) if "redlock_nodes" in given or (enabled and needs_nodes) else (),
        node_timeout=_seconds(given, "redlock_node_timeout", 0.05),
        max_ttl=_seconds(given, "redlock_max_ttl", 60.0, least=SHORTEST_TTL_S),
        max_clock_skew=_seconds(given, "redlock_max_clock_skew", 1.0, least=0.0),
        restart_guard=_flag(given, "redlock_restart_guard", default=None),
        key_prefix=_key_prefix(given),
        enabled=enabled,
        option_defaults=MappingProxyType(
            {
                f"lock_{name.removeprefix(PREFIX)}": given[name]
                for name in sorted(OPTION_SETTINGS & given.keys())
            }
        ),
    )


def _given(conf: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the user set, by its lower-case name; None counts as not set."""
    # A pending configuration lists its keys only after one of them was read.
    conf.get("redlock_nodes")
    namespace = getattr(conf, "prefix", None) or ""
    given: dict[str, Any] = {}
    for key in map(str, conf.keys()):
        name = key.removeprefix(namespace).lower()
        if not name.startswith(PREFIX):
            continue
        value = conf.get(name)
        if value is None:
            _refuse_upper_case(key, namespace)
            continue
        if name not in KNOWN_SETTINGS:
            close = difflib.get_close_matches(name, KNOWN_SETTINGS, n=1)
            hint = f"did you mean {close[0]}?" if close else "remove or rename it."
            known = ", ".join(sorted(KNOWN_SETTINGS))
            # Without the value: what is meant for redlock_nodes may hold a password.
            raise ConfigurationError(f"{key} is no setting; {hint} Known are {known}")
        given[name] = value
    return given


def _refuse_upper_case(key: str, namespace: str) -> None:
    # With a namespace the source is Django's settings, where other packages' names are, too.
    if not namespace and key.isupper() and key.lower() in KNOWN_SETTINGS:
        raise ConfigurationError(
            f"{key} is never read: without a namespace Celery's settings are in lower case; "
            f"write {key.lower()}"
        )


def _refuse(name: str, value: object, problem: str, remedy: str) -> NoReturn:
    raise ConfigurationError(f"{name} = {value!r} {problem}; {remedy}")


def _seconds(
    given: Mapping[str, Any], name: str, default: float, least: float = _SHORTEST_S
) -> float:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        remedy = "write it without quotes" if isinstance(value, str) else "give seconds"
        _refuse(name, value, f"is of type {type(value).__name__}, not a number", remedy)
    # A comparison with NaN is never true.
    if not least <= value <= _LONGEST_S:
        limits = f"at least {least:g} and at most {_LONGEST_S:.0f} (ten years)"
        _refuse(name, value, "is out of range", f"give seconds, {limits}")
    return float(value)


def _flag(given: Mapping[str, Any], name: str, *, default: _Default) -> bool | _Default:
    if name not in given:
        return default
    value = given[name]
    if not isinstance(value, bool):
        _refuse(name, value, f"is of type {type(value).__name__}", "write True or False")
    return value


def _key_prefix(given: Mapping[str, Any]) -> str:
    value = given.get("redlock_key_prefix", "redlock")
    if not isinstance(value, str) or not value or _UNSAFE_PREFIX.search(value):
        _refuse(
            "redlock_key_prefix",
            value,
            "can't start a key",
            "give a string without braces (they mark the hash tag) and white space",
        )
    return value


def _nodes(given: Mapping[str, Any], conf: Mapping[str, Any]) -> tuple[str, ...]:
    if "redlock_nodes" not in given:
        return (_fallback_node(conf),)
    value = given["redlock_nodes"]
    if isinstance(value, str):
        value = _BETWEEN_URLS.split(value.strip(" \t\r\n,"))
    if not isinstance(value, (list, tuple)):
        kind = type(value).__name__
        raise ConfigurationError(f"redlock_nodes is of type {kind}; give a list of URLs")
    for index, url in enumerate(value):
        # Not shown: it may hold a password.
        if not isinstance(url, str):
            kind = type(url).__name__
            raise ConfigurationError(f"redlock_nodes[{index}] is of type {kind}; give a URL")
    nodes = tuple(url.strip() for url in value)
    if not all(nodes) or not nodes:
        raise ConfigurationError(
            "redlock_nodes names no server, or an empty one; give URLs, or remove the setting to "
            "lock on the result backend or the broker"
        )
    return nodes


def _fallback_node(conf: Mapping[str, Any]) -> str:
    for source in ("result_backend", "broker_url"):
        # As an attribute, Celery heeds its environment variables as well.
        url = _node_url(getattr(conf, source, None) or conf.get(source))
        if url is not None:
            _warn_quorum_of_one(source, maybe_sanitize_url(url))
            return url
    raise ConfigurationError(
        "redlock_nodes is not set, and neither the result backend nor the broker is a Redis server "
        'to fall back on; set it to the URLs of 1, 3 or 5 independent servers, e.g. ["redis://a", '
        '"redis://b", "redis://c"]'
    )


def _node_url(url: object) -> str | None:
    """Return the first server of a broker or backend URL as the lock takes it; None if not Redis.

    Kombu's transport options are left out; what TLS needs stays.
    """
    first = url[0] if isinstance(url, (list, tuple)) and url else url
    if not isinstance(first, str):
        return None
    try:
        parts = urlsplit(first.split(";")[0].strip())
    except ValueError:
        return None
    scheme = {"redis+socket": "unix"}.get(parts.scheme, parts.scheme)
    if scheme not in _NODE_SCHEMES:
        return None
    query = dict(parse_qsl(parts.query))
    kept = {name: value for name, value in query.items() if name.startswith("ssl_")}
    if "ssl_cert_reqs" in kept:
        # Celery takes the constant's name, redis-py only the word.
        kept["ssl_cert_reqs"] = kept["ssl_cert_reqs"].removeprefix("CERT_").lower()
    database = query.get("db") or query.get("virtual_host", "").strip("/")
    if database:
        kept["db"] = database
    # Not urlunsplit, which leaves out the slashes of unix:///path.
    options = f"?{urlencode(kept)}" if kept else ""
    return f"{scheme}://{parts.netloc}{parts.path}{options}"


@functools.cache
def _warn_quorum_of_one(source: str, node: str) -> None:
    logger.warning(
        "quorum of one: redlock_nodes is not set, so the %s alone is locked on, and while it is "
        "away no task gets its lock node=%s",
        source,
        node,
    )
