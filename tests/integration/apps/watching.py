"""Receivers of the signals about nodes that note what they get."""

from __future__ import annotations

import os
from typing import Any

from celery_redlock import node_down, node_up, quorum_degraded, singleton_task
from tests.support.processes.inside import Inside

inside = Inside(__name__)
app = inside.app


@node_down.connect
def _down(sender: Any, node: str, error: str, **_more: Any) -> None:
    inside.note("node_down", node=node, error=error, by=sender.main)


@node_up.connect
def _up(sender: Any, node: str, **_more: Any) -> None:
    inside.note("node_up", node=node, by=sender.main)


@quorum_degraded.connect
def _degraded(sender: Any, votes: int, nodes: int, needed: int, **_more: Any) -> None:
    inside.note("quorum_degraded", votes=votes, of=nodes, needed=needed)


@singleton_task(app=app)
def pid(number: int) -> int:
    return os.getpid()


@singleton_task(app=app, lock_on_unavailable="raise")
def impatient(number: int) -> int:
    return os.getpid()
