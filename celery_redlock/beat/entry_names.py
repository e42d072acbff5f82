"""Names of entries: they identify ticks, so they must be the same in every process.

Celery names an entry that `add_periodic_task` was given no name for after its task and arguments,
as Python shows them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from kombu.utils.functional import reprcall

from celery_redlock.redlock.errors import ConfigurationError

logger = logging.getLogger(__name__)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>")
_REMEDY = "pass a name to add_periodic_task, or write the entry into beat_schedule"


def check_names(entries: Mapping[str, Any]) -> None:
    """Refuse names that differ by process; warn of names that change with an entry's arguments.

    Raises:
        ConfigurationError: A name holds an address in memory, or a set, which has no fixed order.
    """
    unnamed = []
    for name, entry in entries.items():
        given = entry if isinstance(entry, Mapping) else vars(entry)
        args, kwargs = given.get("args") or (), given.get("kwargs")
        is_unnamed = name == reprcall(given["task"], args, kwargs)
        if is_unnamed and (args or kwargs):
            unnamed.append(name)
        if _ADDRESS.search(name) or (is_unnamed and _has_set([*args, kwargs])):
            raise ConfigurationError(
                f"beat entry {name!r}: its name differs from process to process, so replicas can't "
                f"agree on its ticks; {_REMEDY}"
            )
    if unnamed:
        logger.warning(
            "entries unnamed, with other arguments they are other entries entries=%s", unnamed
        )


def _has_set(value: object) -> bool:
    """Return whether a set of several members is in `value`."""
    if isinstance(value, Mapping):
        return any(map(_has_set, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_has_set, value))
    return isinstance(value, (set, frozenset)) and len(value) > 1
