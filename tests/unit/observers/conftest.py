"""Signals, whose receivers stay connected for as long as the process runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import signals
from celery.utils.dispatch import Signal

import celery_redlock.signals as ours


@pytest.fixture(autouse=True)
def _receivers() -> Iterator[None]:
    """Disconnect the receivers that a test connects."""
    observed = [
        *(value for value in vars(ours).values() if isinstance(value, Signal)),
        signals.task_retry, signals.worker_process_init, signals.beat_init,
        signals.beat_embedded_init,
    ]  # fmt: skip
    before = [list(signal.receivers or ()) for signal in observed]
    yield
    for signal, receivers in zip(observed, before, strict=True):
        signal.receivers = receivers
