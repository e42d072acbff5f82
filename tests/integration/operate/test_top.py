"""`celery-redlock top` on real servers, with and without a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys

from celery_redlock.testing import Servers
from tests.conftest import NewRedlock

ALONE = "from celery_redlock.cli.alone import main; main()"


def on_a_terminal(five: Servers) -> tuple[int, str]:
    """Run `top` with a terminal as its standard output; return exit status and output."""
    terminal, inside = pty.openpty()
    nodes = [word for url in five.urls for word in ("--node", url)]
    words = [*nodes, "--node-timeout", "20", "--no-restart-guard", "top", "--count", "1"]
    with subprocess.Popen(
        [sys.executable, "-c", ALONE, *words],
        stdout=inside, stderr=inside, env=os.environ | {"TERM": "xterm", "COLUMNS": "200"},
    ) as process:  # fmt: skip
        os.close(inside)
        shown = b""
        with contextlib.suppress(OSError):  # how the end of a terminal is told on Linux
            while piece := os.read(terminal, 1 << 16):
                shown += piece
    os.close(terminal)
    return process.returncode, shown.decode()


def test_on_a_terminal_it_is_a_live_table(five: Servers, new_redlock: NewRedlock) -> None:
    new_redlock(five.urls).acquire("bank.sync:42", label="task-1", renew=True)
    code, shown = on_a_terminal(five)
    assert "\x1b[?1049h" in shown  # the alternate screen
    assert "bank.sync:42" in shown
    assert "5 of 5 vote" in shown
    assert code == 0
