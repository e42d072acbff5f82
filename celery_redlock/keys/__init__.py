"""From a task and the arguments of one call to the name of its lock."""

from celery_redlock.keys.rule import KeyRule, is_key_of, key_rule
from celery_redlock.keys.signature import (
    TOKEN_PARAMETER,
    accepts_token,
    bind,
    bindable_signature,
    decorators_signature,
)

__all__ = [
    "TOKEN_PARAMETER",
    "KeyRule",
    "accepts_token",
    "bind",
    "bindable_signature",
    "decorators_signature",
    "is_key_of",
    "key_rule",
]
