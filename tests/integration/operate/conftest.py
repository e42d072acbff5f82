"""Run the commands as a user does, on real servers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from click.testing import CliRunner

from celery_redlock.cli.alone import main
from tests.support.processes.ran import Ran, Run


@pytest.fixture
def run() -> Run:
    """Run `celery-redlock` in this process: `run(urls, "status", "--json")`.

    The nodes vote at once, since they have just been started; `options` are those of the group.
    """

    def run(urls: Sequence[str], *words: str, options: Sequence[str] = ()) -> Ran:
        nodes = [word for url in urls for word in ("--node", url)]
        # Patient, since the machine may be slow.
        group = [*nodes, "--no-restart-guard", "--node-timeout", "20", *options]
        result = CliRunner().invoke(main, [*group, *words], catch_exceptions=False)
        return Ran(result.exit_code, result.output)

    return run
