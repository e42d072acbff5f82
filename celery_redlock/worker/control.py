"""Remote control commands, such as ``celery inspect redlock_held``.

Celery's command line looks commands up in its own process, so it loads this file, too: see `cli`.
What only a worker needs is imported when a command runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery.utils.serialization import strtobool
from celery.worker.control import control_command, inspect_command


@inspect_command(default_timeout=3.0)
def redlock_held(state: Any, **_: Any) -> list[dict[str, Any]]:
    """Locks held by the tasks that the worker is running."""
    return list(_held_by_active_tasks(state.app))


@control_command(
    signature="<key> <task_id>", args=[("key", str), ("task_id", str)], default_timeout=3.0
)
def redlock_release(state: Any, key: str, task_id: str, **_: Any) -> dict[str, str]:
    """Release a lock if this task holds it; a task that is running loses its lease."""
    # With the id: every worker gets the command, and the next holder must not lose its lock.
    from celery_redlock.config.app_lock import redlock_of  # noqa: PLC0415
    from celery_redlock.redlock.errors import RedlockError  # noqa: PLC0415
    from celery_redlock.redlock.labels import label_of  # noqa: PLC0415
    from celery_redlock.redlock.lease import task_of  # noqa: PLC0415

    redlock = redlock_of(state.app)
    try:
        held = redlock.read_holder(key)
        owner = held.owner if held else None
        is_its = owner is not None and task_of(owner) == label_of(task_id)
        if not is_its or not redlock.drop_owner(
            key, str(owner), f"redlock_release at {state.hostname}"
        ):
            return {"ok": f"{key} not held by {task_id}"}
    except RedlockError as error:
        return {"error": str(error)}
    return {"ok": f"{key} released, it was held by {task_id}"}


@control_command(
    signature="<key> <id> [author] [reason] [signal]",
    args=[("key", str), ("id", str), ("author", str), ("reason", str), ("signal", str)],
    default_timeout=3.0,
)
def redlock_end(  # as it is called: a word each
    state: Any,
    key: str,
    id: str,  # noqa: A002  # as `redlock show` calls it
    author: str = "redlock_end",
    reason: str = "",
    signal: str = "TERM",
    **_: Any,
) -> dict[str, Any]:
    """End the run of this worker that holds a lock under the holder's id."""
    from .ending import end_run  # noqa: PLC0415

    why = f"{author}: {reason}" if reason else author
    try:
        done = end_run(state.consumer.pool, key, id, why, signal)
    except ValueError as error:
        return {"error": str(error), "runs_here": True}
    return {"ok": done, "runs_here": True} if done else {"ok": f"{key} not held by {id} here"}


@inspect_command(signature="[look=False]", args=[("look", strtobool)], default_timeout=3.0)
def redlock_placement(state: Any, look: object = False, **_: Any) -> dict[str, str]:  # noqa: FBT002
    """Key prefix and nodes of the worker's locks, with its servers; '' without locks."""
    from .peers import peers_of  # noqa: PLC0415

    peers = peers_of.get(state.app)
    if peers is None:
        return {"placement": ""}
    if look:
        peers.ask_nodes()
    return {"placement": str(peers.placement)}


def _held_by_active_tasks(app: Any) -> Iterator[dict[str, Any]]:
    """Yield the locks that the nodes have granted to executions of this worker."""
    from celery.worker.state import active_requests  # noqa: PLC0415

    from celery_redlock.config.app_lock import redlock_of  # noqa: PLC0415
    from celery_redlock.redlock.labels import label_of  # noqa: PLC0415
    from celery_redlock.redlock.lease import is_reservation, task_of  # noqa: PLC0415

    for request in list(active_requests):
        about = {"task": request.name, "task_id": request.id}
        try:
            key = _key_of(app.tasks[request.name], request)
            held = redlock_of(app).read_holder(key) if key is not None else None
        except Exception as error:  # noqa: BLE001  # a user's `lock_key`, or no quorum
            yield {**about, "error": str(error)}
            continue
        if held and task_of(held.owner) == label_of(request.id) and not is_reservation(held.owner):
            yield {**about, "key": key, "remaining": held.remaining}


def _key_of(task: Any, request: Any) -> str | None:
    """Return the lock key of an execution; None if its task is not a singleton task."""
    from celery_redlock.config.task_config import (  # noqa: PLC0415
        is_singleton,
        task_lock_config,
    )

    if not is_singleton(task):
        return None
    key: str = task_lock_config(task, task.app).rule.key_for(request.args, request.kwargs)
    return key
