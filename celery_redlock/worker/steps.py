"""Names of the steps that the workers of an app have, for which a producer imports none of them."""

from __future__ import annotations

from celery import Celery

_STEPS = "celery_redlock.worker.bootsteps:"


def install(app: Celery) -> None:
    """Add the steps that singleton tasks need to the app's workers; may be called again."""
    for name in ("CheckNodes", "PoolKeeper", "WatchNodes"):
        app.steps["worker"].add(_STEPS + name)
    for name in ("UnreadableMessages", "ComparePlacements"):
        app.steps["consumer"].add(_STEPS + name)
