"""Done marks: their labels, and which messages leave one or heed one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from celery.exceptions import InvalidTaskError

from celery_redlock.pools import orphaned_leases
from celery_redlock.redlock.errors import AlreadyDone

from .headers import ONCE_MORE_HEADER, may_be_copy, may_have_copy, nonce_in, publication_of

if TYPE_CHECKING:
    from celery import Task
    from celery.app.task import Context


def done_label(request: Context) -> str:
    """Return the label of a message's done mark; retries and replacements have their own."""
    return _label(request, request.retries, publication_of(request))


def done_label_of_retry(request: Context) -> str:
    """Return the label of the done mark of a message's next retry."""
    return _label(request, (request.retries or 0) + 1, publication_of(request))


def _label(request: Context, retries: object, publication: str) -> str:
    nesting = request.replaced_task_nesting
    label = f"{request.id}/{retries}" + (f"/{nesting}" if nesting else "")
    once_more = nonce_in(request.headers, ONCE_MORE_HEADER)
    if once_more:
        publication += f"+{once_more}"
    return f"{label}/{publication}" if publication else label


def refuse_unwritable(request: Context) -> None:
    """Refuse a message whose fields can't be stored on a node, before anything is locked.

    A publisher can write anything, and Celery makes all of it attributes of the request.

    Raises:
        InvalidTaskError: The headers are not a mapping, or a field of a label can't be encoded.
    """
    for name in ("headers", "delivery_info"):
        value = getattr(request, name)
        if value is not None and not isinstance(value, Mapping):
            raise InvalidTaskError(f"{name} must be a mapping, got {type(value).__name__}")
    try:
        done_label(request).encode()
    except UnicodeEncodeError as error:
        raise InvalidTaskError(f"id or retries can't be encoded: {error.reason}") from None


def mark_to_leave(task: Task[Any, Any], request: Context) -> str | None:
    """Return the label of the mark for other copies of a message; None if there can't be any.

    A retry may have copies too: if the connection breaks after the write, it is published twice.
    """
    is_repeatable = task.acks_late or request.eta or request.retries
    is_wanted = is_repeatable or may_have_copy(request)
    return done_label(request) if is_wanted and not request.is_eager else None


def mark_to_heed(request: Context) -> str | None:
    """Return the label of the mark that ends this execution; None if no copy can have run.

    A first delivery heeds marks too: while it waited in a worker for its eta, or for a free
    process, the broker may have delivered the message again to another worker.
    """
    if request.is_eager:
        return None
    publication = publication_of(request)
    if not publication and not may_be_copy(request):
        return None
    return _label(request, request.retries, publication)


def is_provisional(done: AlreadyDone) -> bool:
    """Return whether the run that left this mark may not have ended yet."""
    return done.remaining <= orphaned_leases.PROVISIONAL_S
