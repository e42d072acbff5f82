"""Headers of a message: their names, and those that it is published or requeued with."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
import secrets
from collections.abc import Mapping
from typing import Any

from celery.app.task import Context
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.serialization import registry as serializers  # type: ignore[attr-defined]

from celery_redlock.redlock.task_lock import TaskLock

from .origin import ORIGIN, Origin, origin_of

RESERVATION_HEADER = "redlock_reservation"
"""Header with the key and the owner of the message's reservation."""
PUBLICATION_HEADER = "redlock_publication"
"""Header with the nonce of the message's publication."""
ONCE_MORE_HEADER = "redlock_once_more"
"""Header with the nonce of a run of a message of which a copy has run before."""
TICK_HEADER = "redlock_tick"
"""Header of a message that beat published: the slot of its tick, in ISO 8601."""
PLACEMENT_HEADER = "redlock_placement"
"""Header of a message whose publisher holds a lock for it, a reservation or the claim of a tick:
the time, in seconds since the epoch, and the placement of the lock."""
COPY_HEADER = "redlock_copy"
"""Header of a copy: a message that was delivered again, or parked because its first copy ran."""
REDELIVERED = "redelivered"
"""Value of `COPY_HEADER` for a message that was requeued as soon as it was delivered again."""
DELIVERIES_HEADER = "redlock_deliveries"
"""Header with the number of redeliveries of a message before it was requeued."""
SERIALIZER = "redlock_serializer"
"""Attribute of a request with the name of its message's serializer."""
COUNT_HEADER = "x-delivery-count"
"""Header in which RabbitMQ counts the earlier deliveries of a message of a quorum queue."""
DEATH_HEADERS = frozenset(
    {
        "x-death", "x-first-death-exchange", "x-first-death-queue", "x-first-death-reason",
        "x-last-death-exchange", "x-last-death-queue", "x-last-death-reason",
    }
)  # fmt: skip
"""Headers that RabbitMQ adds to a dead letter and to a delayed message. It drops a message that
comes to the same queue with them again, as a loop. Source: celery.app.task, from 5.6 on."""

NESTING = "replaced_task_nesting"
"""Header and option of Celery's: how often the task has replaced itself."""

_MOST_DIGITS = 12
_NONCE = re.compile(r"[0-9a-f]{16}")
_OF_DELIVERY = DEATH_HEADERS | {COUNT_HEADER, ORIGIN}
"""Headers, and an attribute of the request, that belong to one delivery of a message."""
_BEAT_HEADER = "celery_beat_task"
_OF_ONE_MESSAGE = frozenset(
    {RESERVATION_HEADER, ONCE_MORE_HEADER, COPY_HEADER, TICK_HEADER, PLACEMENT_HEADER}
)
"""Headers of this package that belong to one message and to the retries of its run."""
_FROM_BEAT = frozenset({TICK_HEADER, _BEAT_HEADER, PLACEMENT_HEADER})
_FIELDS = frozenset(vars(Context)) | {"lang", "task", "argsrepr", "kwargsrepr", "compression"}
"""Headers that are fields of Celery's. Source: celery.app.task, Context."""
_DELAYING_QUEUE = re.compile(r"celery_delayed_\d+$")
"""Queues of RabbitMQ for messages with an eta. Source: kombu.transport.native_delayed_delivery."""


class CarriedNonce(str):
    """Nonce of a message that is requeued, which no new nonce may replace.

    No publisher can send one: the header of a message is a plain string.
    """

    __slots__ = ()


def placement_header(redlock: TaskLock) -> dict[str, str]:
    """Return the header that tells workers where this process has just locked."""
    at_s = redlock.clock.wall_us() // 1_000_000
    return {PLACEMENT_HEADER: f"{at_s} {redlock.placement}"}


def placement_in(headers: Mapping[str, Any]) -> tuple[int, str]:
    """Return when, in seconds since the epoch, and where a message was locked for; 0 and '': none.

    A publisher can write anything there: the place is not validated.
    """
    text = headers.get(PLACEMENT_HEADER)
    at_s, _, place = (text if isinstance(text, str) else "").partition(" ")
    is_time = at_s.isascii() and at_s.isdecimal() and len(at_s) <= _MOST_DIGITS
    return (int(at_s), place) if is_time else (0, "")


def message_headers(request: Context) -> Mapping[str, Any]:
    """Return the headers of a message, those of Celery's fields included.

    Celery makes each header an attribute of the request. `request.headers` may lack ours: if one of
    the headers is called "headers", as tracing libraries send, it is that one's value alone. And a
    body may change it.
    """
    return (request.headers or {}) if request.is_eager else vars(request)


def headers_to_requeue(request: Context) -> dict[str, Any]:
    """Return the headers of a message, those of Celery's fields left out."""
    headers = {
        name: value for name, value in message_headers(request).items() if name not in _FIELDS
    }
    if not request.is_eager and request.headers not in (None, headers):
        headers["headers"] = request.headers
    return headers


def headers_to_publish(
    task_id: str | None, options: Mapping[str, Any], running: Context | None
) -> dict[str, Any]:
    """Return the headers of a message that is about to be published, with its publication.

    Args:
        task_id: Task id that the caller gave, or None.
        options: Options of `apply_async`.
        running: Request of the execution that publishes the message, or None outside of one.
    """
    given = options.get("headers") or {}
    headers = {name: value for name, value in given.items() if name not in _OF_DELIVERY}
    nonce = headers.pop(PUBLICATION_HEADER, None)
    if not isinstance(nonce, CarriedNonce):
        nonce = _nonce_to_publish(task_id, options, running)
        headers.pop(DELIVERIES_HEADER, None)
        headers = _own_replaced(headers, task_id, options, running)
    if options.get(NESTING):
        # In protocol 1 it has no other place, and the replacement would be taken for a copy of the
        # message that it replaces.
        headers = {**headers, NESTING: options[NESTING]}
    return {**headers, PUBLICATION_HEADER: nonce} if nonce else headers


def _own_replaced(
    headers: dict[str, Any],
    task_id: str | None,
    options: Mapping[str, Any],
    running: Context | None,
) -> dict[str, Any]:
    """Return headers to publish, with this package's replaced by those that the call is due.

    A retry has those of its run, and no other call of a run does, even if its body passes on the
    headers that it was given.
    """
    if not _is_next_try(options):
        left_out = _OF_ONE_MESSAGE | _FROM_BEAT if running else _OF_ONE_MESSAGE - _FROM_BEAT
        return {name: value for name, value in headers.items() if name not in left_out}
    if running is None or not _is_of_run(task_id, running) or not options.get("retries"):
        return headers
    given = message_headers(running)
    return headers | {name: given[name] for name in _OF_ONE_MESSAGE & given.keys()}


def _is_next_try(options: Mapping[str, Any]) -> bool:
    return bool(options.get("retries") or options.get(NESTING))


def _is_of_run(task_id: str | None, running: Context) -> bool:
    return str(running.id) == str(task_id)


def serializer_of(request: Context) -> str | None:
    """Return the name of a message's serializer, or None if it is unknown."""
    name = message_headers(request).get(SERIALIZER)
    return name if name in serializers.type_to_name.values() else None


def _nonce_to_publish(
    task_id: str | None, options: Mapping[str, Any], running: Context | None
) -> str:
    headers = options.get("headers") or {}
    if _is_next_try(options):
        # A retry belongs to its run's publication. The number of the retry tells it from the run's
        # own message, of which a copy may publish the same retry again.
        is_from_run = running is not None and _is_of_run(task_id, running)
        return publication_of(running) if running and is_from_run else nonce_in(headers)
    if TICK_HEADER in headers and running is None:
        # Two replicas of beat may publish one tick, as one publication.
        return _digest(f"{task_id} {headers[TICK_HEADER]}")
    return secrets.token_hex(8)


def nonce_in(headers: Mapping[str, Any] | None, header: str = PUBLICATION_HEADER) -> str:
    """Return the nonce in a message's headers, or '' without a valid one."""
    nonce = (headers or {}).get(header)
    return nonce if isinstance(nonce, str) and _NONCE.fullmatch(nonce) else ""


def publication_of(request: Context) -> str:
    """Return the id of the publication that a message belongs to, or '' if it is unknown.

    A dead letter that comes back is another publication each time: it was published on purpose. So
    is each receiver's copy of a broadcast message: all of them are meant to run.
    """
    headers = message_headers(request)
    return publication_in(headers, origin_of(request), deaths_in(headers))


def publication_in(headers: Mapping[str, Any], origin: Origin | None, deaths: int) -> str:
    """Return the id of a publication as `publication_of`, of what its message's headers tell."""
    nonce = nonce_in(headers)
    if origin and origin.broadcast_to:
        nonce = _digest(f"{nonce}@{origin.broadcast_to}")
    return _digest(f"{nonce}+{deaths}") if deaths else nonce


def deaths_in(headers: Mapping[str, Any]) -> int:
    """Return how often a message was a dead letter, apart from waiting for its eta."""
    entries = headers.get("x-death")
    if not isinstance(entries, list):
        return 0
    deaths = 0
    for entry in entries:
        if isinstance(entry, dict) and not _DELAYING_QUEUE.search(str(entry.get("queue"))):
            count = entry.get("count")
            deaths += count if isinstance(count, int) else 1
    return deaths


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def seconds_until(moment: Any) -> float | None:
    """Return the time until a countdown, eta or expiry, in seconds, or None without one.

    Args:
        moment: Seconds from now, or a datetime, or one in ISO 8601. Without a time zone it is in
            UTC: workers read it so, whatever the app's time zone.
    """
    if isinstance(moment, str):
        moment = maybe_iso8601(moment)
    if isinstance(moment, dt.datetime):
        return (maybe_make_aware(moment) - dt.datetime.now(dt.timezone.utc)).total_seconds()
    return None if moment is None else float(moment)
