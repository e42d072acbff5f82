"""A client that is about to be killed: `python -m tests.integration.ladder.victim foil 1.0 URL`."""

from __future__ import annotations

import sys
import time

from .foils import SetnxThenExpire
from .ours import Ours

_LONG_S = 600.0


def main() -> None:
    """Acquire the lock, and hold it until the process is killed."""
    lock, ttl, *urls = sys.argv[1:]
    SetnxThenExpire.seconds_between = _LONG_S
    client = Ours(urls) if lock == "ours" else SetnxThenExpire(urls)
    client.acquire(float(ttl))
    time.sleep(_LONG_S)


if __name__ == "__main__":
    main()
