"""Worker, process and arguments of a lock, as a real worker tells them."""

from __future__ import annotations

import json

import pytest

from tests.integration.conftest import NewProject
from tests.support.eventually import eventually
from tests.support.processes.commands import run_with


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.long)])
def test_a_lock_names_the_worker_that_runs_its_task(new_project: NewProject, pool: str) -> None:
    project = new_project("losing", redlock_show_arguments=True)
    key = "tests.integration.apps.losing.aborted:" + pool
    project.start_worker(pool=pool, concurrency=2)
    project.tasks.aborted.apply_async(
        (pool, "sleep", 600.0), argsrepr="(<hidden>,)", kwargsrepr="{}"
    )
    begun = project.wait_for_note("begin", key=pool)

    found: dict[str, object] = {}

    def is_told() -> bool:
        # A busy machine's worker may answer too late.
        shown = run_with(project.app, "list", "--json", "--match", key).output
        found.update(json.loads(shown.splitlines()[0]))
        return found["worker"] is not None

    eventually(is_told)
    assert str(found["worker"]).startswith(project.workers[0]._node)
    assert found["pid"] == begun.pid
    assert found["arguments"] == "(<hidden>,)"
    eventually(lambda: "(<hidden>,)" in run_with(project.app, "show", key).output)
    assert "sleep" not in run_with(project.app, "show", key).output
