"""The `redlock_*` settings of a Celery app, read and validated when needed.

Nothing is ever written to `app.conf`: `add_defaults` and `setdefault` would shadow later settings
of the user.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, TypeVar

from celery_redlock.redlock.defaults import (
    IDLE_TIMEOUT_S,
    KEY_PREFIX,
    MAX_CLOCK_SKEW_S,
    MAX_CONNECTIONS,
    MAX_TTL_S,
    NODE_TIMEOUT_S,
)
from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.redlock.validation import (
    PREFIX_BYTES,
    SHORTEST_S,
    SHORTEST_TTL_S,
    address_of,
    seconds_given,
)
from celery_redlock.suggestion import closest

from .foreign_options import foreign_setting
from .node_urls import fallback_node, nodes_given
from .options import KNOWN_OPTIONS, setting_of
from .redaction import hide_nodes

logger = logging.getLogger(__name__)
hide_nodes()

PREFIX = "redlock_"

_UNSAFE_PREFIX = re.compile(r"[{}\s\x00-\x1f\x7f]")
_Default = TypeVar("_Default", bool, None)
_Seconds = TypeVar("_Seconds", float, None)


@dataclass(frozen=True, slots=True)
class Settings:
    """Lock settings of an app. Times are in seconds.

    The names of the settings (`redlock_nodes`) are derived from these fields.

    Attributes:
        nodes: URLs of independent masters. Empty only if locking is disabled, or if none are named
            and none are needed.
        node_timeout: Longest time that one node may take in one round.
        max_ttl: Upper bound of any lease's ttl.
        max_clock_skew: Largest offset or step of a wall clock under which tokens keep their order.
        restart_guard: Whether a restarted node sits out `max_ttl`. None: with 3 nodes and more.
        key_prefix: Start of every key on the nodes.
        idle_timeout: Time after which a process closes connections that it does not use.
        max_connections: Most connections of a process to each node, for all its threads.
        max_deliveries: Largest number of redeliveries of a message; 0: unlimited.
        show_arguments: Whether commands and pages show the arguments of calls.
        enabled: Whether tasks are locked at all.
        option_defaults: Defaults of task options that the user set, by the option's name.
    """

    nodes: tuple[str, ...] = field(repr=False)
    node_timeout: float
    max_ttl: float
    max_clock_skew: float
    restart_guard: bool | None
    key_prefix: str
    idle_timeout: float
    max_connections: int
    max_deliveries: int
    show_arguments: bool
    enabled: bool
    option_defaults: Mapping[str, object]


class BeatSettings(NamedTuple):
    """Beat settings of an app.

    Attributes:
        scheduler: The scheduler to build on: a class or its path. None: Celery's own.
        misfire_grace_time: Largest delay with which a tick is still published, in seconds. None:
            it depends on the entry's schedule.
        publishes_without_quorum: Whether ticks are published unclaimed while there is no quorum.
    """

    scheduler: object
    misfire_grace_time: float | None
    publishes_without_quorum: bool


OPTION_SETTINGS = frozenset(map(setting_of, KNOWN_OPTIONS))
"""Defaults of task options. Their values are validated with the tasks, not here."""

KNOWN_SETTINGS = (
    OPTION_SETTINGS
    | {f"{PREFIX}{one.name}" for one in fields(Settings) if one.name != "option_defaults"}
    | {"redlock_beat_scheduler", "redlock_beat_on_unavailable", "redlock_beat_misfire_grace_time"}
)


def beat_settings_from(conf: Mapping[str, Any]) -> BeatSettings:
    """Return the settings of an app's beat.

    Raises:
        ConfigurationError: Unknown setting, or wrong type or range.
    """
    given = _given(conf)
    choice = given.get("redlock_beat_on_unavailable", "wait")
    if choice not in ("wait", "publish"):
        remedy = 'write "wait", or "publish" to publish ticks on every host meanwhile'
        _refuse("redlock_beat_on_unavailable", choice, "is unknown", remedy)
    scheduler = given.get("redlock_beat_scheduler")
    if scheduler is not None and not isinstance(scheduler, (str, type)):
        _refuse("redlock_beat_scheduler", scheduler, "is not a class", "give a class or its path")
    return BeatSettings(
        scheduler=scheduler,
        misfire_grace_time=_seconds(given, "redlock_beat_misfire_grace_time", None, least=1.0),
        publishes_without_quorum=choice == "publish",
    )


def settings_from(conf: Mapping[str, Any], *, needs_nodes: bool = True) -> Settings:
    """Return the settings of an app.

    Args:
        conf: `app.conf`, in whichever way it was filled: by `update`, from an object, or with a
            namespace. Reading it makes Celery load a configuration that is still pending.
        needs_nodes: Whether to fall back on the result backend or broker when no node is named.
            False: for apps that know the task and may never lock.

    Raises:
        ConfigurationError: Unknown setting, wrong type or range, or no node to lock on.
    """
    given = _given(conf)
    enabled = _flag(given, "redlock_enabled", default=True)
    return Settings(
        nodes=_nodes(given, conf) if "redlock_nodes" in given or (enabled and needs_nodes) else (),
        node_timeout=_seconds(given, "redlock_node_timeout", NODE_TIMEOUT_S),
        max_ttl=_seconds(given, "redlock_max_ttl", MAX_TTL_S, least=SHORTEST_TTL_S),
        max_clock_skew=_seconds(given, "redlock_max_clock_skew", MAX_CLOCK_SKEW_S, least=0.0),
        restart_guard=_flag(given, "redlock_restart_guard", default=None),
        key_prefix=_key_prefix(given),
        idle_timeout=_seconds(given, "redlock_idle_timeout", IDLE_TIMEOUT_S, least=1.0),
        max_connections=_count(
            given, "redlock_max_connections", MAX_CONNECTIONS, 1, "give a whole number, at least 1"
        ),
        max_deliveries=_count(given, "redlock_max_deliveries", 20),
        show_arguments=_flag(given, "redlock_show_arguments", default=False),
        enabled=enabled,
        option_defaults=MappingProxyType(
            {
                f"lock_{name.removeprefix(PREFIX)}": given[name]
                for name in sorted(OPTION_SETTINGS & given.keys())
            }
        ),
    )


def _given(conf: Mapping[str, Any]) -> dict[str, Any]:
    """Return the user's settings by their lower-case names; None counts as not set."""
    # A pending configuration lists its keys only after one of them was read.
    conf.get(PREFIX)
    namespace = getattr(conf, "prefix", None) or ""
    given: dict[str, Any] = {}
    for key in map(str, conf.keys()):
        name = key.removeprefix(namespace).lower()
        if not name.startswith(PREFIX):
            # With a namespace the source has names that are no settings of Celery's, too.
            if key.startswith(namespace) and (problem := foreign_setting(name)):
                raise ConfigurationError(f"{key} {problem}")
            _refuse_upper_case(key, namespace, conf)
            continue
        value = conf.get(name)
        if value is None:
            _refuse_upper_case(key, namespace, conf)
            continue
        if name not in KNOWN_SETTINGS:
            close = closest(name, KNOWN_SETTINGS)
            hint = f"did you mean {close}?" if close else "remove or rename it."
            known = ", ".join(sorted(KNOWN_SETTINGS))
            # Without the value: one meant for redlock_nodes may hold a password.
            raise ConfigurationError(f"{key} is an unknown setting; {hint} Known settings: {known}")
        given[name] = value
    return given


def _refuse_upper_case(key: str, namespace: str, conf: Mapping[str, Any]) -> None:
    # With a namespace the source is Django's settings, where other packages' names are, too.
    if namespace or not key.isupper():
        return
    name = key.lower().removeprefix("celery_")
    if name in KNOWN_SETTINGS and conf.get(name) is None:
        raise ConfigurationError(
            f"{key} is never read: without a namespace Celery's settings are in lower case; "
            f"write {name}"
        )


def _refuse(name: str, value: object, problem: str, remedy: str) -> NoReturn:
    raise ConfigurationError(f"{name} = {value!r} {problem}; {remedy}")


def _seconds(
    given: Mapping[str, Any], name: str, default: _Seconds, least: float = SHORTEST_S
) -> float | _Seconds:
    if name not in given:
        return default
    value = given[name]
    return seconds_given(value, partial(_refuse, name, value), least)


def _count(
    given: Mapping[str, Any],
    name: str,
    default: int,
    least: int = 0,
    remedy: str = "give a whole number; 0 for no bound",
) -> int:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        _refuse(name, value, "is not a count", remedy)
    return value


def _flag(given: Mapping[str, Any], name: str, *, default: _Default) -> bool | _Default:
    if name not in given:
        return default
    value = given[name]
    if not isinstance(value, bool):
        _refuse(name, value, f"is of type {type(value).__name__}", "write True or False")
    return value


def _key_prefix(given: Mapping[str, Any]) -> str:
    value = given.get("redlock_key_prefix", KEY_PREFIX)
    is_text = isinstance(value, str) and 0 < len(value.encode("utf-8", "replace")) <= PREFIX_BYTES
    if not is_text or _UNSAFE_PREFIX.search(value):
        _refuse(
            "redlock_key_prefix",
            value,
            "can't start a key",
            f"give a string of at most {PREFIX_BYTES} bytes, without braces (they mark the "
            "hash tag) and white space",
        )
    return str.__str__(value)


def _nodes(given: Mapping[str, Any], conf: Mapping[str, Any]) -> tuple[str, ...]:
    if "redlock_nodes" in given:
        return nodes_given(given["redlock_nodes"])
    source, url = fallback_node(conf)
    _warn_quorum_of_one(source, address_of(url), is_heard=logger.hasHandlers())
    return (url,)


@cache
def _warn_quorum_of_one(source: str, node: str, *, is_heard: bool) -> None:  # noqa: ARG001
    """Warn once, and once more as soon as the process has a log: beat sets it up late."""
    logger.warning(
        "quorum of one: redlock_nodes is not set, so the %s is the only node; while it is down no "
        "task gets its lock node=%s",
        source,
        node,
    )
