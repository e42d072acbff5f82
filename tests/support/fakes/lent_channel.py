"""Access to nodes over one channel, for tests of what is asked of it."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from celery_redlock.redlock.acquisition import Acquisition

from .fake_clock import FakeClock

HOUR_MS = 3_600_000


def access_over(channel: Any) -> Any:
    """Return what gives access to the nodes of `channel`, the only one in its pool."""
    pool = SimpleNamespace(channel=lambda *_, **__: nullcontext(channel))
    return channel.nodes, pool, FakeClock(), 1.0, "redlock", 1_000_000, HOUR_MS


def acquisition_over(channel: Any) -> Acquisition:
    """Return acquisitions over `channel`, as far as they need neither a keeper nor others."""
    arguments: Any = (*access_over(channel), *[None] * 4)
    return Acquisition(*arguments)
