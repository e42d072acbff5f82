"""A task's `lock_*` options, checked when the task is defined.

Precedence, for every option: what the task declares beats the setting of the same name
(`lock_ttl` and `redlock_ttl`), which beats the built-in default.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn, TypeVar

from .redlock.checks import SHORTEST_TTL_S
from .redlock.errors import ConfigurationError


class Lifetime(str, Enum):
    """From when until when a task holds its lock. The names are sidekiq-unique-jobs'."""

    WHILE_EXECUTING = "while_executing"
    UNTIL_EXECUTING = "until_executing"
    UNTIL_EXECUTED = "until_executed"
    UNTIL_AND_WHILE_EXECUTING = "until_and_while_executing"
    UNTIL_EXPIRED = "until_expired"


class OnConflict(str, Enum):
    """What becomes of an execution whose lock another one holds."""

    SKIP = "skip"
    COMPLETE = "complete"
    RAISE = "raise"
    RESCHEDULE = "reschedule"
    WAIT = "wait"
    COALESCE = "coalesce"


class OnUnavailable(str, Enum):
    """What becomes of an execution when no quorum of nodes answers."""

    RESCHEDULE = "reschedule"
    RAISE = "raise"
    RUN = "run"


class OnLost(str, Enum):
    """What becomes of a running task whose lease is lost."""

    ABORT = "abort"
    CONTINUE = "continue"


_SIMPLE = frozenset({OnConflict.SKIP, OnConflict.COMPLETE, OnConflict.RAISE})
ALLOWED: dict[Lifetime, frozenset[OnConflict]] = {
    Lifetime.WHILE_EXECUTING: frozenset(OnConflict),
    # Nothing is locked while the body runs, so there is nothing to wait for.
    Lifetime.UNTIL_EXECUTING: _SIMPLE,
    Lifetime.UNTIL_EXPIRED: _SIMPLE,
    # A duplicate is stopped at publish, whether the first is waiting or running already: one that
    # came while it ran could not be made up for.
    Lifetime.UNTIL_EXECUTED: frozenset(OnConflict) - {OnConflict.COALESCE},
    Lifetime.UNTIL_AND_WHILE_EXECUTING: frozenset(OnConflict),
}
"""Which policies go with which lifetime."""

KNOWN_OPTIONS = frozenset(
    {
        "lock_ttl",
        "lock_key",
        "lock_lifetime",
        "lock_on_conflict",
        "lock_on_unavailable",
        "lock_on_lost",
        "lock_min_hold",
        "lock_max_hold",
        "lock_wait",
        "lock_queue_ttl",
        "lock_conflict_result",
    }
)

_NONE_IS_A_VALUE = frozenset({"lock_wait", "lock_conflict_result"})

_HOLDING = frozenset(Lifetime) - {Lifetime.UNTIL_EXECUTING, Lifetime.UNTIL_EXPIRED}
"""The lifetimes under which a lock is held while the body runs."""

_SHORTEST_S = 0.001
"""Redis counts in milliseconds; less than one would be an expiry of none."""
_LONGEST_S = 10 * 365 * 86_400.0
"""Ten years. More is a mistaken unit, and far more overflows what Redis can count."""

_DEFAULT_TTL_S = 30.0
_DEFAULT_QUEUE_TTL_S = 3600.0

_Choice = TypeVar("_Choice", bound=Enum)


@dataclass(frozen=True, slots=True)
class LockOptions:
    """How one task is locked. Times are in seconds.

    Attributes:
        ttl: The lease, renewed while the task runs; > 0, at most `redlock_max_ttl`.
        key: As declared: `keys.key_rule` checks it, for that takes the task's parameters.
        lifetime: When the lock is held.
        on_conflict: What happens when another execution holds it.
        on_unavailable: What happens when no quorum answers.
        on_lost: What happens to the running task when its lease is lost.
        min_hold: The lock stays at least this long, >= 0.
        max_hold: After this a lease is not renewed any more. None: the task's time limit, or 24 h.
        wait: How long `on_conflict="wait"` waits. None: without limit.
        queue_ttl: How long a reservation may sit in the queue.
        conflict_result: The result of a task that ends by `on_conflict="complete"`.
    """

    ttl: float
    key: object
    lifetime: Lifetime
    on_conflict: OnConflict
    on_unavailable: OnUnavailable
    on_lost: OnLost
    min_hold: float
    max_hold: float | None
    wait: float | None
    queue_ttl: float
    conflict_result: object


def declared_options(task: object) -> dict[str, object]:
    """Return the `lock_*` attributes of a task or task class: its own, then the nearest in the MRO.

    They are read without the descriptor protocol: a function given as `lock_key` would become a
    bound method, and get the task as its first argument.
    """
    declared: dict[str, object] = {}
    owners = task.__mro__ if isinstance(task, type) else (task, *type(task).__mro__)
    for owner in owners:
        for name, value in vars(owner).items():
            if name.startswith("lock_"):
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
    """Return the options of a task, complete and checked.

    Args:
        task_name: For errors.
        declared: The task's own, as from `declared_options`. None means not declared, except for
            `lock_wait` and `lock_conflict_result`.
        defaults: `Settings.option_defaults`: those that a setting gives, by the option's name.
        max_ttl: `redlock_max_ttl`, in seconds. The built-in ttl of 30 s gives way to it.

    Raises:
        ConfigurationError: An unknown option, a wrong type or range, or an impossible combination.
    """
    read = _Reader(task_name, declared, defaults)
    read.refuse_unknown()
    on_conflict = read.choice("lock_on_conflict", OnConflict.SKIP)
    lifetime = read.choice("lock_lifetime", Lifetime.WHILE_EXECUTING)
    if on_conflict not in ALLOWED[lifetime]:
        read.refuse(
            "lock_on_conflict",
            f'has no meaning with lock_lifetime="{lifetime.value}"',
            f"choose one of {', '.join(sorted(one.value for one in ALLOWED[lifetime]))}, or "
            'lock_lifetime="until_and_while_executing"',
        )
    # Checked even when it has no use here: a setting that is wrong is wrong for all tasks.
    wait = read.seconds("lock_wait")
    completes = on_conflict is OnConflict.COMPLETE
    read.refuse_without("lock_wait", on_conflict, OnConflict.WAIT)
    read.refuse_without("lock_conflict_result", on_conflict, OnConflict.COMPLETE)
    if lifetime not in _HOLDING:
        read.refuse_hold("lock_min_hold", lifetime)
        read.refuse_hold("lock_max_hold", lifetime)
    options = LockOptions(
        # Nothing runs under a throttle, so it is no lease.
        ttl=read.period() if lifetime is Lifetime.UNTIL_EXPIRED else read.ttl(max_ttl),
        key=read.value("lock_key"),
        lifetime=lifetime,
        on_conflict=on_conflict,
        on_unavailable=read.choice("lock_on_unavailable", OnUnavailable.RESCHEDULE),
        on_lost=read.choice("lock_on_lost", OnLost.ABORT),
        min_hold=read.seconds("lock_min_hold", least=0.0) or 0.0,
        max_hold=read.seconds("lock_max_hold"),
        wait=wait if on_conflict is OnConflict.WAIT else None,
        queue_ttl=read.seconds("lock_queue_ttl") or _DEFAULT_QUEUE_TTL_S,
        conflict_result=read.value("lock_conflict_result") if completes else None,
    )
    if options.max_hold is not None and options.min_hold > options.max_hold:
        read.refuse(
            "lock_min_hold",
            f"is longer than lock_max_hold ({options.max_hold:g} s)",
            "lower lock_min_hold or raise lock_max_hold",
        )
    return options


@dataclass(frozen=True, slots=True)
class _Reader:
    """The options of one task, by precedence."""

    task_name: str
    declared: Mapping[str, object]
    defaults: Mapping[str, object]

    def is_declared(self, option: str) -> bool:
        present = option in self.declared
        return present and (option in _NONE_IS_A_VALUE or self.declared[option] is not None)

    def value(self, option: str) -> object:
        """Return what is given for `option`; None when nothing is."""
        return self.declared[option] if self.is_declared(option) else self.defaults.get(option)

    def refuse(self, option: str, problem: str, remedy: str) -> NoReturn:
        setting = f"redlock_{option.removeprefix('lock_')}"
        name = option if self.is_declared(option) else f"{option} (from the setting {setting})"
        raise ConfigurationError(
            f"task {self.task_name!r}: {name} = {self.value(option)!r} {problem}; {remedy}"
        )

    def refuse_unknown(self) -> None:
        for name in self.declared:
            if name not in KNOWN_OPTIONS:
                close = difflib.get_close_matches(name, KNOWN_OPTIONS, n=1)
                hint = f"did you mean {close[0]}?" if close else "remove or rename it."
                raise ConfigurationError(
                    f"task {self.task_name!r}: {name} = {self.declared[name]!r} is no lock option; "
                    f"{hint} Known are {', '.join(sorted(KNOWN_OPTIONS))}"
                )

    def refuse_without(self, option: str, chosen: OnConflict, needed: OnConflict) -> None:
        # Only what the task itself declares: a setting serves the tasks that can use it.
        if self.is_declared(option) and self.declared[option] is not None and chosen is not needed:
            self.refuse(
                option,
                f'has no use with lock_on_conflict="{chosen.value}"',
                f'remove it or set lock_on_conflict="{needed.value}"',
            )

    def choice(self, option: str, default: _Choice) -> _Choice:
        given = self.value(option)
        if given is None:
            return default
        members = {member.value: member for member in type(default)}
        if not isinstance(given, str) or given not in members:
            close = difflib.get_close_matches(str(given), members, n=1)
            hint = f'did you mean "{close[0]}"?' if close else "choose one of them"
            self.refuse(option, f"is none of {', '.join(members)}", hint)
        return members[given]

    def seconds(self, option: str, least: float = _SHORTEST_S) -> float | None:
        given = self.value(option)
        if given is None:
            return None
        if isinstance(given, bool) or not isinstance(given, (int, float)):
            remedy = "write it without quotes" if isinstance(given, str) else "give seconds"
            self.refuse(option, f"is of type {type(given).__name__}, not a number", remedy)
        # A comparison with NaN is never true.
        if not least <= given <= _LONGEST_S:
            limits = f"at least {least:g} and at most {_LONGEST_S:.0f} (ten years)"
            self.refuse(option, "is out of range", f"give seconds, {limits}")
        return float(given)

    def refuse_hold(self, option: str, lifetime: Lifetime) -> None:
        if self.is_declared(option) and self.declared[option] != 0:
            self.refuse(
                option,
                f'has no use with lock_lifetime="{lifetime.value}"',
                "remove it: no lock is held there while the task runs",
            )

    def period(self) -> float:
        return self.seconds("lock_ttl") or _DEFAULT_TTL_S

    def ttl(self, max_ttl: float) -> float:
        given = self.seconds("lock_ttl", least=SHORTEST_TTL_S)
        if given is None:
            return min(_DEFAULT_TTL_S, max_ttl)
        if given > max_ttl:
            self.refuse(
                "lock_ttl",
                f"is longer than redlock_max_ttl ({max_ttl:g} s)",
                "raise redlock_max_ttl or lower lock_ttl",
            )
        return given
