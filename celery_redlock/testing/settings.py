"""Settings of an app for the length of a block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from celery import Celery

from celery_redlock.config.app_lock import another_redlock


@contextmanager
def locked_on(app: Celery, nodes: Sequence[str], *, is_enabled: bool = True) -> Iterator[None]:
    """Have the app's tasks locked on these nodes inside the block, without a restart guard.

    Args:
        app: The app. Its broker and result backend stay as they are.
        nodes: URLs of the nodes.
        is_enabled: Whether tasks are locked at all.
    """
    changed = with_settings(
        app,
        redlock_nodes=[*nodes],
        redlock_enabled=is_enabled,
        redlock_restart_guard=False,  # the nodes are new, and have nothing to forget
        redlock_node_timeout=2.0,  # a slow machine must not look like a dead node
    )
    with changed, another_redlock(app):
        yield


@contextmanager
def with_settings(app: Celery, **settings: object) -> Iterator[None]:
    """Have the app configured like this inside the block."""
    app.conf.get("redlock_nodes")  # before the first read, `changes` is a stand-in
    changes: dict[str, object] = app.conf.changes  # type: ignore[assignment]  # of every app's
    before = {name: changes[name] for name in settings if name in changes}
    changes.update(settings)
    try:
        yield
    finally:
        for name in settings:
            changes.pop(name, None)
        changes.update(before)
