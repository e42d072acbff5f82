"""Entries are RedBeat's: code of the user's saves them on a server while replicas run."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import celery._state
from celery import Celery
from celery.schedules import schedule
from redbeat import schedulers as redbeat
from redbeat.schedulers import RedBeatScheduler, RedBeatSchedulerEntry
from typing_extensions import Self

from celery_redlock.beat.slots import EPOCH

from .kept import Kept

_state: Any = celery._state


class RedBeats(Kept):
    """Replicas that share a Redis server, in memory."""

    base = RedBeatScheduler
    conf: ClassVar[dict[str, Any]] = {"redbeat_redis_url": "redis://a", "redbeat_lock_key": None}
    # RedBeat lists an entry only when it is due.
    unlisted = 1

    def set_up(self) -> None:
        """Make an empty server, and the app of the code that changes its entries."""
        # RedBeat goes through its entries by itself.
        self._tick_of = None
        server = Server()
        self._patch.setattr(redbeat, "get_redis", lambda _: server)
        self._app = Celery("app", set_as_current=False)
        self._app.conf.update(self.conf)
        now = {"now": lambda: EPOCH + dt.timedelta(seconds=self.now())}
        vars(self._app).update(now)
        redbeat.ensure_conf(self._app)
        super().set_up()

    def change(self, how: str, name: str, value: str = "") -> None:
        """Change an entry."""
        _state._tls.current_app = self._app
        if how == "every":
            self._entry(name, float(value)).save()
            return
        key = RedBeatSchedulerEntry.generate_key(self._app, name)
        entry = RedBeatSchedulerEntry.from_key(key, app=self._app)
        if how == "rename":
            self._entry(value, entry.schedule.seconds).save()
        if how in ("rename", "delete"):
            entry.delete()
        else:
            entry.enabled = how == "enable"
            entry.save()

    def _entry(self, name: str, every: float) -> RedBeatSchedulerEntry:
        return RedBeatSchedulerEntry(name, "task", schedule(every), [name], app=self._app)


class Server:
    """What RedBeat uses of a Redis server, and of its client."""

    def __init__(self) -> None:
        self._hashes: dict[str, dict[str, str]] = defaultdict(dict)
        self._scores: dict[str, dict[str, float]] = defaultdict(dict)
        self._sets: dict[str, set[str]] = defaultdict(set)
        self._replies: list[Any] = []

    def pipeline(self) -> Self:
        """Return a client that returns all replies at once, in the end."""
        self._replies = []
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute(self) -> list[Any]:
        """Return the replies since `pipeline`."""
        return self._replies

    def _reply(self, value: Any) -> Any:
        self._replies.append(value)
        return value

    def hget(self, key: str, field: str) -> str | None:
        reply: str | None = self._reply(self._hashes[key].get(field))
        return reply

    def hset(self, key: str, field: str, value: str) -> None:
        self._hashes[key][field] = self._reply(value)

    def hsetnx(self, key: str, field: str, value: str) -> None:
        self._reply(self._hashes[key].setdefault(field, value))

    def delete(self, key: str) -> None:
        self._reply(self._hashes.pop(key, None))

    def zadd(self, key: str, scores: Mapping[str, float]) -> None:
        self._reply(self._scores[key].update(scores))

    def zrem(self, key: str, member: str) -> None:
        self._reply(self._scores[key].pop(member, None))

    def zrange(self, key: str, _first: int, _last: int) -> list[str]:
        """Return all members."""
        scores = self._scores[key]
        return sorted(scores, key=lambda member: (scores[member], member))

    def zrangebyscore(
        self, key: str, least: Any, most: float, start: int = 0, num: int | None = None
    ) -> None:
        above = float(least[1:]) if isinstance(least, str) else None
        found = [
            member
            for member in self.zrange(key, 0, -1)
            if (score := self._scores[key][member]) <= most
            and (score > above if above is not None else score >= least)
        ]
        self._reply(found[start:][:num])

    def smembers(self, key: str) -> Iterable[str]:
        return self._sets[key]

    def sadd(self, key: str, *members: str) -> None:
        self._sets[key].update(members)

    def srem(self, key: str, member: str) -> None:
        self._sets[key].discard(member)
        self._reply(None)
