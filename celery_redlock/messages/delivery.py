"""One delivery of a message: what its headers and the broker tell of it, parsed and validated once.

A message can be delivered more than once, and requeued by this package. All these copies belong to
one publication and carry its nonce; the same task id published again is another publication.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.exceptions import InvalidTaskError

from celery_redlock.redlock.labels import bounded, label_of
from celery_redlock.redlock.lease import publication_of as publication_of_owner
from celery_redlock.redlock.lease import task_of

from .headers import (
    COPY_HEADER,
    COUNT_HEADER,
    DELIVERIES_HEADER,
    ONCE_MORE_HEADER,
    PLACEMENT_HEADER,
    REDELIVERED,
    TICK_HEADER,
    deaths_in,
    message_headers,
    nonce_in,
    publication_in,
)
from .origin import Origin, origin_of
from .reservation import Reservation, reservation_of

if TYPE_CHECKING:
    from celery import Task
    from celery.app.task import Context

_MOST_DELIVERIES = 1_000_000
_LONGEST_BYTES = 768
"""Longest label of a mark: part of a key on the nodes, and of a row that pool processes share."""
_RETRIES_TO_CHECK = 5
"""Next retries whose marks end a copy: two more than Celery makes by default."""


class Delivery(NamedTuple):
    """One delivery of a message to a worker; or an eager execution, which has no message.

    Attributes:
        task: Task of the message.
        request: Request of the execution.
        publication: Id of the publication that the message belongs to; '': unknown.
        origin: Origin of the message; None: it was sent to its queue by name, or it is unknown.
        reservation: Reservation in the headers, if its key is one of the task's; it may have
            expired.
        is_locked_for: Whether a publisher says that it held a lock for this message.
        deliveries_before: How often the publication was delivered before, as far as that was
            counted: by the broker since the message was last requeued, and in a header until then.
            A dead letter that comes back starts from zero.
        is_counted_by_broker: Whether the broker counts the earlier deliveries.
        is_flagged: Whether the broker flags the message as delivered before.
        is_redelivered: Whether it was just delivered again, also if it was requeued to be counted.
        is_copy: Whether it was delivered before, or parked because its first copy ran.
        may_have_copy: Whether another copy may exist, or have existed, by the headers: the message
            is a copy itself, or a tick of beat, which may have been published twice.
        may_be_copy: Whether a message with this task id may be a copy, whatever the nonces say.
        is_successor: Whether an earlier run of the task published it: as retry or replacement.
    """

    task: Task[Any, Any]
    request: Context
    publication: str
    origin: Origin | None
    reservation: Reservation | None
    is_locked_for: bool
    deliveries_before: int
    is_counted_by_broker: bool
    is_flagged: bool
    is_redelivered: bool
    is_copy: bool
    may_have_copy: bool
    may_be_copy: bool
    is_successor: bool

    @classmethod
    def of(cls, task: Task[Any, Any], request: Context) -> Delivery:
        """Return the delivery that a request stands for.

        Raises:
            InvalidTaskError: The headers are not a mapping, or the number of a retry can't be
                encoded.
        """
        _validate(request)
        headers, origin = message_headers(request), origin_of(request)
        deaths = deaths_in(headers)
        is_flagged = bool((request.delivery_info or {}).get("redelivered"))
        counted = _count_in(headers, COUNT_HEADER)
        carried = 0 if deaths else _count_in(headers, DELIVERIES_HEADER)
        is_redelivered = is_flagged or headers.get(COPY_HEADER) == REDELIVERED
        is_copy = is_redelivered or COPY_HEADER in headers
        may_have_copy = is_copy or TICK_HEADER in headers
        return cls(
            task=task,
            request=request,
            publication=publication_in(headers, origin, deaths),
            origin=origin,
            reservation=reservation_of(task.name, headers),
            is_locked_for=PLACEMENT_HEADER in headers,
            deliveries_before=carried + (counted or int(is_flagged)),
            is_counted_by_broker=counted > 0,
            is_flagged=is_flagged,
            is_redelivered=is_redelivered,
            is_copy=is_copy,
            may_have_copy=may_have_copy,
            may_be_copy=may_have_copy or request.eta is not None,
            is_successor=bool(request.retries or request.replaced_task_nesting),
        )

    @property
    def can_be_requeued(self) -> bool:
        """Whether the message has a queue to go back to.

        An eager execution has no message, and a copy of a broadcast at Redis no queue.
        """
        return not self.request.is_eager and (self.origin is None or bool(self.origin.queue))

    @property
    def is_patient(self) -> bool:
        """Whether a publication in this execution is to be attempted for about a minute.

        A message that is acknowledged early is lost if it is not published. And where the broker
        counts deliveries, each return to the queue brings the message nearer to its limit.
        """
        return not self.task.acks_late or self.is_counted_by_broker

    def has_owner(self, owner: str | None) -> bool:
        """Return whether `owner` belongs to this message, possibly to another delivery or retry."""
        # Celery accepts any id that its serializer accepts, also a UUID.
        if task_of(owner) != label_of(self.request.id):
            return False
        publication = publication_of_owner(owner)
        if not publication:
            return self.may_be_copy or self.is_successor
        return publication == self.publication

    def flag_redelivered(self) -> None:
        """Flag the request for the body as delivered before, also if it was requeued since.

        The broker's flag is lost when a message is requeued.
        """
        if self.deliveries_before:
            # A new dict: the worker may share the message's.
            info = self.request.delivery_info or {}
            self.request.delivery_info = {**info, "redelivered": True}

    # ---- done marks

    @property
    def done_label(self) -> str:
        """Label of the message's done mark; retries and replacements have their own."""
        return self._label(self.request.retries)

    @property
    def mark_to_leave(self) -> str | None:
        """Label of the mark for other copies of the message; None if there can't be any.

        A retry may have copies too: if the connection breaks after the write, it is published
        twice.
        """
        request = self.request
        is_repeatable = self.task.acks_late or request.eta or request.retries
        is_wanted = is_repeatable or self.may_have_copy
        return self.done_label if is_wanted and not request.is_eager else None

    @property
    def marks_to_check(self) -> tuple[str, ...]:
        """Labels of the marks that end this execution, its own first; none if no copy can have run.

        Of a first delivery, too: while it waited in a worker for its eta, or for a process, the
        broker may have delivered the message again to another worker.

        Of a copy, those of the next retries as well. A run whose retry seems not to be published
        requeues its message, and one that was killed just after it had published its retry has left
        no mark. Run after that retry, or after the retry's own, the message would store RETRY over
        their result.
        """
        request = self.request
        if request.is_eager or not (self.publication or self.may_be_copy):
            return ()
        if not (self.task.acks_late and self.is_copy):
            return (self.done_label,)
        next_retry = (request.retries or 0) + 1
        later = (self._label(next_retry + number) for number in range(_RETRIES_TO_CHECK))
        return (self.done_label, *later)

    def begin_once_more(self) -> None:
        """Give the message, and what its run publishes, done marks of their own from now on.

        For a run that others rely on, though a copy of the message has run: the retry that it
        publishes must not be taken for one that ran long ago.
        """
        setattr(self.request, ONCE_MORE_HEADER, secrets.token_hex(8))

    def _label(self, retries: object) -> str:
        nesting, publication = self.request.replaced_task_nesting, self.publication
        label = f"{label_of(self.request.id)}/{retries}" + (f"/{nesting}" if nesting else "")
        if once_more := nonce_in(message_headers(self.request), ONCE_MORE_HEADER):
            publication += f"+{once_more}"
        return bounded(f"{label}/{publication}" if publication else label, _LONGEST_BYTES)


def _validate(request: Context) -> None:
    """Refuse a message whose fields can't be stored on a node, before anything is locked.

    A publisher can write anything, and Celery makes all of it attributes of the request.
    """
    for name in ("headers", "delivery_info"):
        value = getattr(request, name)
        if value is not None and not isinstance(value, (dict, Mapping)):
            raise InvalidTaskError(f"{name} must be a mapping, got {type(value).__name__}")
    try:
        f"{request.retries}{request.replaced_task_nesting}".encode()
    except UnicodeEncodeError as error:
        raise InvalidTaskError(f"retries can't be encoded: {error.reason}") from None


def _count_in(headers: Mapping[str, Any], name: str) -> int:
    count = headers.get(name)
    if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= _MOST_DELIVERIES:
        return count
    return 0
