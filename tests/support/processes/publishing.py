"""A call as its publisher sees it, taken down for a judge."""

from __future__ import annotations

import uuid
from typing import Any

from .inside import Inside


def publish(inside: Inside, body: Any, *args: Any, **more: Any) -> None:
    """Publish one call of a task, once, and note what its publisher knows.

    Notes "call", and then one of "published", "duplicate" (it found the result of another call) and
    "unsure" (the broker may have got it, or not).

    Args:
        inside: Takes the notes.
        body: The task.
        args: Its arguments.
        more: What else the notes say.
    """
    call = str(uuid.uuid4())
    told = {"call": call, "task": body.name} | more
    inside.note("call", **told)
    try:
        returned = body.apply_async(args, task_id=call, retry=False)
    except Exception as error:  # noqa: BLE001 - whatever a broker that is down makes of it
        inside.note("unsure", **told, error=repr(error)[:200])
    else:
        inside.note("published" if returned.id == call else "duplicate", **told)
