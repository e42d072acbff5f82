"""Guards for resources: they refuse the write of a run that a newer one has overtaken.

Each run claims its fencing token first, then reads, then writes. From the claim on every older run
is shut out, so what was read can't change under the run that writes.

`once` is for effects that must happen once: the first run does them, later ones get its result.

A module for each kind of resource: `psycopg`, `sqlalchemy`, `django`, `redis`, `objects`.
"""

from celery_redlock.contrib.guards.effects import Effect
from celery_redlock.contrib.guards.stale import StaleToken

__all__ = ["Effect", "StaleToken"]
