"""From a task and the arguments of one call to the name of its lock."""

from celery_redlock.keys.rule import KeyRule, is_key_of, key_rule
from celery_redlock.keys.signature import TOKEN_PARAMETER, bind

__all__ = ["TOKEN_PARAMETER", "KeyRule", "bind", "is_key_of", "key_rule"]
