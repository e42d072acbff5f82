"""When the lock is free and what is seen of a task that ends, in every pool: a table.

Here: what the body does itself, and what the pool does to it. How a process of the prefork pool
ends: test_prefork.py. How a worker ends: test_workers.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.conftest import NewProject
from tests.support.judges.endings import End, Free, Row, Scene, let_it_end, revoke, wait
from tests.support.judges.figures import Figures
from tests.support.processes.project import Project
from tests.support.processes.workers import GREEN_POOLS, POOLS, Worker
from tests.support.versions import REJECT_IS_A_FAILURE

DONE = End("SUCCESS", "returns 'done'")
DONE_IN_TWO_RUNS = End("SUCCESS", "returns 'done'", runs=2)
NOTHING = End("PENDING", "hangs")
REVOKED = End("REVOKED", "raises TaskRevokedError")
INTERRUPTED = End("FAILURE", "raises SoftTimeLimitExceeded")
REJECTED = (
    (Free.BEFORE_RESULT, (End("FAILURE", "raises Reject"),))
    if REJECT_IS_A_FAILURE
    else (Free.AS_IT_ENDS, (NOTHING,))
)


# fmt: off
ROWS = [
    Row("success", POOLS, let_it_end, Free.BEFORE_RESULT, (DONE,)),
    Row("success, acked early", POOLS, let_it_end, Free.BEFORE_RESULT, (DONE,), task="early"),
    Row("exception", POOLS, let_it_end, Free.BEFORE_RESULT,
        (End("FAILURE", "raises Wrong"),), how="raise"),
    Row("retry", POOLS, let_it_end, Free.BEFORE_RESULT, (DONE_IN_TWO_RUNS,), how="retry"),
    Row("Ignore", POOLS, let_it_end, Free.AS_IT_ENDS, (NOTHING,), how="ignore"),
    Row("Reject", POOLS, let_it_end, *REJECTED, how="reject"),
    Row("Reject and requeue", POOLS, let_it_end, Free.BEFORE_RESULT,
        (DONE_IN_TWO_RUNS,), how="requeue"),
    # Celery has acknowledged it: there is nothing to put back.
    Row("Reject and requeue, acked early", POOLS, let_it_end, Free.AS_IT_ENDS,
        (NOTHING,), task="early", how="requeue"),
    # Prefork's is in test_prefork.py: there it is the end of the process.
    Row("SystemExit", ("threads", *GREEN_POOLS), let_it_end, Free.AS_IT_ENDS,
        (NOTHING,), task="early", how="exit"),
    Row("SystemExit", ("solo",), let_it_end, Free.AS_IT_ENDS,
        (End("PENDING", "hangs", worker="ends"),), task="early", how="exit"),
    Row("MemoryError", ("threads", *GREEN_POOLS), let_it_end, Free.BEFORE_RESULT,
        (End("FAILURE", "raises MemoryError"),), task="early", how="memory"),
    # Celery raises it again in the worker's main process.
    Row("MemoryError", ("prefork", "solo"), let_it_end, Free.BEFORE_RESULT,
        (End("FAILURE", "raises MemoryError", worker="ends"),), task="early", how="memory"),
    # The lock has to be seen before the limit strikes.
    Row("soft time limit", ("prefork",), wait, Free.BEFORE_RESULT,
        (INTERRUPTED,), options={"soft_time_limit": 8}),
    # After the others: Celery takes the process that survives it for terminated ever after. Both
    # the main process and the child store what they think of it.
    Row("revoke USR1", ("prefork",), revoke("USR1"), Free.AS_IT_ENDS, (REVOKED, INTERRUPTED)),
    Row("time limit", ("gevent",), wait, Free.BEFORE_RESULT,
        (End("FAILURE", "raises TimeLimitExceeded"),), options={"time_limit": 8}),
    Row("revoke", GREEN_POOLS, revoke(), Free.AS_IT_ENDS, (REVOKED,)),
]
# fmt: on
CASES = [
    pytest.param(pool, row, id=f"{pool}-{row.ending}")
    for pool in POOLS
    for row in ROWS
    if pool in row.pools
]


@pytest.fixture(scope="module")
def project(new_project: NewProject) -> Project:
    return new_project("endings")


@pytest.fixture(scope="module")
def worker(project: Project, request: pytest.FixtureRequest) -> Iterator[Worker]:
    """A worker with the pool of the test's parameter."""
    worker = project.start_worker(pool=request.param, concurrency=2)
    yield worker
    worker.kill_all()


@pytest.mark.parametrize(("worker", "row"), CASES, indirect=["worker"], scope="module")
def test_the_lock_is_free_when_it_must_be(
    project: Project, worker: Worker, row: Row, figures: Figures
) -> None:
    if not worker.is_running:
        worker.start()
        worker.wait_until_ready()
    assert Scene(project, worker, row, figures).play() in row.ends
