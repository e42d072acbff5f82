"""Threads and locks of the operating system, also where gevent or eventlet have replaced them.

A greenlet starves while a task computes; work that must continue meanwhile needs a real thread.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import AbstractContextManager
from typing import Any, cast


def original(module: str, name: str) -> Any:
    """Return ``module.name`` as it was before any monkey patching."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched(module):
        return monkey.get_original(module, name)
    patcher = sys.modules.get("eventlet.patcher")
    if patcher is not None and patcher.already_patched:
        return getattr(patcher.original(module), name)
    return getattr(importlib.import_module(module), name)


def new_lock() -> AbstractContextManager[bool]:
    """Return a lock that works between real threads. Hold it for moments only."""
    return cast(AbstractContextManager[bool], original("_thread", "allocate_lock")())


def is_green() -> bool:
    """Return whether threads are greenlets in this process."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("threading"):
        return True
    return is_eventlet()


def is_eventlet() -> bool:
    """Return whether threads are eventlet's greenlets in this process."""
    patcher = sys.modules.get("eventlet.patcher")
    return patcher is not None and bool(patcher.is_monkey_patched("thread"))
