"""Options and settings of other packages: each is refused, with the line to write instead.

Without that, half a migration would lock every call of a task on a key of its own, or on none.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

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
    types: type[Any] | tuple[type[Any], ...]
    instead: Callable[[Any], str]


def _instead_of_once(once: Mapping[str, Any]) -> str:
    lines = [
        'lock_lifetime="until_executing"' if once.get("unlock_before_run") else _UNTIL_EXECUTED
    ]
    if once.get("keys") is not None:
        lines.append(f"lock_key={_names(once['keys'])}")
    if not once.get("graceful"):
        lines.append('lock_on_conflict="raise"')
    return ", ".join(lines)


def _instead_of_heimdall(heimdall: Mapping[str, Any]) -> str:
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


def _instead_of_unique_on(value: object) -> str:
    # Without names, celery-singleton compares all arguments.
    return f"{_UNTIL_EXECUTED}, lock_key={_names(value)}" if value else _UNTIL_EXECUTED


def _names(value: object) -> str:
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=str)
    names = list(value) if isinstance(value, (list, tuple)) else [value]
    return repr(names).replace("'", '"')


_OPTIONS = {
    "once": _Foreign("celery-once", dict, _instead_of_once),
    "unique_on": _Foreign(
        "celery-singleton",
        (str, list, tuple, set, frozenset),
        _instead_of_unique_on,
    ),
    "raise_on_duplicate": _Foreign(
        "celery-singleton", bool, lambda value: 'lock_on_conflict="raise"' if value else ""
    ),
    # Not an attribute of the user's own: no other name may start with `lock_`.
    "lock_expiry": _Foreign("celery-singleton", object, lambda _: ""),
    "heimdall": _Foreign("celery-heimdall", dict, _instead_of_heimdall),
}
FOREIGN_OPTIONS = frozenset(_OPTIONS)
_DUPLICATES = frozenset(
    {
        ("celery_once", "AlreadyQueued"),
        ("celery_singleton", "DuplicateTaskError"),
        ("celery_heimdall", "AlreadyQueuedError"),
    }
)
_ALWAYS_LOCKING = frozenset({"celery_once", "celery_singleton"})


def foreign_option(name: str, value: Any) -> str | None:
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
    if name == "heimdall" and _RATE_LIMITS & value.keys():
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


def class_behind(task: type) -> str | None:
    """Return what is wrong with a base that comes after `SingletonTask`; None: nothing.

    Only of packages that lock each call of their class, without an option that would be refused.
    """
    in_use = classes_in_use(task)
    for base in task.__mro__:
        package = _package_of(base)
        if package in _ALWAYS_LOCKING and base not in in_use:
            name = base.__name__
            return (
                f"has {name} of {package.replace('_', '-')} as its base after SingletonTask, and a "
                f"call that it discards would leave a reservation behind; remove {name}, or for "
                f"both locks write class BothLocks({name}, SingletonTask)"
            )
    return None


def options_in_use(task: type) -> frozenset[str]:
    """Return the options of the packages of `classes_in_use`."""
    packages = {_package_of(base) for base in classes_in_use(task)}
    return frozenset(
        name for name, one in _OPTIONS.items() if one.package.replace("-", "_") in packages
    )


def _package_of(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def is_foreign_duplicate(error: BaseException) -> bool:
    """Return whether another package has refused a call, since a duplicate of it is under way.

    Args:
        error: The package's error, or one that was raised while it was handled.
    """
    at: BaseException | None = error
    while at is not None:
        for cls in type(at).__mro__:
            if (_package_of(cls), cls.__name__) in _DUPLICATES:
                return True
        at = at.__cause__ or at.__context__
    return False


def foreign_setting(name: str) -> str | None:
    """Return what is wrong with a setting of another package, and the remedy; None: it is not one.

    While that package is installed, the setting may be in use: tasks are moved one after the other,
    and a process that imports only the moved ones has the same settings.

    Args:
        name: Name of the setting in lower case, without a namespace.
    """
    if name == "once":
        package = "celery-once"
    elif name in _OF_SINGLETON:
        package = "celery-singleton"
    elif name.startswith("heimdall_"):
        package = "celery-heimdall"
    else:
        return None
    if _is_installed(package.replace("-", "_")):
        return None
    instead = _SETTINGS.get(name)
    remedy = f"set {instead} instead" if instead else "remove it"
    return f"is a setting of {package}, which is not installed; {remedy}"


def _is_installed(module: str) -> bool:
    return module in sys.modules or importlib.util.find_spec(module) is not None


_OF_SINGLETON = frozenset(
    f"singleton_{name}"
    for name in (
        "backend_class", "backend_kwargs", "backend_url", "json_encoder_class", "key_prefix",
        "lock_expiry", "raise_on_duplicate",
    )
)  # fmt: skip
"""Settings of celery-singleton, by name: `singleton_task` is a name of this package."""
_SETTINGS = {
    "once": "redlock_nodes",
    "singleton_backend_url": "redlock_nodes",
    "singleton_key_prefix": "redlock_key_prefix",
    "singleton_raise_on_duplicate": 'redlock_on_conflict = "raise"',
    "heimdall_unique_raises": 'redlock_on_conflict = "raise"',
    "heimdall_lock_prefix": "redlock_key_prefix",
}
