"""Types of the options of `@singleton_task`, for type checkers and editors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict

LifetimeName = Literal[
    "while_executing",
    "until_executing",
    "until_executed",
    "until_and_while_executing",
    "until_expired",
]
OnConflictName = Literal["skip", "complete", "raise", "reschedule", "wait", "coalesce"]
OnUnavailableName = Literal["reschedule", "raise", "run"]
OnLostName = Literal["abort", "continue"]


class TypedLockOptions(TypedDict, total=False):
    """Options of the lock; docs/reference/options.md describes them. Times are in seconds."""

    lock_ttl: float
    lock_key: str | Sequence[str] | Callable[..., object] | None
    lock_lifetime: LifetimeName
    lock_on_conflict: OnConflictName
    lock_on_unavailable: OnUnavailableName
    lock_on_lost: OnLostName
    lock_delay: float
    lock_min_hold: float
    lock_max_hold: float | None
    lock_wait: float | None
    lock_queue_ttl: float
    lock_conflict_result: Any


class TypedOptions(TypedLockOptions, total=False):
    """Options of the lock and of Celery, besides `bind`."""

    name: str
    acks_late: bool
    acks_on_failure: bool | None
    acks_on_failure_or_timeout: bool
    acks_on_timeout: bool | None
    after_return: Callable[..., None]
    autoregister: bool
    autoretry_for: Sequence[type[BaseException]]
    before_start: Callable[..., None]
    compression: str | None
    default_retry_delay: float
    delivery_mode: int | str | None
    dont_autoretry_for: Sequence[type[BaseException]]
    exchange: str | None
    expires: float | datetime | None
    ignore_result: bool
    max_retries: int | None
    priority: int | None
    on_failure: Callable[..., None]
    on_retry: Callable[..., None]
    on_success: Callable[..., None]
    pydantic: bool
    pydantic_context: Mapping[str, Any] | None
    pydantic_dump_kwargs: Mapping[str, Any] | None
    pydantic_strict: bool
    queue: str | None
    rate_limit: str | int | float | None
    reject_on_worker_lost: bool | None
    resultrepr_maxsize: int
    retry_backoff: bool | float
    retry_backoff_max: float
    retry_jitter: bool
    retry_kwargs: dict[str, Any]
    retry_on_worker_lost: bool | None
    retry_policy: Mapping[str, Any]
    routing_key: str | None
    send_events: bool
    serializer: str
    shared: bool
    soft_time_limit: float | None
    store_eager_result: bool
    store_errors_even_if_ignored: bool
    throws: tuple[type[BaseException], ...]
    time_limit: float | None
    track_started: bool
    trail: bool
    typing: bool
