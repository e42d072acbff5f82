"""A task's `lock_*` options, checked when the task is defined.

Precedence, for every option: what the task declares beats the setting of the same name
(`lock_ttl` and `redlock_ttl`), which beats the built-in default.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeVar

from celery_redlock.redlock.defaults import TTL_S
from celery_redlock.redlock.errors import ConfigurationError
from celery_redlock.redlock.validation import SHORTEST_S, SHORTEST_TTL_S, seconds_given
from celery_redlock.suggestion import closest

from .foreign_options import FOREIGN_OPTIONS, classes_in_use, foreign_option, options_in_use
from .options import (
    ALLOWED,
    KNOWN_OPTIONS,
    Lifetime,
    LockOptions,
    OnConflict,
    OnLost,
    OnUnavailable,
    setting_of,
)

_NONE_IS_A_VALUE = frozenset({"lock_wait", "lock_conflict_result"})
_DEFAULT_QUEUE_TTL_S = 3600.0
_NO_PER_CALL = KNOWN_OPTIONS | FOREIGN_OPTIONS
_Choice = TypeVar("_Choice", bound=Enum)


def declared_options(task: object) -> dict[str, object]:
    """Return the lock options of a task or task class: its own, then the nearest in the MRO.

    They are its `lock_*` attributes, and those that may be options of other packages.

    Attributes are read without the descriptor protocol: a function given as `lock_key` would
    become a bound method, called with the task as its first argument.
    """
    declared: dict[str, object] = {}
    cls = task if isinstance(task, type) else type(task)
    others, foreign = classes_in_use(cls), FOREIGN_OPTIONS - options_in_use(cls)
    for owner in (task, *cls.__mro__):
        for name, value in () if owner in others else vars(owner).items():
            if name in foreign or (name.startswith("lock_") and name not in FOREIGN_OPTIONS):
                unwrapped = value.__func__ if isinstance(value, staticmethod) else value
                declared.setdefault(name, unwrapped)
    return declared


def lock_options(
    task_name: str,
    declared: Mapping[str, object],
    defaults: Mapping[str, object],
    *,
    max_ttl: float,
) -> LockOptions:
    """Return the validated lock options of a task.

    Args:
        task_name: For errors.
        declared: The task's own, as from `declared_options`. None means not declared, except for
            `lock_wait` and `lock_conflict_result`.
        defaults: `Settings.option_defaults`: values from settings, by the option's name.
        max_ttl: `redlock_max_ttl`, in seconds. The built-in ttl of 30 s gives way to it.

    Raises:
        ConfigurationError: Unknown option, wrong type or range, or impossible combination.
    """
    read = _Reader(task_name, declared, defaults)
    read.refuse_unknown()
    on_conflict = read.choice("lock_on_conflict", OnConflict.SKIP)
    lifetime = read.choice("lock_lifetime", Lifetime.WHILE_EXECUTING)
    if on_conflict not in ALLOWED[lifetime]:
        read.refuse(
            "lock_on_conflict",
            f'does not go with lock_lifetime="{lifetime.value}"',
            f"choose one of {', '.join(sorted(one.value for one in ALLOWED[lifetime]))}, or "
            'lock_lifetime="until_and_while_executing"',
        )
    # Validated even if unused here: a wrong setting is wrong for all tasks.
    wait, queue_ttl = read.seconds("lock_wait"), read.seconds("lock_queue_ttl")
    completes = on_conflict is OnConflict.COMPLETE
    read.refuse_without("lock_wait", on_conflict, OnConflict.WAIT)
    read.refuse_without("lock_conflict_result", on_conflict, OnConflict.COMPLETE)
    if not lifetime.holds_while_running:
        remedy = "remove it: no lock is held there while the task runs"
        for option in ("lock_min_hold", "lock_max_hold", "lock_delay"):
            read.refuse_under(lifetime, option, remedy)
    if lifetime.is_throttle:
        read.refuse_under(lifetime, "lock_queue_ttl", "remove it: the period is lock_ttl")
    elif not lifetime.reserves_at_publish:
        remedy = "remove it, or choose a lifetime that begins at publish, such as until_executed"
        read.refuse_under(lifetime, "lock_queue_ttl", remedy)
    delay = read.seconds("lock_delay", least=0.0) or 0.0
    options = LockOptions(
        # Nothing runs under a throttle, so its period is not bounded as a lease is.
        ttl=read.period() if lifetime.is_throttle else read.ttl(max_ttl, delay),
        key=read.value("lock_key"),
        lifetime=lifetime,
        on_conflict=on_conflict,
        on_unavailable=read.choice("lock_on_unavailable", OnUnavailable.RESCHEDULE),
        on_lost=read.choice("lock_on_lost", OnLost.ABORT),
        delay=delay if lifetime.holds_while_running else 0.0,
        min_hold=read.seconds("lock_min_hold", least=0.0) or 0.0,
        max_hold=read.seconds("lock_max_hold"),
        wait=wait if on_conflict is OnConflict.WAIT else None,
        queue_ttl=queue_ttl or _DEFAULT_QUEUE_TTL_S,
        conflict_result=read.value("lock_conflict_result") if completes else None,
    )
    if options.max_hold is not None and options.min_hold > options.max_hold:
        read.refuse(
            "lock_min_hold",
            f"is longer than lock_max_hold ({options.max_hold:g} s)",
            "lower lock_min_hold or raise lock_max_hold",
        )
    return options


def refuse_per_call(task: Any, options: Mapping[str, object]) -> None:
    """Refuse options of the lock, or of another package, among those of one call.

    Raises:
        ConfigurationError: The message names the task, the option and the remedy.
    """
    # Celery would put them into the message's properties, where they have no effect.
    for name in sorted(_NO_PER_CALL.intersection(options)):
        told = f"task {task.name!r}: {name}"
        if name in KNOWN_OPTIONS:
            remedy = "set it where the task is defined"
            raise ConfigurationError(f"{told} is not a per-call option; {remedy}")
        problem = foreign_option(name, options[name])
        if problem and name not in options_in_use(type(task)):
            given = repr(options[name])
            raise ConfigurationError(f"{told} = {given} {problem}, where the task is defined")


class _Reader(NamedTuple):
    """Reader of one task's options, by precedence."""

    task_name: str
    declared: Mapping[str, object]
    defaults: Mapping[str, object]

    def is_declared(self, option: str) -> bool:
        present = option in self.declared
        return present and (option in _NONE_IS_A_VALUE or self.declared[option] is not None)

    def value(self, option: str) -> object:
        """Return the value given for `option`; None without one."""
        return self.declared[option] if self.is_declared(option) else self.defaults.get(option)

    def refuse(self, option: str, problem: str, remedy: str) -> NoReturn:
        is_own = self.is_declared(option)
        name = option if is_own else f"{option} (from the setting {setting_of(option)})"
        raise ConfigurationError(
            f"task {self.task_name!r}: {name} = {self.value(option)!r} {problem}; {remedy}"
        )

    def refuse_unknown(self) -> None:
        for name, value in self.declared.items():
            if problem := foreign_option(name, value):
                raise ConfigurationError(f"task {self.task_name!r}: {name} = {value!r} {problem}")
            if name.startswith("lock_") and name not in KNOWN_OPTIONS:
                close = closest(name, KNOWN_OPTIONS)
                hint = f"did you mean {close}?" if close else "remove or rename it."
                raise ConfigurationError(
                    f"task {self.task_name!r}: {name} = {value!r} is an unknown lock "
                    f"option; {hint} Known options: {', '.join(sorted(KNOWN_OPTIONS))}"
                )

    def refuse_without(self, option: str, chosen: OnConflict, needed: OnConflict) -> None:
        # Only what the task itself declares: a setting serves the tasks that can use it.
        if self.is_declared(option) and self.declared[option] is not None and chosen is not needed:
            self.refuse(
                option,
                f'has no effect with lock_on_conflict="{chosen.value}"',
                f'remove it or set lock_on_conflict="{needed.value}"',
            )

    def choice(self, option: str, default: _Choice) -> _Choice:
        given = self.value(option)
        if given is None:
            return default
        members = {member.value: member for member in type(default)}
        if not isinstance(given, str) or given not in members:
            close = closest(str(given), members)
            hint = f'did you mean "{close}"?' if close else "choose one of them"
            self.refuse(option, f"is unknown; known values: {', '.join(members)}", hint)
        return members[given]

    def seconds(self, option: str, least: float = SHORTEST_S) -> float | None:
        given = self.value(option)
        if given is None:
            return None
        return seconds_given(given, partial(self.refuse, option), least)

    def refuse_under(self, lifetime: Lifetime, option: str, remedy: str) -> None:
        if self.is_declared(option) and self.declared[option] != 0:
            self.refuse(option, f'has no effect with lock_lifetime="{lifetime.value}"', remedy)

    def period(self) -> float:
        return self.seconds("lock_ttl") or TTL_S

    def ttl(self, max_ttl: float, delay: float) -> float:
        given = self.seconds("lock_ttl", least=SHORTEST_TTL_S)
        ttl = min(TTL_S, max_ttl) if given is None else given
        if ttl <= max_ttl < ttl + delay:
            self.refuse(
                "lock_delay",
                f"and a ttl of {ttl:g} s are together longer than redlock_max_ttl ({max_ttl:g} s)",
                "raise redlock_max_ttl, or lower lock_delay or lock_ttl",
            )
        if given is None:
            return ttl
        if given > max_ttl:
            self.refuse(
                "lock_ttl",
                f"is longer than redlock_max_ttl ({max_ttl:g} s)",
                "raise redlock_max_ttl or lower lock_ttl",
            )
        return given
