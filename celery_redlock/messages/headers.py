"""Headers of a message: its publication, its deliveries, and whether it is a copy.

A message can be delivered more than once, and requeued by this package. All these copies belong to
one publication and carry its nonce; the same task id published again is another publication.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.serialization import registry as serializers  # type: ignore[attr-defined]

from celery_redlock.redlock.lease import publication_of as publication_of_owner
from celery_redlock.redlock.lease import task_of

if TYPE_CHECKING:
    from celery.app.task import Context

PUBLICATION_HEADER = "redlock_publication"
"""Header with the nonce of the message's publication."""
ONCE_MORE_HEADER = "redlock_once_more"
"""Header with the nonce of a run of a message of which a copy has run before."""
TICK_HEADER = "redlock_tick"
"""Header of a message that beat published: the slot of its tick, in ISO 8601."""
COPY_HEADER = "redlock_copy"
"""Header of a copy: a message that was delivered again, or parked because its first copy ran."""
REDELIVERED = "redelivered"
"""Value of `COPY_HEADER` for a message that was requeued as soon as it was delivered again."""
DELIVERIES_HEADER = "redlock_deliveries"
"""Header with the number of redeliveries of a message before it was requeued."""
SERIALIZER = "redlock_serializer"
"""Attribute of a request with the name of its message's serializer."""
DEATH_HEADERS = frozenset(
    {
        "x-death", "x-first-death-exchange", "x-first-death-queue", "x-first-death-reason",
        "x-last-death-exchange", "x-last-death-queue", "x-last-death-reason",
    }
)  # fmt: skip
"""Headers that RabbitMQ adds to a dead letter and to a delayed message. It drops a message that
comes to the same queue with them again, as a loop. Source: celery.app.task, from 5.6 on."""

_COUNT_HEADER = "x-delivery-count"
"""Header in which RabbitMQ counts the earlier deliveries of a message of a quorum queue."""
_COUNTS = frozenset({DELIVERIES_HEADER, _COUNT_HEADER})
_MOST_DELIVERIES = 1_000_000
_NONCE = re.compile(r"[0-9a-f]{16}")
_BROKERS_HEADERS = DEATH_HEADERS | {_COUNT_HEADER}
_DELAYING_QUEUE = re.compile(r"celery_delayed_\d+$")
"""Queues of RabbitMQ for messages with an eta. Source: kombu.transport.native_delayed_delivery."""


class CarriedNonce(str):
    """Nonce of a message that is requeued, which no new nonce may replace.

    No publisher can send one: the header of a message is a plain string.
    """

    __slots__ = ()


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
    headers = {name: value for name, value in given.items() if name not in _BROKERS_HEADERS}
    nonce = headers.pop(PUBLICATION_HEADER, None)
    if not isinstance(nonce, CarriedNonce):
        nonce = _nonce_to_publish(task_id, options, running)
        headers.pop(DELIVERIES_HEADER, None)
    return {**headers, PUBLICATION_HEADER: nonce} if nonce else headers


def serializer_of(request: Context) -> str | None:
    """Return the name of a message's serializer, or None if it is unknown."""
    name = vars(request).get(SERIALIZER)
    return name if name in serializers.type_to_name.values() else None


def _nonce_to_publish(
    task_id: str | None, options: Mapping[str, Any], running: Context | None
) -> str:
    headers = options.get("headers") or {}
    if options.get("retries") or options.get("replaced_task_nesting"):
        # A retry belongs to its run's publication. The number of the retry tells it from the run's
        # own message, of which a copy may publish the same retry again.
        is_from_run = running is not None and str(running.id) == str(task_id)
        return publication_of(running) if running and is_from_run else nonce_in(headers)
    if TICK_HEADER in headers:
        # Two replicas of beat may publish one tick, as one publication.
        return _digest(f"{task_id} {headers[TICK_HEADER]}")
    return secrets.token_hex(8)


def begin_once_more(request: Context) -> None:
    """Give a message, and what its run publishes, done marks of their own from now on.

    For a run that others rely on, though a copy of the message has run: the retry that it publishes
    must not be taken for one that ran long ago.
    """
    # A new dict: the worker may share the message's.
    request.headers = {**(request.headers or {}), ONCE_MORE_HEADER: secrets.token_hex(8)}


def nonce_in(headers: Mapping[str, Any] | None, header: str = PUBLICATION_HEADER) -> str:
    """Return the nonce in a message's headers, or '' without a valid one."""
    nonce = (headers or {}).get(header)
    return nonce if isinstance(nonce, str) and _NONCE.fullmatch(nonce) else ""


def publication_of(request: Context) -> str:
    """Return the id of the publication that a message belongs to, or '' if it is unknown.

    A dead letter that comes back is another publication each time: it was published on purpose.
    """
    nonce, deaths = nonce_in(request.headers), _deaths(request.headers)
    return _digest(f"{nonce}+{deaths}") if deaths else nonce


def _deaths(headers: Mapping[str, Any] | None) -> int:
    """Return how often a message was a dead letter, apart from waiting for its eta."""
    entries = (headers or {}).get("x-death")
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


def is_flagged(request: Context) -> bool:
    """Return whether the broker flags this message as delivered before."""
    return bool((request.delivery_info or {}).get("redelivered"))


def is_redelivered(request: Context) -> bool:
    """Return whether a message was just delivered again, also if it was requeued to be counted."""
    return is_flagged(request) or (request.headers or {}).get(COPY_HEADER) == REDELIVERED


def flag_redelivered(request: Context) -> None:
    """Flag a message for its body as delivered before, also if it was requeued since.

    The broker's flag is lost when a message is requeued. To be called when the body begins, and not
    sooner: until then the flag counts as one more delivery.
    """
    if not is_flagged(request) and deliveries_before(request):
        # A new dict: the worker may share the message's.
        request.delivery_info = {**(request.delivery_info or {}), "redelivered": True}


def is_counted_by_broker(request: Context) -> bool:
    """Return whether the broker counts the earlier deliveries of this message."""
    return _count_in(request.headers, _COUNT_HEADER) > 0


def deliveries_before(request: Context) -> int:
    """Return how often a publication was delivered before, as far as that was counted.

    The broker counts since the message was last requeued, and a header carries the count until
    then. A dead letter that comes back starts from zero.
    """
    headers = request.headers or {}
    if _COUNTS.isdisjoint(headers):
        return int(is_flagged(request))
    carried = 0 if _deaths(headers) else _count_in(headers, DELIVERIES_HEADER)
    return carried + (_count_in(headers, _COUNT_HEADER) or int(is_flagged(request)))


def _count_in(headers: Mapping[str, Any] | None, name: str) -> int:
    count = (headers or {}).get(name)
    if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= _MOST_DELIVERIES:
        return count
    return 0


def is_copy(request: Context) -> bool:
    """Return whether this message was delivered before, or parked because its first copy ran."""
    return is_redelivered(request) or COPY_HEADER in (request.headers or {})


def may_have_copy(request: Context) -> bool:
    """Return whether another copy of this message may exist, or have existed, by its headers.

    The message is a copy itself, or a tick of beat, which may have been published twice.
    """
    return is_copy(request) or TICK_HEADER in (request.headers or {})


def is_of(owner: str | None, request: Context) -> bool:
    """Return whether `owner` belongs to this message, possibly to another delivery or retry."""
    # Celery accepts any id that its serializer accepts, also a UUID.
    if task_of(owner) != str(request.id):
        return False
    publication = publication_of_owner(owner)
    if not publication:
        return may_be_copy(request) or is_successor(request)
    return publication == publication_of(request)


def is_successor(request: Context) -> bool:
    """Return whether an earlier run of this task published the message: as retry or replacement."""
    return bool(request.retries or request.replaced_task_nesting)


def may_be_copy(request: Context) -> bool:
    """Return whether a message with this task id may be a copy, without looking at nonces."""
    return may_have_copy(request) or request.eta is not None


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
