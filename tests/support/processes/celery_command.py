"""`python -m celery` for tests, without imports that take half of its start.

Celery loads Flower's command and a shell for its commands whatever it is told to do, if they are
installed. The command as it is runs in tests of the command line, in `make wheel` and in what the
documentation tells.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any


def main() -> None:
    """Run the command that the arguments name."""
    modules: dict[str, Any] = sys.modules
    modules["click_repl"] = SimpleNamespace(register_repl=lambda group: None)
    modules["flower.command"] = None  # as if it were not installed
    # Here, since a green pool is patched in when Celery is imported.
    from celery.__main__ import main as celery  # noqa: PLC0415

    celery()


if __name__ == "__main__":
    main()
