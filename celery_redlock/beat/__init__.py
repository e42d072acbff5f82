"""Beat's ticks, each once per cluster. ``celery beat -S redlock`` names the scheduler here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .scheduler import RedlockScheduler as RedlockScheduler

__all__ = ["RedlockScheduler"]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # The command line looks at the liveness file, and loads no scheduler for it.
        if name != "RedlockScheduler":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .scheduler import RedlockScheduler  # noqa: PLC0415

        return RedlockScheduler
