"""Every `celery` command loads the room: it must not load what only a subcommand needs."""

from __future__ import annotations

import subprocess
import sys

HEAVY = (
    "celery_redlock.operate", "celery_redlock.task", "celery_redlock.worker.bootsteps",
    "celery_redlock.worker.signal_handlers", "rich", "redis", "flask", "waitress",
)  # fmt: skip


def test_loading_the_commands_imports_nothing_that_is_dear() -> None:
    code = "import sys, celery_redlock.cli; print(*sys.modules, sep='\\n')"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ran.stdout.split())
    assert "celery_redlock.cli.status" in loaded
    assert not [name for name in loaded if name.startswith(HEAVY)]
