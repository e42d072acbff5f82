"""Beat on every host: each due tick is published once, and nobody leads.

Every replica is active, and claims a tick before publishing it. The message's id is derived from
entry and slot, so a singleton task runs once even for a tick that was published twice.
"""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.beat import PersistentScheduler, Scheduler
from celery.utils.imports import load_extension_class_names, symbol_by_name

from celery_redlock.config.app_lock import is_enabled
from celery_redlock.config.settings import beat_settings_from
from celery_redlock.redlock.errors import ConfigurationError

from .claiming import ClaimsTicks, ShowsLiveness
from .redbeat import ClaimsRedBeatTicks


def RedlockScheduler(app: Celery, *args: Any, **kwargs: Any) -> Scheduler:  # noqa: N802  # -S names it
    """Return a scheduler that claims each tick, built on the one that the settings name.

    Raises:
        ConfigurationError: A setting, a node or an entry's schedule can't be used.
    """
    return scheduler_on(base_of(beat_settings_from(app.conf).scheduler), app, *args, **kwargs)


def scheduler_on(base: type[Scheduler], app: Celery, *args: Any, **kwargs: Any) -> Scheduler:
    """Return a scheduler that claims each tick, built on `base`.

    Raises:
        ConfigurationError: A setting, a node or an entry's schedule can't be used.
    """
    mixin: Any = ShowsLiveness
    if is_enabled(app):
        mixin = ClaimsRedBeatTicks if hasattr(base, "maybe_due") else ClaimsTicks
    return type(f"Redlock{base.__name__}", (mixin, base), {})(app, *args, **kwargs)  # type: ignore[no-any-return]


def base_of(chosen: Any) -> type[Scheduler]:
    """Return the scheduler that `redlock_beat_scheduler` names; None: Celery's own.

    Raises:
        ConfigurationError: No scheduler has this name.
    """
    if chosen is None:
        return PersistentScheduler
    problem: object = "not a subclass of celery.beat.Scheduler"
    try:
        names: Any = load_extension_class_names("celery.beat_schedulers")
        base: Any = symbol_by_name(chosen, aliases=dict(names))
    except (ImportError, AttributeError, ValueError) as error:
        base, problem = None, error
    if isinstance(base, type) and issubclass(base, Scheduler):
        return base
    raise ConfigurationError(
        f"redlock_beat_scheduler must be a scheduler class, got {chosen!r}: {problem}; "
        "name the scheduler that beat would use without this package"
    )
