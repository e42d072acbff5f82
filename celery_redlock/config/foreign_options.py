"""Options and settings of other packages: each is refused, with the line to write instead.

Without that, half a migration would lock every call of a task on a key of its own, or on none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import NamedTuple

_UNTIL_EXECUTED = 'lock_lifetime="until_executed"'
_HEIMDALLS_TIMEOUT_S = 3600
_RATE_LIMITS = {"times", "per", "rate_limit"}


class _Foreign(NamedTuple):
    """One option of another package.

    Attributes:
        package: The package.
        types: Types of its values; a value of another type is an attribute of the user's own.
        instead: Returns what to write instead of a value, as Python text; '': nothing.
    """

    package: str
    types: type | tuple[type, ...]
    instead: Callable[[object], str]


def _instead_of_once(value: object) -> str:
    once = dict(value) if isinstance(value, dict) else {}
    lines = [
        'lock_lifetime="until_executing"' if once.get("unlock_before_run") else _UNTIL_EXECUTED
    ]
    if "keys" in once:
        lines.append(f"lock_key={_names(once['keys'])}")
    if not once.get("graceful"):
        lines.append('lock_on_conflict="raise"')
    return ", ".join(lines)


def _instead_of_heimdall(value: object) -> str:
    heimdall = dict(value) if isinstance(value, dict) else {}
    if "unique" not in heimdall:
        return ""
    lines = [_UNTIL_EXECUTED]
    if heimdall.get("unique_wait_for_expiry"):
        period = heimdall.get("unique_timeout", _HEIMDALLS_TIMEOUT_S)
        lines = [f'lock_lifetime="until_expired", lock_ttl={period!r}']
    if isinstance(heimdall.get("key"), str):
        lines.append("lock_key=[] (one lock for the task)")
    elif "key" in heimdall:
        lines.append("lock_key=<a function with the task's own parameters>")
    if heimdall.get("unique_raises"):
        lines.append('lock_on_conflict="raise"')
    return ", ".join(lines)


def _names(value: object) -> str:
    names = list(value) if isinstance(value, (list, tuple)) else [value]
    return repr(names).replace("'", '"')


_OPTIONS = {
    "once": _Foreign("celery-once", dict, _instead_of_once),
    "unique_on": _Foreign(
        "celery-singleton",
        (str, list, tuple),
        lambda value: f"{_UNTIL_EXECUTED}, lock_key={_names(value)}",
    ),
    "raise_on_duplicate": _Foreign(
        "celery-singleton", bool, lambda value: 'lock_on_conflict="raise"' if value else ""
    ),
    "lock_expiry": _Foreign("celery-singleton", (int, float), lambda _: ""),
    "heimdall": _Foreign("celery-heimdall", dict, _instead_of_heimdall),
}
FOREIGN_OPTIONS = frozenset(_OPTIONS)


def foreign_option(name: str, value: object) -> str | None:
    """Return what is wrong with an option of another package, and the remedy; None: it is not one.

    Args:
        name: Name of the option, or of any attribute of a task.
        value: Its value.
    """
    foreign = _OPTIONS.get(name)
    if foreign is None or not isinstance(value, foreign.types):
        return None
    instead = foreign.instead(value)
    remedy = f"write {instead}" if instead else "remove it"
    if isinstance(value, dict) and name == "heimdall" and _RATE_LIMITS & value.keys():
        remedy += ": a lock limits no rate; keep HeimdallTask for that, on another task"
    return f"is an option of {foreign.package}, which has no effect here; {remedy}"


def classes_in_use(task: type) -> Sequence[type]:
    """Return the bases of a task that are classes of another package, ahead of `SingletonTask`.

    While tasks are moved, one may have both classes as bases, and both locks. The other way round,
    a call that the other package discards would leave a reservation that no message releases.
    """
    ahead = takewhile(lambda base: _package_of(base) != "celery_redlock", task.__mro__)
    packages = {one.package.replace("-", "_") for one in _OPTIONS.values()}
    return [base for base in ahead if _package_of(base) in packages]


def options_in_use(task: type) -> frozenset[str]:
    """Return the options of the packages of `classes_in_use`."""
    packages = {_package_of(base) for base in classes_in_use(task)}
    return frozenset(
        name for name, one in _OPTIONS.items() if one.package.replace("-", "_") in packages
    )


def _package_of(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def foreign_setting(name: str) -> str | None:
    """Return what is wrong with a setting of another package, and the remedy; None: it is not one.

    While that package is loaded, the setting is in use: tasks are moved one after the other.

    Args:
        name: Name of the setting in lower case, without a namespace.
    """
    if name == "once":
        package, instead = "celery-once", "redlock_nodes"
    elif name.startswith("singleton_"):
        package, instead = "celery-singleton", _SETTINGS.get(name, "")
    elif name.startswith("heimdall_"):
        package, instead = "celery-heimdall", _SETTINGS.get(name, "")
    else:
        return None
    if package.replace("-", "_") in sys.modules:
        return None
    remedy = f"set {instead} instead" if instead else "remove it"
    return f"is a setting of {package}, which is not loaded; {remedy}"


_SETTINGS = {
    "singleton_backend_url": "redlock_nodes",
    "singleton_key_prefix": "redlock_key_prefix",
    "singleton_raise_on_duplicate": 'redlock_on_conflict = "raise"',
    "heimdall_unique_raises": 'redlock_on_conflict = "raise"',
    "heimdall_lock_prefix": "redlock_key_prefix",
}
