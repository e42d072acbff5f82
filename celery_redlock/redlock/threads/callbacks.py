"""Calls of users' code: callbacks, observers and log handlers, which may raise anything.

On a thread of this package whatever they raise is logged, and the thread goes on: other leases rely
on it. That includes SystemExit, KeyboardInterrupt and GreenletExit, which would end the thread, and
not the process. On a thread of the user's it is the user's: see `tell`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .dispatch import is_own_thread, run_in_origin_thread

logger = logging.getLogger(__name__)


def call(function: Callable[..., object], *args: object, failed: str, about: Any = ()) -> None:
    """Call a function of the user's for a thread of this package; an error is logged.

    Args:
        function: The function.
        *args: Its arguments.
        failed: Log line of an error, with the places of `about`.
        about: Values for that line.
    """
    try:
        function(*args)
    except BaseException as error:  # noqa: BLE001  # it is logged
        _log(failed, about, error)


def tell(function: Callable[..., object], *args: object, **kwargs: object) -> None:
    """Call a log or observers in the origin thread: see `dispatch`.

    Raises:
        BaseException: Whatever it raises on a thread of the user's.
    """
    run_in_origin_thread(_tell, function, args, kwargs)


def _tell(function: Callable[..., object], args: Any, kwargs: Any) -> None:
    try:
        function(*args, **kwargs)
    except BaseException as error:
        if not is_own_thread():
            raise
        _log("log or observers failed function=%r", (function,), error)


def _log(line: str, about: Any, error: BaseException) -> None:
    # A handler of the user's logs may be what has raised.
    with suppress(BaseException):
        logger.error(line, *about, exc_info=error)
